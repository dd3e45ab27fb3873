"""Texts that are too long: cut with a report, windowed, or refused. Never cut in silence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from bertkit.config import pick
from bertkit.errors import RequestError

TooLong = Literal["truncate", "window", "refuse"]
POLICIES: dict[str, TooLong] = {"truncate": "truncate", "window": "window", "refuse": "refuse"}


@dataclass(frozen=True)
class LengthReport:
    """Which texts were longer than the model takes, and what was done about it."""

    limit: int
    policy: TooLong
    long: tuple[tuple[int, int], ...] = ()  # (number of the text, its tokens)
    where: Callable[[int], str] = "text number {}".format  # how a text is named

    def joined(self, other: "LengthReport") -> "LengthReport":
        """Both reports as one."""
        return replace(self, long=self.long + other.long)

    def __str__(self) -> str:
        if not self.long:
            return f"no text is over {self.limit} tokens"
        index, tokens = max(self.long, key=lambda item: item[1])
        done = "cut to" if self.policy == "truncate" else "read through windows of"
        verb = "text was" if len(self.long) == 1 else "texts were"
        return f"{len(self.long)} {verb} {done} {self.limit} tokens; the longest, {self.where(index)}, has {tokens}"


def windows(length: int, room: int, overlap: int) -> list[tuple[int, int]]:
    """Spans of at most `room` that cover 0..length, neighbors sharing `overlap`; the last one is full too.

    >>> windows(10, 4, 2)
    [(0, 4), (2, 6), (4, 8), (6, 10)]
    """
    if not 0 <= overlap < room:
        raise RequestError(f"an overlap of {overlap} does not fit windows of {room} tokens")
    if length <= room:
        return [(0, length)]
    starts = [*range(0, length - room, room - overlap), length - room]
    return [(start, start + room) for start in starts]


def best_window(spans: Sequence[tuple[int, int]], place: int) -> int:
    """The window in which `place` has the most context on its poorer side; the first of equals."""
    return max(range(len(spans)), key=lambda i: min(place - spans[i][0], spans[i][1] - 1 - place))


def window_cuts(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Where the best window changes, for all places at once: window i serves cuts[i] up to cuts[i + 1].

    Between neighbors that share [c, b) the right one is better once p - c > b - 1 - p.
    """
    inner = [(right[0] + left[1] - 1) // 2 + 1 for left, right in pairwise(spans)]
    return [spans[0][0], *inner, spans[-1][1]]


def report_lengths(
    lengths: Sequence[int],
    limit: int,
    policy: TooLong,
    *,
    first: int = 0,
    where: Callable[[int], str] = "text number {}".format,
) -> LengthReport:
    """Which of the texts, numbered from `first`, are too long; with the policy `refuse` one such is an error."""
    policy = pick(POLICIES, str(policy), "length policy")
    long = tuple((index, length) for index, length in enumerate(lengths, start=first) if length > limit)
    if long and policy == "refuse":
        index, tokens = long[0]
        raise RequestError(
            f"{where(index)} has {tokens} tokens, over the limit of {limit}; shorten it, "
            "or choose to truncate or to window"
        )
    return LengthReport(limit, policy, long, where)
