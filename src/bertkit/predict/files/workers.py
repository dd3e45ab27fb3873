"""Blocks computed in worker processes, or on the machines of a Ray cluster.

The result of a block depends on the block alone, so that it is the same wherever it is computed.
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
Result = TypeVar("Result")
# (a function that starts a block and returns a function that waits for its result, how many blocks may be in progress)
Pool = tuple[Callable[[Block], Callable[[], Result]], int]
MAX_RETRIES = 10  # of a block whose machine was lost


@contextmanager
def processes(
    compute: Callable[[Block], Result], count: int, prepare: Callable[[], object]
) -> Iterator[Pool[Block, Result]]:
    """A pool of `count` processes; each calls `prepare` first, and exits when this process does, even if killed."""
    context = multiprocessing.get_context("spawn")  # torch does not support forking
    lifeline, held = context.Pipe(duplex=False)
    executor = ProcessPoolExecutor(count, context, _start_worker, (lifeline, prepare))
    try:
        yield (lambda block: partial(_result, executor.submit(compute, block))), 2 * count
        executor.shutdown()
    finally:
        held.close()  # after an error, this ends the workers before they finish their blocks
        executor.shutdown(cancel_futures=True)
        lifeline.close()


def _result(future: Future[Result]) -> Result:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise BertkitError(
            "a worker process was killed, perhaps for want of memory; use fewer with --workers"
        ) from error


def _start_worker(lifeline: Connection, prepare: Callable[[], object]) -> None:
    Thread(target=_exit_with, args=(lifeline,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the main process handles it
    prepare()


def _exit_with(lifeline: Connection) -> None:
    """Exit when the other end of the pipe is closed, which is when the main process ends: nothing is ever sent."""
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


@contextmanager
def cluster(compute: Callable[[Block], Result]) -> Iterator[Pool[Block, Result]]:
    """A pool on the Ray cluster of RAY_ADDRESS, or a local one; blocks of a lost machine are computed again."""
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise RequestError("--cluster needs Ray; install it with: pip install 'bertkit[cluster]'") from error
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(log_to_driver=False, logging_level="error")
    try:
        remote = ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(_apply)
        shared = ray.put(compute)
        cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        yield (lambda block: partial(_cluster_result, ray, remote.remote(shared, block))), 2 * cores
    finally:
        if started_here:
            ray.shutdown()


def _apply(compute: Callable[[Block], Result], block: Block) -> Result:
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
