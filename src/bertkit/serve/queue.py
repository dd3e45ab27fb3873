"""Which of the waiting sequences go through the model next: pure functions of their lengths.

Half of every batch belongs to the oldest requests, in order, so that none waits for those that came after it. The
other half is shared evenly, so that a small request passes a large one in the next batch. What is left goes to the
oldest again, so that a batch is as large as its budget lets it be: `--max-tokens`, or a fair part of what there is.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

EFFICIENT_TOKENS = 256  # tokens that go through a model on one core at nearly its full rate


@dataclass(slots=True)
class Waiting:
    """A request in the queue: the encoder it needs, and the lengths of its sequences, of which `start` are gone."""

    encoder: Hashable
    lengths: Sequence[int]
    start: int = 0


def next_batch(waiting: Sequence[Waiting], budget: int) -> list[int]:
    """How many sequences of each request, oldest first, go next: of one encoder, at most `budget` tokens together.

    A single sequence over the budget goes alone. The encoder is the oldest request's.
    """
    counts = [0] * len(waiting)
    if not waiting:
        return counts
    own = [i for i, request in enumerate(waiting) if request.encoder == waiting[0].encoder]
    first = waiting[0].lengths[waiting[0].start]
    counts[0] = 1
    left = budget - first
    left -= _fill(waiting, own, counts, most=max(0, left - budget // 2))
    share = max(0, left) // len(own)
    left -= sum(_fill(waiting, [i], counts, most=share) for i in own)
    _fill(waiting, own, counts, most=left)
    return counts


def fair_budget(tokens: int, workers: int, most: int) -> int:
    """How many tokens one of several workers takes at once, when `tokens` wait or are being computed by any of them.

    As much as would be its part if one more worked: so each finds something when it is done, and what it has answered
    is asked again meanwhile. Who takes all that waits leaves the others nothing but what trickles in.
    """
    return most if workers == 1 else min(most, max(EFFICIENT_TOKENS, tokens // (workers + 1)))


def _fill(waiting: Sequence[Waiting], order: Iterable[int], counts: list[int], most: int) -> int:
    """Take from each request in turn what fits into `most` tokens; returns how many were taken."""
    taken = 0
    for i in order:
        if taken >= most:
            break
        request = waiting[i]
        for place in range(request.start + counts[i], len(request.lengths)):
            if taken + request.lengths[place] > most:
                break
            taken += request.lengths[place]
            counts[i] += 1
    return taken


def seconds_to_wait(tokens: int, tokens_per_second: float, most: int = 60) -> int:
    """What Retry-After says: about when the tokens that wait now will be gone, from 1 second to `most`."""
    if tokens_per_second <= 0:
        return 1
    return max(1, min(most, round(tokens / tokens_per_second)))
