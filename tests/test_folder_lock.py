"""One process at a time in a folder, on every system; a process that is killed leaves no lock behind."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
import types
from contextlib import suppress
from pathlib import Path

import pytest

from bertkit import files
from bertkit.errors import RequestError
from bertkit.files import claimed, locked

HOLDER = """
import sys
from pathlib import Path
from bertkit.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def held_by_another(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def like_windows(monkeypatch):
    """Locks of files, by a msvcrt that is made of POSIX's locks; what is tried is noted."""
    tried = []

    def locking(handle, mode, count):
        tried.append((str(Path(f"/proc/self/fd/{handle}").readlink()), mode, count))
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    monkeypatch.setattr(files, "WINDOWS", True)
    monkeypatch.setattr(files, "msvcrt", types.SimpleNamespace(LK_NBLCK=2, locking=locking), raising=False)
    return tried


def test_another_process_is_refused_until_the_first_is_killed(tmp_path):
    holder = held_by_another(tmp_path)
    with pytest.raises(RequestError, match=f"another process is writing to {tmp_path}; wait for it, or stop it"):
        locked(tmp_path, timeout=0.0).__enter__()
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with locked(tmp_path, timeout=0.0):
        assert list(tmp_path.iterdir()) == [], "the folder itself is the lock"


def test_a_process_that_ends_in_time_is_waited_for(tmp_path):
    holder = held_by_another(tmp_path)
    holder.stdin.close()  # from now on it is ending
    with locked(tmp_path, timeout=60.0):
        pass
    assert holder.wait() == 0


def test_on_windows_a_file_beside_the_folder_is_locked_and_removed(tmp_path, like_windows):
    folder, file = tmp_path / "run", tmp_path / ".run.lock"
    folder.mkdir()
    with locked(folder, timeout=0.0):
        assert like_windows == [(str(file), 2, 1)]
        with pytest.raises(RequestError, match="another process is writing to .*run; wait"), locked(folder, 0.0):
            pass
        assert list(folder.iterdir()) == []
    assert not file.exists()
    with locked(folder, timeout=0.0):
        pass


def test_on_windows_a_lock_file_that_is_being_removed_is_as_one_that_is_held(tmp_path, like_windows, monkeypatch):
    opened, refused = os.open, iter([PermissionError()])

    def once_refused(*words):
        if error := next(refused, None):
            raise error
        return opened(*words)

    monkeypatch.setattr(os, "open", once_refused)
    with locked(tmp_path, timeout=60.0):
        assert len(like_windows) == 1


@pytest.mark.parametrize("there", ["a", ""])
def test_folders_that_were_made_for_nothing_are_removed(tmp_path, there):
    out = tmp_path / "a" / "b" / "run"
    (tmp_path / there).mkdir(exist_ok=True)
    with pytest.raises(RequestError), claimed(out):
        assert out.is_dir()
        raise RequestError("no such file")
    assert [path.name for path in tmp_path.iterdir()] == ["a"] * bool(there)
    with claimed(out):
        (out / "result").touch()
    assert (out / "result").exists()


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(RequestError, match="run exists already; name another place"):
        claimed(tmp_path / "run").__enter__()


def test_a_folder_that_its_first_owner_removes_is_made_again(tmp_path):
    """The second one waits for the lock while the first fails and removes the folder that it had made."""
    out, entered, leave, held = tmp_path / "run", threading.Event(), threading.Event(), []

    def first():
        with suppress(RequestError), claimed(out):
            entered.set()
            leave.wait(20)
            raise RequestError("no such file")

    def second():
        with claimed(out):
            held.append(out.is_dir())
            (out / "result").touch()

    one, other = threading.Thread(target=first), threading.Thread(target=second)
    one.start()
    entered.wait(20)
    other.start()
    time.sleep(0.2)  # the second one has tried at least once
    leave.set()
    one.join(20)
    other.join(20)
    assert held == [True]
    assert (out / "result").exists()
