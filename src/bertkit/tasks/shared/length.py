"""Length policies for texts over the model's limit; training, evaluation and prediction apply the same one.

A policy selects the token positions of each sequence that the model reads; every sequence has the special tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Literal, get_args

from bertkit.data.tables import Location
from bertkit.errors import RequestError
from bertkit.poolings import HeadPooling
from bertkit.settings import Natural, Range, check_fields, pick
from bertkit.text.tokenizer import Encoding
from bertkit.text.windows import windows

Kind = Literal["head", "tail", "head-tail", "windows", "hierarchical"]
WindowPool = Literal["mean", "max"]
TRUNCATING_KINDS: tuple[Kind, ...] = ("head", "tail", "head-tail")
WINDOWED_KINDS: tuple[Kind, ...] = ("windows", "hierarchical")
ALL_KINDS: tuple[Kind, ...] = TRUNCATING_KINDS + WINDOWED_KINDS
MAX_WINDOW_TOKENS = 65_536  # in all windows of one text, which are in one batch: more do not fit into usual memory
MIN_LIMIT = 8  # tokens in a sequence: four special tokens around a pair, and two for each text


@dataclass(frozen=True)
class LengthPolicy:
    """Which part of a long text the model reads: the beginning, the end, both, or all of it in windows.

    `windows` pools the logits of the windows (by `pool`), `hierarchical` averages their [CLS] vectors.
    """

    kind: Kind = "head"
    stride: int | None = None  # overlap of neighboring windows in tokens; None: a quarter of a window
    pool: WindowPool = "mean"

    def __post_init__(self) -> None:
        pick(dict.fromkeys(ALL_KINDS), str(self.kind), "length policy")
        pick(dict.fromkeys(get_args(WindowPool)), str(self.pool), "pooling of windows")
        if self.stride is not None and (type(self.stride) is not int or self.stride < 0):
            raise RequestError(f"stride={self.stride} must be a whole number from 0")

    def to_json(self) -> dict[str, Any]:
        """The fields as stored in bertkit.json."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> "LengthPolicy":
        """The inverse of `to_json`; unknown names and values are refused."""
        if not isinstance(content, Mapping):
            raise RequestError(f"the length policy is {content!r:.60}, not a table of settings")
        for name in content:
            pick({field.name: None for field in fields(cls)}, name, "setting of the length policy")
        return cls(**content)


@dataclass(frozen=True, kw_only=True)
class ReadingSettings:
    """Settings that decide how a text becomes sequences, and a sequence one vector."""

    max_length: Annotated[int, Range(MIN_LIMIT)] | None = None  # tokens in a sequence; None: the model's, 512 at most
    length: str | None = None  # policy: head, tail, head-tail, windows, hierarchical; None: the task's default
    stride: Natural | None = None  # overlap of neighboring windows in tokens; None: the task's default
    window_pool: WindowPool = "mean"  # pooling of the logits of a text's windows
    pooling: Literal["model", HeadPooling] = "model"  # of token vectors; model: the default of the model's family

    def __post_init__(self) -> None:
        check_fields(self)


def check_policy(task: str, policy: LengthPolicy, limit: int = MIN_LIMIT, allowed: Sequence[Kind] = ALL_KINDS) -> None:
    """Refuse a policy that is not `allowed` for the task, and a limit that is too small for a pair of texts."""
    if policy.kind not in allowed:
        raise RequestError(
            f"length policy '{policy.kind}' does not go with '{task}'; choose from: {', '.join(allowed)}"
        )
    if limit < MIN_LIMIT:
        raise RequestError(f"sequences of {limit} tokens leave no room for text; allow {MIN_LIMIT} or more")


def refuse_too_long(location: Location, tokens: int, windows: int, limit: int, remedy: str) -> None:
    """Refuse a text whose windows, of `limit` tokens each, do not fit into memory as one batch."""
    if windows > 1 and windows * limit > MAX_WINDOW_TOKENS:
        raise RequestError(
            f"{location}: a text of {tokens:,} tokens takes {windows:,} windows, "
            f"over the {max(1, MAX_WINDOW_TOKENS // limit)} that go through the model together; {remedy}"
        )


@dataclass(frozen=True)
class Seen:
    """How much of a text the model read."""

    tokens: int  # in the text, without special tokens
    cut: int = 0  # tokens that are in no sequence
    windows: int = 1

    def __str__(self) -> str:
        through = f"read through {self.windows} windows" if self.windows > 1 else ""
        lost = f"{self.cut} of {self.tokens} tokens were cut" if self.cut else ""
        return ", ".join(filter(None, (through, lost))) or "read whole"


def window_spans(length: int, room: int, stride: int | None = None) -> list[tuple[int, int]]:
    """[start, end) of windows of `room` tokens over `length` tokens; the overlap is `stride`, at most three quarters.

    >>> window_spans(10, 4)
    [(0, 4), (3, 7), (6, 10)]
    """
    max_overlap = room - max(1, room // 4)
    return windows(length, room, overlap=room // 4 if stride is None else min(stride, max_overlap))


def truncate(length: int, room: int, kind: Kind) -> list[int]:
    """The `room` positions of 0..length that stay; in head-tail the head gets a quarter (Sun et al. 2019)."""
    if length <= room:
        return list(range(length))
    head = {"head": room, "tail": 0, "head-tail": room // 4}[kind]
    return [*range(head), *range(length - (room - head), length)]


def divide_room(first: int, second: int, room: int) -> tuple[int, int]:
    """Tokens of `room` for each text of a pair: the longer text is cut first, down to half of the room."""
    half = room - room // 2
    if first <= half:
        return first, min(second, room - first)
    if second <= room - half:
        return min(first, room - second), second
    return half, room - half


def sequence_positions(encoding: Encoding, limit: int, policy: LengthPolicy) -> list[tuple[int, ...]]:
    """The token positions of each sequence of a text or pair: one sequence, or one for each window."""
    if len(encoding) <= limit:
        return [tuple(range(len(encoding)))]
    check_policy("", policy, limit)
    special, first, second = positions_by_part(encoding)
    room = limit - len(special)
    if policy.kind in TRUNCATING_KINDS:
        sizes = divide_room(len(first), len(second), room)
        texts = zip((first, second), sizes, strict=True)
        selected = [text[position] for text, size in texts for position in truncate(len(text), size, policy.kind)]
        return [tuple(sorted((*special, *selected)))]
    # Windows run over the longer text of a pair; every window has the shorter one, cut to half of the room.
    shorter, longer = sorted((first, second), key=len)
    shorter = shorter[: room // 2]
    spans = window_spans(len(longer), room - len(shorter), policy.stride)
    return [tuple(sorted((*special, *shorter, *longer[start:end]))) for start, end in spans]


def positions_by_part(encoding: Encoding) -> tuple[list[int], list[int], list[int]]:
    """Positions of the special tokens, of the first text's tokens and of the second text's tokens."""
    positions: dict[int | None, list[int]] = {None: [], 0: [], 1: []}
    for position, part in enumerate(encoding.part):
        positions[part].append(position)
    return positions[None], positions[0], positions[1]


def select_tokens(encoding: Encoding, positions: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(ids, segments) of the tokens at these positions."""
    if len(positions) == len(encoding):
        return encoding.ids, encoding.segments
    return tuple(encoding.ids[i] for i in positions), tuple(encoding.segments[i] for i in positions)


def count_seen(encoding: Encoding, sequences: Sequence[Sequence[int]]) -> Seen:
    """How much of an encoding is in these sequences, given by their token positions."""
    covered = len(set().union(*sequences))
    return Seen(len(encoding) - sum(encoding.special), len(encoding) - covered, len(sequences))
