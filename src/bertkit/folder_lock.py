"""One process at a time in a folder: two would remove each other's drafts and mix their lines.

The operating system holds the lock and drops it when the process ends, even if it is killed, so no lock is ever stale.
POSIX systems lock the folder itself. Windows locks files only: there it is a file beside the folder, removed at the
end.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from bertkit.errors import RequestError
from bertkit.files import refuse_to_overwrite

try:
    import fcntl
except ImportError:  # Windows
    msvcrt: Any = import_module("msvcrt")
    WINDOWS = True
else:
    WINDOWS = False

PATIENCE = 5.0  # seconds until another run, or the workers of one that was killed, must have let go


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold an output folder, which is created if it is missing; what was created and stayed empty is removed again."""
    if not folder.is_dir():
        refuse_to_overwrite(folder)
    created = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        try:
            yield
        finally:
            with suppress(OSError):  # it is not empty
                for place in created:
                    place.rmdir()


@contextmanager
def locked(folder: Path, patience: float | None = None) -> Iterator[None]:
    """Hold a folder that exists; another process has `patience` seconds to let go (by default PATIENCE).

    Where the disk has no locks, as some network disks, there is none.
    """
    give_up = time.monotonic() + (PATIENCE if patience is None else patience)
    place = _lock_file(folder) if WINDOWS else folder
    while (handle := (_lock_by_windows if WINDOWS else _lock_by_posix)(place)) is None:
        if time.monotonic() >= give_up:
            raise RequestError(f"another process is writing to {folder}; wait for it, or stop it")
        time.sleep(0.05)
    try:
        yield
    finally:
        os.close(handle)
        if WINDOWS:
            with suppress(OSError):  # another process has opened it by now
                place.unlink()


def _lock_file(folder: Path) -> Path:
    folder = folder.resolve()
    return folder.with_name(f".{folder.name}.lock")


def _lock_by_posix(folder: Path) -> int | None:
    """A handle that holds the lock until it is closed; None if another process holds it or has removed the folder."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        same = os.path.samestat(os.fstat(handle), folder.stat())
    except (BlockingIOError, FileNotFoundError):
        same = False
    except OSError:  # some network disks
        same = True
    if not same:
        os.close(handle)
    return handle if same else None


def _lock_by_windows(file: Path) -> int | None:
    """The same; a file that is being removed right now cannot be opened."""
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT)
    except PermissionError:
        return None
    try:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    except OSError:
        os.close(handle)
        return None
    return handle
