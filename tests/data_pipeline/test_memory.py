"""The budget of memory: what is held stays below it, everybody gets a turn."""

import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from keras_sslhsic.data.memory import Budget

MB = 2**20


def held(budget):
    return sum(budget._held.values())


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.lists(st.lists(st.integers(0, 3 * MB), min_size=1, max_size=3), min_size=1, max_size=30),
    threads=st.integers(1, 8),
)
def test_what_is_held_is_bounded_and_everybody_ends(sizes, threads):
    budget, most = Budget(1), 0
    todo, lock = iter(sizes), threading.Lock()

    def work():
        nonlocal most
        while True:
            with lock:
                mine = next(todo, None)
            if mine is None:
                return
            with budget.lease() as lease:
                for size in mine:  # more, or fewer, than before
                    lease.hold(size)
                    with lock:
                        most = max(most, held(budget))

    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    assert most <= MB + max(max(mine) for mine in sizes)
    assert held(budget) == 0


def test_the_first_lease_goes_on_and_later_ones_wait():
    budget = Budget(1)
    first, second = budget.lease(), budget.lease()
    second.hold(MB)
    first.hold(5 * MB)
    third = budget.lease()
    waiting = threading.Thread(target=third.hold, args=(1,))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    first.end()
    assert waiting.is_alive()  # the second has all of it
    second.hold(MB - 1)
    waiting.join(60)
    assert not waiting.is_alive() and held(budget) == MB
    second.end()
    third.end()
    assert held(budget) == 0


def test_a_lease_that_ended_waits_and_holds_no_more():
    budget = Budget(1)
    first, second = budget.lease(), budget.lease()
    first.hold(MB)
    waiting = threading.Thread(target=second.hold, args=(MB,))
    waiting.start()
    second.end()
    waiting.join(60)
    assert not waiting.is_alive() and held(budget) == MB


@pytest.mark.parametrize("given, message", [(0, "at least 1, found 0"), (1.5, "an integer, found 1.5")])
def test_bad_budgets_are_named(given, message):
    with pytest.raises(ValueError, match=f"memory_mb must be {message}"):
        Budget(given)


PEAK = """
import re, sys
from pathlib import Path
from keras_sslhsic.data import from_folder, inspect_folder

def status(field):
    return int(re.search(field + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

def read(folder):
    if sys.argv[1] == "inspect":
        inspect_folder(folder, workers=12, memory_mb=96)
    else:
        list(from_folder(folder, batch_size=12, image_size=32, workers=12, memory_mb=96).batches(epochs=1))

read("small")
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
read("large")
print(status("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="reads the peak as Linux tells it")
@pytest.mark.parametrize("kind", ["from_folder", "inspect"])
def test_the_peak_is_that_of_the_budget(tmp_path, kind):
    """Twelve threads decode images of 48 MB each: the budget of 96 MB and one image, not twelve."""
    for name, size in (("small", (8, 8)), ("large", (2000, 1500))):
        (tmp_path / name).mkdir()
        for number in range(12):
            Image.new("RGBA", size, (number, 2, 3, 128)).save(tmp_path / name / f"{number}.png")
    # What is freed goes back to the system, instead of being kept by the allocator for each thread.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    run = subprocess.run(
        [sys.executable, "-c", PEAK, kind], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    image = 16 * 2000 * 1500
    assert int(run.stdout) < 96 * MB + 2 * image  # one is for the rest of the process
