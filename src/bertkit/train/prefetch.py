"""The next step is made while this one is computed."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch

from bertkit.train.loop import Micro

Make = Callable[[int], Sequence[Micro]]


@contextmanager
def prefetching(make: Make, first: int, device: torch.device) -> Iterator[Make]:
    """`make`, one step ahead from `first` on, in a thread of its own; its errors come when a step is asked for."""
    make = beside(make) if device.type == "cuda" else make
    with ThreadPoolExecutor(1) as pool:
        ahead: dict[int, Future[Sequence[Micro]]] = {first: pool.submit(make, first)}

        def get(step: int) -> Sequence[Micro]:
            now = ahead.pop(step, None) or pool.submit(make, step)
            ahead[step + 1] = pool.submit(make, step + 1)
            return now.result()

        yield get


def beside(make: Make) -> Make:
    """The same on a CUDA stream of its own: copies do not queue behind the step that is being computed.

    The loop holds a step's tensors until the step is done, so that their memory is not taken again too early.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def made(step: int) -> Sequence[Micro]:
        with torch.cuda.stream(stream):
            micros = make(step)
        stream.synchronize()
        return micros

    return made
