"""The budget of memory: what is held stays below it, everybody gets a turn."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
