"""How many threads torch computes with, without changing it for anybody else.

`torch.set_num_threads` sets the count of the calling thread, and also the count that every thread starts with from then
on. Two calls that each change it for a while and put it back can leave the wrong count behind when they overlap. So
what needs another count than its thread has runs on a worker thread that keeps its own count for good.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from threading import Barrier, Lock, Thread
from typing import TypeVar

import torch

from bertkit.engine.cpu import SHORT

Found = TypeVar("Found")
Given = TypeVar("Given")
# Too few tokens to share among threads: threads that wait for each other at every map cost more than they bring, and on
# a machine that is busy with other things they cost dearly (8 tokens of MiniLM on 2 cores at a load of 15: 942 ms, and
# 27 with one).
TOKENS_FOR_ONE_THREAD = SHORT
_CHANGING = Lock()


def with_threads(compute: Callable[[], Found], tokens: int, device: torch.device, most: int | None = None) -> Found:
    """What `compute` gives: on a CPU with one thread for few tokens, else with `most`, or as many as torch has."""
    own = torch.get_num_threads()
    count = 1 if tokens <= TOKENS_FOR_ONE_THREAD else own if most is None else most
    if device.type != "cpu" or count == own:
        return compute()
    return _workers(count, max(1, (os.cpu_count() or 1) // count)).submit(compute).result()


def at_once(compute: Callable[[Given], Found], given: Iterable[Given], threads: int) -> list[Found]:
    """What `compute` gives for each, in order; so many at a time, with one thread each. An error ends the others."""
    waiting = [_workers(1, threads).submit(compute, each) for each in given]
    try:
        return [each.result() for each in waiting]
    finally:
        for each in waiting:
            each.cancel()
        wait(waiting)


def set_own_threads(count: int) -> None:
    """Set the calling thread's count; threads that start later still get the process's count."""
    torch.get_num_threads()  # a thread's first question gives it the process's count, so it has to come before
    with _CHANGING:
        usual = _in_new_thread(torch.get_num_threads)
        torch.set_num_threads(count)
        _in_new_thread(lambda: torch.set_num_threads(usual))


@cache
def _workers(count: int, workers: int) -> ThreadPoolExecutor:
    """So many workers, each with `count` threads of torch, for the rest of the process.

    All start here: while one sets its count, a thread that starts elsewhere would get that count.
    """
    pool, started = (
        ThreadPoolExecutor(workers, "bertkit", initializer=set_own_threads, initargs=(count,)),
        Barrier(workers),
    )
    wait([pool.submit(started.wait) for _ in range(workers)])
    return pool


def _in_new_thread(ask: Callable[[], Found]) -> Found:
    """What a thread says that has just started: it has the count of the process."""
    found: list[Found] = []
    thread = Thread(target=lambda: found.append(ask()))
    thread.start()
    thread.join()
    return found[0]


if hasattr(os, "register_at_fork"):  # a child process has none of its parent's threads
    os.register_at_fork(after_in_child=_workers.cache_clear)
