"""Runs side by side: one small model leaves a GPU idle, ten of them do not."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import starmap
from multiprocessing import get_context
from typing import Any


def results_of(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], jobs: int) -> Iterator[Any]:
    """What `function` gives for each call's arguments, as it comes: here, or in as many processes as `jobs`.

    A call that fails or a SIGTERM ends all of them; what was given before is the caller's to keep.
    """
    if jobs == 1:
        yield from starmap(function, calls)
        return
    with _terminable(), get_context("spawn").Pool(jobs) as pool:  # leaving it ends the processes
        yield from pool.imap_unordered(_Call(function), calls)


class _Call:
    """A function of one tuple, which other processes can read."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, arguments: tuple[Any, ...]) -> Any:
        return self.function(*arguments)


@contextmanager
def _terminable() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
