"""Files are written whole, folders are swapped, leftovers are known; odd files are refused."""

import errno
import json
import os
import resource
import shutil
import stat
import subprocess
import sys

import numpy as np
import pytest

from keras_sslhsic import files, lock


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def dead_process():
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    return child.pid


def test_file_is_replaced_at_the_end_alone(tmp_path):
    target = tmp_path / "sub" / "a.json"
    with files.written_whole(target, ".json") as temporary:
        assert temporary.name.endswith(".json")
        assert files.is_leftover(temporary)
        temporary.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    assert names(target.parent) == ["a.json"]


def test_error_leaves_what_was_there(tmp_path):
    target = tmp_path / "a"
    target.write_text("old")
    with pytest.raises(RuntimeError), files.written_whole(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_mode_is_that_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        files.write_text(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_links_are_written_through(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "new_link").symlink_to(tmp_path / "made")
    files.write_text(tmp_path / "link", "new")
    files.write_text(tmp_path / "new_link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"
    assert (tmp_path / "new_link").is_symlink() and (tmp_path / "made").read_text() == "new"


def test_circular_link_folder_and_pipe_are_refused(tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    os.mkfifo(tmp_path / "pipe")
    for name, reason in [("circle", "leads nowhere"), ("pipe", "named pipe"), ("", "a folder")]:
        with pytest.raises(OSError, match=reason):
            files.write_text(tmp_path / name, "x")


def test_long_names_are_written(tmp_path):
    target = tmp_path / ("é" * 120)
    files.write_text(target, "x")
    assert names(tmp_path) == [target.name]


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_names_the_file(tmp_path, reason):
    target = tmp_path / "a.h5"
    with (
        pytest.raises(OSError, match=r"a\.h5 cannot be written: .*\.") as raised,
        files.written_whole(target),
    ):
        raise OSError(reason, os.strerror(reason))
    assert "partial" not in str(raised.value)


def test_full_disk_of_hdf5_names_the_file(tmp_path):
    with (
        pytest.raises(OSError, match=r"a\.h5 cannot be written: No space left"),
        files.written_whole(tmp_path / "a.h5"),
    ):
        raise OSError("Can't write data (file write failed: errno = 28, 'No space left on device')")


@pytest.mark.parametrize("reason", ["No space left on device", "File too large"])
def test_reasons_in_words_alone_are_understood(tmp_path, reason):
    with (
        pytest.raises(OSError, match=rf"^{tmp_path / 'folder'} cannot be written: {reason}\.$"),
        files.replaced_folder(tmp_path / "folder") as new,
        files.named(new / "a"),
    ):
        raise OSError(f"{{node}} a.tempstate; {reason} [Op:SaveV2]")


def test_errors_about_other_files_stay(tmp_path):
    with pytest.raises(FileNotFoundError, match="other"), files.written_whole(tmp_path / "a"):
        (tmp_path / "other").read_bytes()


def test_leftovers_of_dead_processes_are_swept(tmp_path):
    host, dead = files._HOST, dead_process()
    mine = tmp_path / f".a.{host}-{dead}-0123abcd.partial.npz"
    folder = tmp_path / f".a.{host}-{dead}-0123abce.partial"
    kept = [
        tmp_path / f".b.{host}-{dead}-0123abcd.partial",  # of another file
        tmp_path / f".a.{host}-{os.getppid()}-0123abcd.partial",  # of a process that lives
        tmp_path / f".a.elsewhere-{dead}-0123abcd.partial",  # of another machine
        tmp_path / ".a.partial",  # somebody's
    ]
    folder.mkdir()
    (folder / "x").touch()
    for path in [mine, *kept]:
        path.touch()
    files.write_text(tmp_path / "a", "x")
    assert names(tmp_path) == sorted(["a", *(path.name for path in kept)])


def test_own_temporary_files_in_use_are_kept(tmp_path):
    with files.written_whole(tmp_path / "a") as first:
        with files.written_whole(tmp_path / "a") as second:
            second.write_text("second")
        first.write_text("first")
    assert (tmp_path / "a").read_text() == "first"


def test_folder_is_swapped(tmp_path):
    target = tmp_path / "folder"
    for content in ("old", "new"):
        with files.replaced_folder(target) as new:
            (new / "sub").mkdir()
            (new / "sub" / "file").write_text(content)
            if content == "new":
                assert (target / "sub" / "file").read_text() == "old"
        assert (target / "sub" / "file").read_text() == content
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize("exchanges", [True, False])
def test_folder_keeps_what_is_not_written(tmp_path, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr(files, "_exchange_names", lambda *names: False)
    target = tmp_path / "folder"
    (target / "deep").mkdir(parents=True)
    (target / "deep" / "own").write_text("kept")
    (target / "link").symlink_to("deep")
    (target / "model").write_text("old")
    with files.replaced_folder(target, keep=True) as new:
        (new / "model").write_text("new")
    assert (target / "model").read_text() == "new"
    assert (target / "deep" / "own").read_text() == "kept"
    assert (target / "link").is_symlink()
    assert names(tmp_path) == ["folder"]


def test_folder_stays_after_an_error(tmp_path):
    target = tmp_path / "folder"
    target.mkdir()
    (target / "a").write_text("old")
    with pytest.raises(RuntimeError), files.replaced_folder(target):
        raise RuntimeError
    assert (target / "a").read_text() == "old"
    assert names(tmp_path) == ["folder"]


def test_folder_moved_aside_is_put_back(tmp_path):
    aside = tmp_path / f".folder.{files._HOST}-{dead_process()}-0123abcd.earlier"
    aside.mkdir()
    (aside / "a").write_text("old")
    files.remove_leftovers(tmp_path / "folder")
    assert (tmp_path / "folder" / "a").read_text() == "old"


def test_current_folder_is_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ValueError, match="current folder"), files.replaced_folder(tmp_path / "here"):
        pass


def test_only_regular_files_of_a_limited_size_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "file").write_bytes(bytes(10))
    for name, reason in [("pipe", "named pipe"), ("link", "device"), ("", "folder"), ("file", "limit of 9")]:
        with pytest.raises(OSError, match=reason):
            files.read_regular(tmp_path / name, 9)
    assert files.read_regular(tmp_path / "file", 10) == bytes(10)
    with pytest.raises(OSError, match="named pipe"):
        files.sha256(tmp_path / "pipe")


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff", "[" * 100_000])
def test_damaged_json_is_one_sentence(tmp_path, text):
    (tmp_path / "a.json").write_text(text, "latin1")
    with pytest.raises(ValueError, match=r"a\.json (is not readable JSON|holds a list).*\."):
        files.read_json(tmp_path / "a.json")


def test_json_is_read_back(tmp_path):
    files.write_json(tmp_path / "a.json", {"a": [1, "é"]})
    assert files.read_json(tmp_path / "a.json") == json.loads((tmp_path / "a.json").read_text())


def test_names_are_shown_escaped():
    assert files.display("a\nb\x1b[31m") == r"a\nb\x1b[31m"
    assert files.display(b"a\xff") == r"a\udcff"
    assert files.display("é 図.png") == "é 図.png"


HOLDER = """
import sys
from keras_sslhsic import lock

with lock.held(sys.argv[1]):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_second_process_is_told_who_works_there(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path / "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"ready\n"
    with (
        pytest.raises(lock.InUseError, match=f"run is in use by process {holder.pid} on "),
        lock.held(tmp_path / "run"),
    ):
        pass
    holder.kill()
    holder.communicate()
    with lock.held(tmp_path / "run"):  # the lock died with its holder
        pass
    with lock.held(tmp_path / "new" / "deep" / "run"):
        pass
    assert names(tmp_path) == []


@pytest.mark.parametrize("kind", ["link", "second name", "pipe", "folder"])
def test_what_has_the_name_of_a_lock_and_is_none_is_neither_followed_nor_written(kind, tmp_path):
    victim, path = tmp_path / "victim.txt", tmp_path / ".run.lock"
    victim.write_text("precious")
    make = {
        "link": lambda: path.symlink_to("victim.txt"),
        "second name": lambda: path.hardlink_to(victim),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }
    make[kind]()
    before = names(tmp_path)
    with (
        pytest.raises(OSError, match=r"\.run\.lock has the name of a lock, .*: remove it\.$"),
        lock.held(tmp_path / "run"),
    ):
        pass
    assert victim.read_text() == "precious" and names(tmp_path) == before


def test_a_lock_is_held_where_the_disk_has_no_room_for_its_holders_name(tmp_path, monkeypatch):
    def full(handle, *arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with (
        lock.held(tmp_path / "run"),
        pytest.raises(lock.InUseError, match="run is in use by another process"),
        lock.held(tmp_path / "run"),
    ):
        pass
    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="run cannot be written: No space left"), lock.held(tmp_path / "run"):
        pass


def test_names_as_long_as_file_systems_take_are_locked_and_written(tmp_path):
    target = tmp_path / ("a" * 250)
    with lock.held(target):
        files.write_text(target, "x")
    assert names(tmp_path) == [target.name]


@pytest.fixture
def largest():
    """Sets how many bytes files may have, as on a disk that gets full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python ignores the signal of it.
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_line_that_does_not_fit_is_an_error_and_the_next_one_is_whole(tmp_path, largest):
    file = tmp_path / "made" / "lines"
    files.append_line(file, b"a" * 40)
    largest(100)
    with pytest.raises(OSError, match="No space left on device"):
        files.append_line(file, b"b" * 70)
    largest(200)
    files.append_line(file, b"c", flush=False)
    assert file.read_bytes().split(b"\n") == [b"a" * 40, b"b" * 59, b"c", b""]


def test_an_array_that_does_not_fit_names_the_file(tmp_path, largest):
    largest(300)  # the header fits
    with (
        pytest.raises(OSError, match=rf"^{tmp_path / 'a.npy'} cannot be written: No space left on device\.$"),
        files.written_whole(tmp_path / "a.npy", ".npy") as temporary,
    ):
        np.save(temporary, np.zeros(1000))
    assert names(tmp_path) == []


def test_a_file_that_takes_no_lines_is_known_before_work(tmp_path):
    files.check_appendable(tmp_path / "new" / "lines")
    assert names(tmp_path) == []
    program = tmp_path / "sleep"  # nobody, root neither, may write to a program that runs
    shutil.copy(shutil.which("sleep"), program)
    files.check_appendable(program)
    running = subprocess.Popen([program, "100"])
    try:
        with pytest.raises(OSError, match=r"sleep cannot be written: Text file busy\.$"):
            files.check_appendable(program)
    finally:
        running.kill()
        running.wait()
