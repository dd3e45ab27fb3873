"""Output files and folders: complete or not there, and written by one process at a time.

An output is written to a temporary path beside its target, flushed, then renamed. While a run writes to a folder, it
holds a lock on it: two runs would remove each other's drafts. The operating system releases the lock when the process
ends, even if it is killed, so no lock is ever stale. POSIX systems lock the folder itself. Windows locks only files:
there it is a file beside the folder, removed at the end.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from bertkit.errors import BertkitError, RequestError

try:
    import fcntl
except ImportError:  # Windows
    msvcrt: Any = import_module("msvcrt")
    WINDOWS = True
else:
    WINDOWS = False

LOCK_TIMEOUT = 5.0  # seconds that another run, or the workers of a killed one, have to release a folder
VERSION_KEY = "format_version"
FORMAT_VERSION = 1  # of a run's records


@contextmanager
def whole_file(path: Path | str) -> Iterator[Path]:
    """Yield a path beside `path` to write to; on success it becomes `path`, on failure it is removed."""
    path = Path(path)
    with _beside(path) as workspace:
        draft = workspace / path.name
        yield draft
        flush(draft)
        draft.replace(path)


@contextmanager
def whole_folder(path: Path | str) -> Iterator[Path]:
    """Yield a folder beside `path` to fill; on success it becomes `path`, which must not hold files yet."""
    path = Path(path)
    refuse_to_overwrite(path)
    with _beside(path.absolute()) as workspace:
        draft = workspace / "draft"
        draft.mkdir()
        yield draft
        for file in draft.rglob("*"):
            if file.is_file():
                flush(file)
        if path.is_dir():  # empty, and perhaps a link or a mount point: so the content is moved into it
            for file in draft.iterdir():
                file.rename(path / file.name)
        else:
            draft.rename(path)


def check_format_version(version: object, path: Path) -> None:
    """Refuse what a later bertkit has written; a file without a version is of version 1."""
    if version is not None and (type(version) is not int or not 1 <= version <= FORMAT_VERSION):
        raise RequestError(
            f"{path} has {VERSION_KEY}={version}, and this bertkit reads up to {FORMAT_VERSION}; update bertkit"
        )


def refuse_to_overwrite(path: Path | str) -> None:
    """Refuse an output path unless it is missing, or an empty folder."""
    path = Path(path)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise RequestError(f"{path} exists already; name another place or remove it first")
    refuse_unwritable(path)


def refuse_taken(path: Path, usual_name: str) -> None:
    """Refuse the path of an output file: a folder, a file that exists, or one whose folder cannot be written."""
    if path.is_dir():
        raise RequestError(f"{path} is a folder; name a file in it, such as {path / usual_name}")
    if path.exists():
        raise RequestError(f"{path} exists already; name another place or remove it first")
    refuse_unwritable(path.parent)


def refuse_unwritable(path: Path | str) -> None:
    """Refuse a path under which nothing can be written, before any work is done."""
    parent = Path(path).absolute()
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir():
        raise RequestError(f"{path} cannot be written: {parent} is not a folder")
    if not os.access(parent, os.W_OK):
        raise RequestError(f"{path} cannot be written: {parent} may not be written to")


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        workspace = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}") from error
    # mkdtemp makes private folders; outputs get the permissions of an ordinary file.
    mask = os.umask(0)
    os.umask(mask)
    workspace.chmod(0o777 & ~mask)
    try:
        yield workspace
    except OSError as error:
        raise BertkitError(f"{path} was not written: {error.strerror or error}; nothing is left of it") from error
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def flush(path: Path) -> None:
    """Force a file's content to the disk (fsync)."""
    with path.open("rb+") as handle:  # Windows flushes only what is open for writing
        os.fsync(handle.fileno())


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Lock an output folder, created if it is missing; folders that were created and stayed empty are removed."""
    if not folder.is_dir():
        refuse_to_overwrite(folder)
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        try:
            yield
        finally:
            with suppress(OSError):  # it is not empty
                for path in created:
                    path.rmdir()


@contextmanager
def locked(folder: Path, timeout: float | None = None) -> Iterator[None]:
    """Lock a folder that exists; another process has `timeout` seconds (by default LOCK_TIMEOUT) to release it.

    On disks without locks, such as some network disks, nothing is locked.
    """
    deadline = time.monotonic() + (LOCK_TIMEOUT if timeout is None else timeout)
    path = _lock_file(folder) if WINDOWS else folder
    while (handle := (_lock_by_windows if WINDOWS else _lock_by_posix)(path)) is None:
        if time.monotonic() >= deadline:
            raise RequestError(f"another process is writing to {folder}; wait for it, or stop it")
        time.sleep(0.05)
    try:
        yield
    finally:
        os.close(handle)
        if WINDOWS:
            with suppress(OSError):  # another process has opened it by now
                path.unlink()


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
    """The same for a file on Windows, where a file that is being removed cannot be opened."""
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
