"""Texts that are too long: truncated with a report, read through windows, or refused; never truncated in silence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bertkit.calls import TooLong as TooLong
from bertkit.errors import RequestError
from bertkit.settings import pick

POLICIES: dict[str, TooLong] = {"truncate": "truncate", "window": "window", "refuse": "refuse"}


def numbered(what: str, index: int) -> str:
    """The name of an item of a list in messages, such as "text 1 (counted from 1)" for index 0."""
    return f"{what} {index + 1} (counted from 1)"


name_text = partial(numbered, "text")


@dataclass(frozen=True)
class LengthReport:
    """Which texts were over the model's limit, and what was done with them."""

    limit: int
    policy: TooLong
    long: tuple[tuple[int, int], ...] = ()  # (index of the text, its tokens)
    where: Callable[[int], str] = name_text  # the name of a text in messages

    def joined(self, other: "LengthReport") -> "LengthReport":
        """Both reports combined."""
        return replace(self, long=self.long + other.long)

    def __str__(self) -> str:
        if not self.long:
            return f"no text is over {self.limit} tokens"
        index, tokens = max(self.long, key=lambda item: item[1])
        action = "cut to" if self.policy == "truncate" else "read through windows of"
        verb = "text was" if len(self.long) == 1 else "texts were"
        return f"{len(self.long)} {verb} {action} {self.limit} tokens; the longest, {self.where(index)}, has {tokens}"


def report_lengths(
    lengths: Sequence[int],
    limit: int,
    policy: TooLong,
    *,
    first: int = 0,
    where: Callable[[int], str] = name_text,
) -> LengthReport:
    """Which of the texts, numbered from `first`, are too long; with the policy `refuse` it is an error."""
    policy = pick(POLICIES, str(policy), "length policy")
    long = tuple((index, length) for index, length in enumerate(lengths, start=first) if length > limit)
    if long and policy == "refuse":
        index, tokens = long[0]
        raise RequestError(
            f"{where(index)} has {tokens} tokens, over the limit of {limit}; shorten it, "
            "or set too_long to 'truncate' or 'window'"
        )
    return LengthReport(limit, policy, long, where)
