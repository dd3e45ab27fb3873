"""Outputs appear complete or not at all: written to a temporary path beside the target, flushed, then renamed."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertkit.errors import BertkitError, RequestError

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
        if path.is_dir():  # empty, and perhaps a link or a mount point: it stays, its content moves in
            for file in draft.iterdir():
                file.rename(path / file.name)
        else:
            draft.rename(path)


def check_format_version(found: object, path: Path) -> None:
    """Refuse what a later bertkit has written; a file that does not say its version is of version 1."""
    if found is not None and (type(found) is not int or not 1 <= found <= FORMAT_VERSION):
        raise RequestError(
            f"{path} has {VERSION_KEY}={found}, and this bertkit reads up to {FORMAT_VERSION}; update bertkit"
        )


def refuse_to_overwrite(path: Path | str) -> None:
    """An output folder may be missing or empty; anything else is not overwritten."""
    path = Path(path)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise RequestError(f"{path} exists already; name another place or remove it first")
    refuse_unwritable(path)


def refuse_taken(path: Path, usual_name: str) -> None:
    """Refuse a place where an output file cannot go: a folder, a file that exists, a folder that cannot be written."""
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
    # mkdtemp makes private folders; outputs get the rights an ordinary file would have.
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
