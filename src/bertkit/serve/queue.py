"""The batching policy: which of the waiting sequences go through the model next, as pure functions of their lengths.

Half of every batch goes to the oldest requests, in order, so that none waits for later ones. The other half is shared
evenly, so that a small request passes a large one in the next batch. The remainder goes to the oldest again, so that
the batch fills its budget: `--max-tokens`, or a fair share of the tokens in the queue.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

EFFICIENT_TOKENS = 256  # the smallest batch that one core computes at nearly its full rate


@dataclass(slots=True)
class Waiting:
    """A request in the queue: the encoder it needs, and the lengths of its sequences."""

    encoder: Hashable
    lengths: Sequence[int]
    start: int = 0  # sequences before this one are taken already


def next_batch(waiting: Sequence[Waiting], budget: int) -> list[int]:
    """How many sequences of each request, oldest first, go next: of one encoder, at most `budget` tokens together.

    The encoder is that of the oldest request. A single sequence over the budget goes alone.
    """
    counts = [0] * len(waiting)
    if not waiting:
        return counts
    same_encoder = [i for i, request in enumerate(waiting) if request.encoder == waiting[0].encoder]
    first = waiting[0].lengths[waiting[0].start]
    counts[0] = 1
    left = budget - first
    left -= _fill(waiting, same_encoder, counts, max_tokens=max(0, left - budget // 2))
    share = max(0, left) // len(same_encoder)
    left -= sum(_fill(waiting, [i], counts, max_tokens=share) for i in same_encoder)
    _fill(waiting, same_encoder, counts, max_tokens=left)
    return counts


def fair_budget(tokens: int, workers: int, max_tokens: int) -> int:
    """Most tokens of the next batch of one of several workers, when `tokens` wait or are being computed by any of them.

    Its share if there were one more worker: so that each finds work when it is done, while the clients that it has
    answered send their next requests. A worker that took all waiting tokens would leave the others idle.
    """
    return max_tokens if workers == 1 else min(max_tokens, max(EFFICIENT_TOKENS, tokens // (workers + 1)))


def _fill(waiting: Sequence[Waiting], order: Iterable[int], counts: list[int], max_tokens: int) -> int:
    """Take from each request in turn what fits into `max_tokens`; returns how many tokens were taken."""
    taken = 0
    for i in order:
        if taken >= max_tokens:
            break
        request = waiting[i]
        for index in range(request.start + counts[i], len(request.lengths)):
            if taken + request.lengths[index] > max_tokens:
                break
            taken += request.lengths[index]
            counts[i] += 1
    return taken


def seconds_to_wait(tokens: int, tokens_per_second: float, max_seconds: int = 60) -> int:
    """The value of Retry-After: about when the waiting tokens will be computed, from 1 second to `max_seconds`."""
    if tokens_per_second <= 0:
        return 1
    return max(1, min(max_seconds, round(tokens / tokens_per_second)))
