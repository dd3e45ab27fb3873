"""What a process that does nothing but answer asks of Python."""

import gc
import sys

SWITCH = 0.0005  # seconds that a thread may keep the interpreter when another wants it
# Objects made and not yet gone until Python looks for garbage among them; its usual 700 are a few requests' own.
ALIVE = 20_000


def settle() -> None:
    """Call it when all is loaded, before the first request.

    The event loop does not wait 5 ms for a worker thread between two of its operations; and what is there now stays, so
    that looking through it for garbage, a tenth of a second each time, holds nobody up. And it is not looked for after
    every few requests, which go without leaving any: that took a quarter of Python's time, the model's left aside.
    """
    sys.setswitchinterval(SWITCH)
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALIVE, *gc.get_threshold()[1:])
