"""Being asked to stop: SIGTERM and Ctrl-C wait until the step in hand is finished and saved."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bertkit.train.distributed import Ranks


@contextmanager
def asked_to_stop(place: Ranks) -> Iterator[Callable[[], bool]]:
    """Whether SIGTERM or Ctrl-C has come to any rank; what stood there before is put back at the end."""
    asked: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():  # elsewhere Python hears no signals
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, lambda number, _: asked.append(number))
    try:
        yield lambda: place.any(bool(asked))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
