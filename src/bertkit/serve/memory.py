"""Garbage collection and the heap of a process that only serves."""

import asyncio
import ctypes
import gc
import sys

SWITCH_SECONDS = 0.0005  # that a thread may keep the interpreter when another wants it
GC_THRESHOLD = 20_000  # new objects before Python looks for garbage; its default of 700 is a few requests' own
TRIM_SECONDS = 10.0  # between two trims; one takes about 50 ms, beside the work


def tune_gc() -> None:
    """Call it when all is loaded, before the first request.

    The event loop does not wait 5 ms for a worker thread between two of its operations. What is loaded now is frozen:
    each scan of it for garbage would stop all threads for a tenth of a second. And scans are rare, for requests leave
    no garbage: after every few requests they took a quarter of Python's time, the model's left aside.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])


def trim_heap() -> bool:
    """Return freed memory to the system; whether this system's C library can.

    glibc keeps it, in pieces between what is still in use: batches of every size in turn took a MiniLM's server from
    480 to 1,090 MB; trimmed, it was at 533.
    """
    gc.collect(1)  # what was made since the last time: `tune_gc` made Python's own scans rare
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True


async def keep_trimming(every: float = TRIM_SECONDS) -> None:
    """Trim the heap again and again, in a thread beside the event loop, until cancelled."""
    while await asyncio.to_thread(trim_heap):
        await asyncio.sleep(every)
