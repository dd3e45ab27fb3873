"""What a process that does nothing but answer asks of Python."""

import gc
import sys

SWITCH = 0.0005  # seconds that a thread may keep the interpreter when another wants it


def settle() -> None:
    """Call it when all is loaded, before the first request.

    The event loop does not wait 5 ms for a worker thread between two of its operations; and what is there now stays, so
    that looking through it for garbage, a tenth of a second each time, holds nobody up.
    """
    sys.setswitchinterval(SWITCH)
    gc.collect()
    gc.freeze()
