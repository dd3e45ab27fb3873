"""One process at a time in a folder: two would remove each other's drafts and mix their lines."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertkit.errors import RequestError

PATIENCE = 5.0  # seconds until another run, or the workers of one that was killed, must have let go


@contextmanager
def locked(folder: Path, patience: float) -> Iterator[None]:
    """A folder that exists, for this process alone; the system drops the lock when the processes that share it end.

    Another process has `patience` seconds to let go. Where system or disk has no locks, there is none.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    give_up = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > give_up:
                    raise RequestError(f"another process is writing {folder}; wait for it, or end it") from error
                time.sleep(0.05)
            except OSError:  # some network disks
                break
        yield
    finally:
        os.close(handle)
