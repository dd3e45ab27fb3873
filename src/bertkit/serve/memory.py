"""Memory that was freed goes back to the system: glibc keeps it, in pieces between what is still in use.

A batch of every size in turn took a MiniLM's server from 480 to 1,090 MB; given back, it was at 533.
"""

import asyncio
import ctypes
import gc

SECONDS = 10.0  # between two times; one takes about 50 ms, beside the work


def give_back() -> bool:
    """Give back what is free, and what only refers to itself; whether this system's C library can."""
    gc.collect(1)  # what was made since the last time: Python itself looks for it seldom here (`interpreter.settle`)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True


async def keep_giving_back(every: float = SECONDS) -> None:
    """Give back again and again, in a thread beside the event loop, until cancelled."""
    while await asyncio.to_thread(give_back):
        await asyncio.sleep(every)
