"""Runs side by side: one small model leaves a GPU idle, ten of them do not."""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import starmap
from multiprocessing import active_children, get_context
from typing import Any


def results_of(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], jobs: int) -> Iterator[Any]:
    """What `function` returns for each call's arguments, as it comes: here, or in as many processes as `jobs`.

    A call that fails or a SIGTERM ends all of them at once; the caller keeps what was yielded before.
    """
    if jobs == 1:
        yield from starmap(function, calls)
        return
    with terminable(), ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        try:
            for future in as_completed([pool.submit(function, *call) for call in calls]):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.kill()  # a run that is terminated would first save itself
                child.join()
            raise


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM is a KeyboardInterrupt."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
