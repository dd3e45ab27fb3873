"""One policy for texts that are too long, the same in training, evaluation and prediction.

A policy says which tokens of an encoding make up the sequences that the model reads; special tokens are in all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Literal

from bertkit.data.examples import Place
from bertkit.errors import RequestError
from bertkit.poolings import HeadPooling
from bertkit.settings import Natural, Range, check_fields, pick
from bertkit.text.tokenizer import Encoding
from bertkit.text.windows import windows

Kind = Literal["head", "tail", "head-tail", "windows", "hierarchical"]
Pool = Literal["mean", "max"]
CUTS: tuple[Kind, ...] = ("head", "tail", "head-tail")
SPREADS: tuple[Kind, ...] = ("windows", "hierarchical")
EVERY_KIND: tuple[Kind, ...] = CUTS + SPREADS
KINDS: dict[str, Kind] = {kind: kind for kind in EVERY_KIND}
MOST_TOKENS = 65_536  # of one text's windows: they go through the model together, and fill what machines have
LEAST = 8  # tokens in a sequence: four special ones around a pair, two for each text
POOLS: dict[str, Pool] = {"mean": "mean", "max": "max"}


@dataclass(frozen=True)
class LengthPolicy:
    """What is read of a long text: its beginning, its end, both, or all of it through windows.

    `windows` pools the logits of the windows (by `pool`), `hierarchical` averages their [CLS] vectors.
    """

    kind: Kind = "head"
    stride: int | None = None  # tokens that neighboring windows share; None: a quarter
    pool: Pool = "mean"

    def __post_init__(self) -> None:
        pick(KINDS, str(self.kind), "length policy")
        pick(POOLS, str(self.pool), "pooling of windows")
        if self.stride is not None and (type(self.stride) is not int or self.stride < 0):
            raise RequestError(f"stride={self.stride} must be a whole number from 0")

    def to_json(self) -> dict[str, Any]:
        """As bertkit.json keeps it."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> "LengthPolicy":
        """What `to_json` gave; anything else is refused by name."""
        if not isinstance(content, Mapping):
            raise RequestError(f"the length policy is {content!r:.60}, not a table of settings")
        for name in content:
            pick({field.name: None for field in fields(cls)}, name, "setting of the length policy")
        return cls(**content)


@dataclass(frozen=True, kw_only=True)
class ReadingSettings:
    """How a text becomes sequences, and a sequence one vector."""

    max_length: Annotated[int, Range(8)] | None = None  # tokens in a sequence; None: the model's, 512 at most
    length: str | None = None  # of texts over it: head, tail, head-tail, windows, hierarchical; None: the task's own
    stride: Natural | None = None  # tokens that neighboring windows share; None: the policy's own
    window_pool: Literal["mean", "max"] = "mean"  # of the logits of a text's windows
    pooling: Literal["model", HeadPooling] = "model"  # model: as its family does it

    def __post_init__(self) -> None:
        check_fields(self)


def check_policy(task: str, policy: LengthPolicy, limit: int = LEAST, possible: Sequence[Kind] | None = None) -> None:
    """Refuse a policy under which the task would lose what it is asked for, and sequences too short for a pair."""
    if possible is not None and policy.kind not in possible:
        raise RequestError(
            f"length policy '{policy.kind}' does not go with '{task}'; choose from: {', '.join(possible)}"
        )
    if limit < LEAST:
        raise RequestError(f"sequences of {limit} tokens leave no room for text; allow {LEAST} or more")


def refuse_too_long(place: Place, tokens: int, windows: int, limit: int, remedy: str) -> None:
    """Stop at a text whose windows, of `limit` tokens each, would not fit into memory together."""
    if windows > 1 and windows * limit > MOST_TOKENS:
        raise RequestError(
            f"{place}: a text of {tokens:,} tokens takes {windows:,} windows, "
            f"over the {max(1, MOST_TOKENS // limit)} that go through the model together; {remedy}"
        )


@dataclass(frozen=True)
class Seen:
    """How much of a text the model saw."""

    tokens: int  # of the text, without [CLS] and [SEP]
    cut: int = 0  # those in no window
    windows: int = 1

    def __str__(self) -> str:
        through = f"read through {self.windows} windows" if self.windows > 1 else ""
        lost = f"{self.cut} of {self.tokens} tokens were cut" if self.cut else ""
        return ", ".join(filter(None, (through, lost))) or "read whole"


def spread(length: int, room: int, stride: int | None = None) -> list[tuple[int, int]]:
    """Windows over 0..length, neighbors sharing `stride` tokens; a stride over three quarters of a window is shortened.

    >>> spread(10, 4)
    [(0, 4), (3, 7), (6, 10)]
    """
    most = room - max(1, room // 4)
    return windows(length, room, overlap=room // 4 if stride is None else min(stride, most))


def kept(length: int, room: int, kind: Kind) -> list[int]:
    """Positions of 0..length that a cut to `room` keeps; of head and tail the head gets a quarter (Sun et al. 2019)."""
    if length <= room:
        return list(range(length))
    head = {"head": room, "tail": 0, "head-tail": room // 4}[kind]
    return [*range(head), *range(length - (room - head), length)]


def shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How much of `room` each text of a pair gets: the longer one is cut first, down to halves."""
    half = room - room // 2
    if first <= half:
        return first, min(second, room - first)
    if second <= room - half:
        return min(first, room - second), second
    return half, room - half


def sequences(encoding: Encoding, limit: int, policy: LengthPolicy) -> list[tuple[int, ...]]:
    """Which tokens of a text or pair go through the model together: one sequence, or one for each window."""
    if len(encoding) <= limit:
        return [tuple(range(len(encoding)))]
    check_policy("", policy, limit)
    special, first, second = layout(encoding)
    room = limit - len(special)
    if policy.kind in CUTS:
        shared = shares(len(first), len(second), room)
        texts = zip((first, second), shared, strict=True)
        stays = [text[position] for text, share in texts for position in kept(len(text), share, policy.kind)]
        return [tuple(sorted((*special, *stays)))]
    # Windows run over the longer text of a pair; the other one is in all of them, at most with its first half window.
    still, moving = sorted((first, second), key=len)
    still = still[: room // 2]
    spans = spread(len(moving), room - len(still), policy.stride)
    return [tuple(sorted((*special, *still, *moving[a:b]))) for a, b in spans]


def layout(encoding: Encoding) -> tuple[list[int], list[int], list[int]]:
    """Positions of the special tokens, of the first text's tokens and of the second's."""
    positions: dict[int | None, list[int]] = {None: [], 0: [], 1: []}
    for position, part in enumerate(encoding.part):
        positions[part].append(position)
    return positions[None], positions[0], positions[1]


def take(encoding: Encoding, positions: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(ids, segments) of the tokens at these positions."""
    if len(positions) == len(encoding):
        return encoding.ids, encoding.segments
    return tuple(encoding.ids[i] for i in positions), tuple(encoding.segments[i] for i in positions)


def seen(encoding: Encoding, chosen: Sequence[Sequence[int]]) -> Seen:
    """How much of an encoding these sequences show."""
    shown = len(set().union(*chosen))
    return Seen(len(encoding) - sum(encoding.special), len(encoding) - shown, len(chosen))
