"""A function over blocks in other processes, or on the machines of a Ray cluster.

What a block becomes depends on the block alone, so that these and this process give the same bytes.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, TypeVar

from bertkit.errors import BertkitError, RequestError

Block = TypeVar("Block")
Found = TypeVar("Found")
# What begins the work on a block and gives what waits for its end; and how many blocks may be under way.
Pool = tuple[Callable[[Block], Callable[[], Found]], int]
LOST_MACHINES = 10  # how often a block of a lost machine is computed again


@contextmanager
def processes(
    compute: Callable[[Block], Found], count: int, prepare: Callable[[], object]
) -> Iterator[Pool[Block, Found]]:
    """In `count` processes, which each `prepare` first and end when this one does, however it does."""
    context = multiprocessing.get_context("spawn")  # torch does not survive a fork
    lifeline, held = context.Pipe(duplex=False)
    executor = ProcessPoolExecutor(count, context, _start_worker, (lifeline, prepare))
    try:
        yield (lambda block: partial(_result, executor.submit(compute, block))), 2 * count
        executor.shutdown()
    finally:
        held.close()  # after an error this ends the workers in the middle of their blocks
        executor.shutdown(cancel_futures=True)
        lifeline.close()


def _result(future: Future[Found]) -> Found:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise BertkitError(
            "a worker process was killed, perhaps for want of memory; use fewer with --workers"
        ) from error


def _start_worker(lifeline: Connection, prepare: Callable[[], object]) -> None:
    Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the reader decides
    prepare()


def _end_with(lifeline: Connection) -> None:
    """Nothing is ever sent: the end of the pipe is the end of the reader."""
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


@contextmanager
def cluster(compute: Callable[[Block], Found]) -> Iterator[Pool[Block, Found]]:
    """On the Ray cluster that RAY_ADDRESS names, or on this machine's; a lost machine's blocks are computed again."""
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise RequestError("--cluster needs Ray; install it with: pip install 'bertkit[cluster]'") from error
    began = not ray.is_initialized()
    if began:
        ray.init(log_to_driver=False, logging_level="error")
    try:
        remote = ray.remote(num_cpus=1, max_retries=LOST_MACHINES)(_apply)
        shared = ray.put(compute)
        machines = max(1, int(ray.cluster_resources().get("CPU", 1)))
        yield (lambda block: partial(_cluster_result, ray, remote.remote(shared, block))), 2 * machines
    finally:
        if began:
            ray.shutdown()


def _apply(compute: Callable[[Block], Found], block: Block) -> Found:
    return compute(block)


def _cluster_result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, BertkitError):
            raise error.cause from None
        raise BertkitError(f"the cluster could not compute a block: {error.cause!r}") from error
    except ray.exceptions.RayError as error:
        raise BertkitError(f"the cluster could not compute a block: {str(error).splitlines()[0]}") from error
