"""Long sequences as overlapping windows, and for each position the window with the most context."""

from collections.abc import Sequence
from itertools import pairwise

from bertkit.errors import RequestError


def windows(length: int, room: int, overlap: int) -> list[tuple[int, int]]:
    """Spans of at most `room` that cover 0..length and overlap by `overlap`; the last one is full, too.

    >>> windows(10, 4, 2)
    [(0, 4), (2, 6), (4, 8), (6, 10)]
    """
    if not 0 <= overlap < room:
        raise RequestError(f"an overlap of {overlap} does not fit windows of {room} tokens")
    if length <= room:
        return [(0, length)]
    starts = [*range(0, length - room, room - overlap), length - room]
    return [(start, start + room) for start in starts]


def best_window(spans: Sequence[tuple[int, int]], position: int) -> int:
    """The window in which `position` has the most context on its shorter side; of equal ones the first."""
    return max(range(len(spans)), key=lambda i: min(position - spans[i][0], spans[i][1] - 1 - position))


def window_cuts(spans: Sequence[tuple[int, int]]) -> list[int]:
    """The positions at which the best window changes: window i is best from cuts[i] to cuts[i + 1].

    Of two windows that share [start, end), the right one is better where position - start > end - 1 - position.
    """
    inner = [(right[0] + left[1] - 1) // 2 + 1 for left, right in pairwise(spans)]
    return [spans[0][0], *inner, spans[-1][1]]
