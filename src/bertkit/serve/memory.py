"""Garbage collection and heap of a server process."""

import asyncio
import ctypes
import gc
import sys

SWITCH_SECONDS = 0.0005  # a thread may keep the interpreter's lock while another waits for it; Python's default: 0.005
GC_THRESHOLD = 20_000  # new objects before a garbage collection; Python's default of 700 is a few requests
TRIM_SECONDS = 10.0  # between two trims; one takes about 50 ms, in a thread


def tune_gc() -> None:
    """Tune the interpreter for serving; call it when all models are loaded, before the first request.

    The event loop then does not wait 5 ms for a worker thread. Objects loaded so far are frozen: each collection over
    them would stop all threads for 0.1 s. Collections become rare, since requests leave no reference cycles: with the
    default threshold they took a quarter of the time spent in Python (the model's left aside).
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])


def trim_heap() -> bool:
    """Return freed memory to the operating system; False where the C library has no `malloc_trim`.

    glibc keeps freed memory in fragments: batches of every size in turn took a MiniLM server from 480 to 1,090 MB;
    trimmed, it was at 533.
    """
    gc.collect(1)  # young objects: `tune_gc` made Python's own collections rare
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True


async def keep_trimming(every: float = TRIM_SECONDS) -> None:
    """Trim the heap periodically, in a thread beside the event loop, until cancelled."""
    while await asyncio.to_thread(trim_heap):
        await asyncio.sleep(every)
