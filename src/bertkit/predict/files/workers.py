"""Blocks through the model, in order: in this process, in several, or on the machines of a Ray cluster.

A block's answer depends on the block alone, so that all three give the same bytes.
"""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, Protocol, TypeVar

from bertkit.errors import BertkitError, RequestError
from bertkit.predict.files.rows import Item


@dataclass(frozen=True)
class Computed:
    """What a block became: bytes for each stream of the output, and what is told about it."""

    parts: Mapping[str, bytes]
    written: int
    faults: tuple[str, ...] = ()
    long: tuple[tuple[str, int], ...] = ()  # place and tokens of each text over the limit


Compute = Callable[[Sequence[Item]], Computed]


class Job(Protocol):
    """What workers are told: small, and the same for all blocks."""

    @property
    def token(self) -> str:
        """Tells jobs apart."""

    def open(self) -> Compute:
        """Load the model."""


# Begins the work on a block; calling what it gives waits for the end.
Submit = Callable[[Sequence[Item]], Callable[[], Computed]]


@dataclass(frozen=True)
class Pool:
    """A place where blocks are computed, and how many may be under way there."""

    submit: Submit
    ahead: int


class HasItems(Protocol):
    """A block on its way."""

    @property
    def items(self) -> Sequence[Item]:
        """Its rows."""


Block = TypeVar("Block", bound=HasItems)


def ordered(blocks: Iterable[Block], pool: Pool) -> Iterator[tuple[Block, Computed]]:
    """Every block with what it became, in the order given; after an error in reading, what is under way comes first."""
    waiting: deque[tuple[Block, Callable[[], Computed]]] = deque()
    trouble: BertkitError | None = None
    source = iter(blocks)
    while trouble is None:
        try:
            block = next(source)
        except StopIteration:
            break
        except BertkitError as error:
            trouble = error
            break
        waiting.append((block, pool.submit(block.items)))
        if len(waiting) > pool.ahead:
            first, result = waiting.popleft()
            yield first, result()
    for first, result in waiting:
        yield first, result()
    if trouble is not None:
        raise trouble


def here(compute: Compute) -> Pool:
    """In this process, each block when its turn comes."""
    return Pool(lambda items: partial(compute, items), ahead=0)


@contextmanager
def processes(job: Job, count: int) -> Iterator[Pool]:
    """In `count` processes of one thread each, which end when this one does, however it does."""
    context = multiprocessing.get_context("spawn")  # torch does not survive a fork
    lifeline, held = context.Pipe(duplex=False)
    executor = ProcessPoolExecutor(count, context, _begin, (lifeline, job))
    try:
        yield Pool(lambda items: partial(_result, executor.submit(_compute, items)), ahead=2 * count)
        executor.shutdown()
    finally:
        held.close()  # after an error this ends the workers in the middle of their blocks
        executor.shutdown(cancel_futures=True)
        lifeline.close()


def _result(future: Future[Computed]) -> Computed:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise BertkitError(
            "a worker process was killed, perhaps for want of memory; use fewer with --workers"
        ) from error


_opened: dict[str, Compute] = {}  # in a worker: the one job it works for


def _begin(lifeline: Connection, job: Job) -> None:
    Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the reader decides
    _open(job)


def _open(job: Job) -> Compute:
    if job.token not in _opened:
        import torch

        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are as many workers as cores already
        torch.set_num_threads(1)
        _opened.clear()
        _opened[job.token] = job.open()
    return _opened[job.token]


def _end_with(lifeline: Connection) -> None:
    """Nothing is ever sent: the end of the pipe is the end of the reader."""
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def _compute(items: Sequence[Item]) -> Computed:
    return next(iter(_opened.values()))(items)


@contextmanager
def cluster(job: Job) -> Iterator[Pool]:
    """On the Ray cluster that RAY_ADDRESS names, or on this machine's; a lost machine's blocks are computed again."""
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise RequestError("--cluster needs Ray; install it with: pip install 'bertkit[cluster]'") from error
    began = not ray.is_initialized()
    if began:
        ray.init(log_to_driver=False, logging_level="error")
    try:
        compute = ray.remote(num_cpus=1, max_retries=LOST_MACHINES)(_compute_there)
        shared = ray.put(job)
        machines = max(1, int(ray.cluster_resources().get("CPU", 1)))
        yield Pool(lambda items: partial(_cluster_result, ray, compute.remote(shared, items)), ahead=2 * machines)
    finally:
        if began:
            ray.shutdown()


LOST_MACHINES = 10  # so often is a block begun again


def _compute_there(job: Job, items: Sequence[Item]) -> Computed:
    return _open(job)(items)


def _cluster_result(ray: Any, reference: Any) -> Computed:
    try:
        computed: Computed = ray.get(reference)
        return computed
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, BertkitError):
            raise error.cause from None
        raise BertkitError(f"the cluster could not compute a block: {error.cause!r}") from error
    except ray.exceptions.RayError as error:
        raise BertkitError(f"the cluster could not compute a block: {str(error).splitlines()[0]}") from error
