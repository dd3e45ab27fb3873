"""Runs Python code under the rules of Windows: `python without_posix.py CODE NOTES` writes what was locked to NOTES.

Modules that only POSIX has cannot be imported, folders cannot be opened, files that are open cannot be moved or
removed, and only files that are open for writing can be flushed to the disk.
"""

import errno
import fcntl
import importlib
import json
import os
import select
import shutil
import sys
import types
from pathlib import Path

ONLY_POSIX = ("fcntl", "grp", "posix_ipc", "pwd", "resource", "syslog", "termios", "tty", "uvloop")
ONLY_POSIX_NAMES = ((select, "poll"), (os, "fork"), (os, "sched_getaffinity"), (os, "sysconf"), (os, "getuid"))
# Others' modules, which would take this for Windows itself if they were imported later.
OTHERS = (
    "concurrent.futures.process",
    "subprocess",
    "pyarrow.parquet",
    "rich.progress",
    "scipy.stats",
    "sklearn.linear_model",
)
OTHERS += ("sklearn.model_selection", "tokenizers", "torch.distributed", "torch.nn.parallel", "typer")


def note_locks(notes: Path) -> types.ModuleType:
    """A msvcrt whose `locking` writes down which file it was called for."""
    fake = types.ModuleType("msvcrt")
    fake.LK_NBLCK, fake.LK_UNLCK = 2, 0

    def locking(handle: int, mode: int, count: int) -> None:
        line = {"file": str(Path(f"/proc/self/fd/{handle}").readlink()), "mode": mode, "bytes": count}
        with notes.open("a") as file:
            file.write(json.dumps(line) + "\n")

    fake.locking = locking
    return fake


def is_open(path: object) -> bool:
    """Whether this process has the file open."""
    wanted = os.path.realpath(os.fsdecode(path))
    return any(os.path.realpath(handle) == wanted for handle in Path("/proc/self/fd").iterdir())


def forbid_open_files(name: str) -> None:
    """Let os.NAME refuse files that are open."""
    original = getattr(os, name)

    def careful(path, *args, **options):
        if not isinstance(path, int) and options.get("dir_fd") is None and is_open(path):
            raise PermissionError(errno.EACCES, "it is open", os.fsdecode(path))
        return original(path, *args, **options)

    setattr(os, name, careful)


def forbid_folders(original=os.open):
    """Let os.open refuse folders."""

    def careful(path, *args, **options):
        if Path(path).is_dir() and options.get("dir_fd") is None:
            raise PermissionError(errno.EACCES, "it is a folder", os.fsdecode(path))
        return original(path, *args, **options)

    os.open = careful


def forbid_flushing_what_is_read(original=os.fsync):
    """Let os.fsync refuse files that are open for reading only."""

    def careful(handle):
        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        return original(handle)

    os.fsync = careful


def main() -> None:
    """Change the system, then run the code."""
    code, notes = sys.argv[1:]
    for name in OTHERS:
        importlib.import_module(name)
    shutil._use_fd_functions = False  # as where there are no handles of folders
    for name in ONLY_POSIX:
        sys.modules[name] = None
    sys.modules["msvcrt"] = note_locks(Path(notes))
    for module, name in ONLY_POSIX_NAMES:
        delattr(module, name)
    for name in ("unlink", "remove", "rename", "replace"):
        forbid_open_files(name)
    forbid_folders()
    forbid_flushing_what_is_read()
    exec(code, {"__name__": "__main__"})


if __name__ == "__main__":
    main()
