"""Blocks → shards by several processes, with a bounded number of blocks in memory.

Workers must not outlive the main process, however it ends: each watches a pipe that only the main process holds open.
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
    """A finished shard."""

    number: int
    read: int  # bytes of the source files
    record: Record
    kept: bool  # made by an earlier run


def make_shards(
    blocks: Iterable[Block], out: Path, names: Sequence[str] | None, processes: int
) -> Generator[MadeShard, None, None]:
    """A shard for each block, in the order in which they finish; those of an earlier run are kept."""
    if processes == 1:
        maker = ShardMaker(out, names)
        for block in blocks:
            yield _kept(out, block) or MadeShard(block.number, block.read, maker.make(block), kept=False)
        return
    waiting: dict[Future[Record], tuple[int, int]] = {}  # (number, bytes read) of the block
    with _workers(out, names, processes) as pool:
        for block in blocks:
            if kept := _kept(out, block):
                yield kept
            else:
                waiting[pool.submit(_make, block)] = block.number, block.read
            if len(waiting) > processes:  # every worker has a block, and one more is ready
                yield from _ready(waiting)
        while waiting:
            yield from _ready(waiting)


def _kept(out: Path, block: Block) -> MadeShard | None:
    record = finished_record(out, block)
    if record is None:
        shutil.rmtree(shard_folder(out, block.number), ignore_errors=True)  # damaged, or from another text
        return None
    return MadeShard(block.number, block.read, record, kept=True)


def _ready(waiting: dict[Future[Record], tuple[int, int]]) -> Iterator[MadeShard]:
    """The shards that are finished; waits for at least one."""
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
    pool = ProcessPoolExecutor(processes, context, _start_worker, (lifeline, held, out, names))
    try:
        yield pool
        pool.shutdown()
    finally:
        held.close()  # after an error, this ends the workers immediately
        pool.shutdown(cancel_futures=True)
        lifeline.close()


_makers: list[ShardMaker] = []  # in a worker process: its only maker


def _start_worker(lifeline: Connection, held: Connection, out: Path, names: Sequence[str] | None) -> None:
    held.close()
    Thread(target=_end_with_main, args=(lifeline,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the main process handles it
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a worker for each core already
    _makers[:] = [ShardMaker(out, names)]


def _end_with_main(lifeline: Connection) -> None:
    """Exit when the pipe closes, which happens when the main process ends; nothing is ever sent."""
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def _make(block: Block) -> Record:
    return _makers[0].make(block)
