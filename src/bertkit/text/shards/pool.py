"""Blocks → shards by several processes, a few blocks in flight at a time.

Workers must not outlive the reader, however it ends: each watches a pipe that only the reader holds open.
"""

import multiprocessing
import os
import shutil
import signal
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

from bertkit.errors import BertkitError
from bertkit.text.shards.maker import Block, Record, ShardMaker, finished_record
from bertkit.text.shards.reader import shard_folder


@dataclass(frozen=True)
class MadeShard:
    """The record of a shard, and how many bytes of the source files went into it; kept: an earlier run made it."""

    number: int
    read: int
    record: Record
    kept: bool


def make_shards(
    blocks: Iterable[Block], out: Path, names: Sequence[str] | None, processes: int
) -> Generator[MadeShard, None, None]:
    """A shard for each block, in the order in which they are finished; those of an earlier run are kept."""
    if processes == 1:
        maker = ShardMaker(out, names)
        for block in blocks:
            yield _kept(out, block) or MadeShard(block.number, block.read, maker.make(block), kept=False)
        return
    waiting: dict[Future[Record], tuple[int, int]] = {}
    with _workers(out, names, processes) as pool:
        for block in blocks:
            if kept := _kept(out, block):
                yield kept
            else:
                waiting[pool.submit(_make, block)] = block.number, block.read
            if len(waiting) > processes:  # every worker has one, and the next is ready
                yield from _ready(waiting)
        while waiting:
            yield from _ready(waiting)


def _kept(out: Path, block: Block) -> MadeShard | None:
    record = finished_record(out, block)
    if record is None:
        shutil.rmtree(shard_folder(out, block.number), ignore_errors=True)  # damaged, or of another text
        return None
    return MadeShard(block.number, block.read, record, kept=True)


def _ready(waiting: dict[Future[Record], tuple[int, int]]) -> Iterator[MadeShard]:
    """Wait for at least one shard."""
    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
        number, read = waiting.pop(future)
        try:
            yield MadeShard(number, read, future.result(), kept=False)
        except BrokenProcessPool as error:
            raise BertkitError(
                "a worker process was killed, perhaps for want of memory; use fewer processes"
            ) from error


@contextmanager
def _workers(out: Path, names: Sequence[str] | None, processes: int) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context()
    lifeline, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(processes, context, _begin_worker, (lifeline, held, out, names))
    try:
        yield pool
        pool.shutdown()
    finally:
        held.close()  # after an error this ends the workers in the middle of their blocks
        pool.shutdown(cancel_futures=True)
        lifeline.close()


_makers: list[ShardMaker] = []  # in a worker: its one maker


def _begin_worker(lifeline: Connection, held: Connection, out: Path, names: Sequence[str] | None) -> None:
    held.close()
    Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the reader decides
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are as many workers as cores already
    _makers[:] = [ShardMaker(out, names)]


def _end_with(lifeline: Connection) -> None:
    """Nothing is ever sent: the end of the pipe is the end of the reader."""
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def _make(block: Block) -> Record:
    return _makers[0].make(block)
