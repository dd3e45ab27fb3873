"""How many threads torch computes with, set for the calling thread alone.

`torch.set_num_threads` sets the count of the calling thread, and also the count that every later thread starts with:
two calls that each change it for a while and put it back can leave the wrong count behind when they overlap. OpenMP and
MKL, with which torch computes, keep a count for each thread, so these libraries are called directly.
"""

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch
from threadpoolctl import LibController, ThreadpoolController

from bertkit.engine.cpu import MAX_ONNX_TOKENS

Input = TypeVar("Input")
Output = TypeVar("Output")
# Up to so many tokens one thread is faster: threads wait for each other at every matrix product, and on a busy machine
# for long (8 tokens of MiniLM on 2 cores at a load of 15: 942 ms with two threads, 27 ms with one).
TOKENS_FOR_ONE_THREAD = MAX_ONNX_TOKENS


@contextmanager
def threads_for(tokens: int, device: torch.device, threads: int | None = None) -> Iterator[None]:
    """Compute on a CPU with one thread for few tokens, else with `threads`, or as many as the calling thread has."""
    current = torch.get_num_threads()
    count = 1 if tokens <= TOKENS_FOR_ONE_THREAD else current if threads is None else threads
    if device.type != "cpu" or count == current:
        yield
        return
    set_thread_count(count)
    try:
        yield
    finally:
        set_thread_count(current)


def map_in_threads(compute: Callable[[Input], Output], inputs: Iterable[Input], threads: int) -> Iterator[Output]:
    """`compute` of each input, in order, in `threads` single-threaded workers. An error cancels the rest."""
    futures = [_single_threads(threads).submit(compute, each) for each in inputs]
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


def set_thread_count(count: int) -> None:
    """Set the calling thread's count, and no other thread's; where torch has no OpenMP library, nothing changes."""
    torch.get_num_threads()  # the first call in a thread gives it the process's count, so it has to come before
    openmp, set_mkl = _openmp(), _mkl_setter()
    if openmp is not None:
        openmp.set_num_threads(count)
    if set_mkl is not None:
        set_mkl(count)


@cache
def _openmp() -> LibController | None:
    """The OpenMP library of torch among those that are loaded: the one whose count torch reports."""
    other = torch.get_num_threads() + 1
    for library in ThreadpoolController().select(user_api="openmp").lib_controllers:
        before = library.get_num_threads()
        library.set_num_threads(other)
        followed = torch.get_num_threads() == other
        library.set_num_threads(before)
        if followed:
            return library
    return None


@cache
def _mkl_setter() -> Callable[[int], object] | None:
    """MKL's function for the calling thread's count, where torch is built with MKL; it is part of torch's library."""
    return getattr(ctypes.CDLL(torch._C.__file__), "MKL_Set_Num_Threads_Local", None)


@cache
def _single_threads(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "bertkit", initializer=set_thread_count, initargs=(1,))


if hasattr(os, "register_at_fork"):  # a child process has none of its parent's threads
    os.register_at_fork(after_in_child=_single_threads.cache_clear)
