"""The loader: block number in, examples out, the same every time. There is no state to save and none to restore.

All examples of all epochs form one endless sequence: epoch 0 in its order, then epoch 1 in another. A block is as many
of them as fill its budget of tokens (`packing`). Ranks and accumulation steps take different numbers; resuming is one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import RequestError
from bertkit.pretraining.masking import UNITS, Corruption, Flags, Packed, choose_packed, corrupt_packed, join_names
from bertkit.pretraining.next_sentence import check_documents, next_sentence_ranges
from bertkit.pretraining.packing import Limits, Packing
from bertkit.pretraining.random import Bits, Floats, Ints, Purpose, draw, permute
from bertkit.pretraining.sentence_order import sentence_order_ranges
from bertkit.pretraining.spans import Corpus, Pieces, Ranges, Rolls, Spans, draw_rolls
from bertkit.text.tokenizer import Tokenizer

Ids = NDArray[np.int32]
WORDS = ("mlm", "rtd", "causal")  # what is asked of tokens: exactly one of these
FILL = "fill"  # besides rtd: some blanks are left to the discriminator, which then fills them too
# What is asked of pairs, one of these or none: (spans, numbers, rolls, share of short ones) -> ranges.
PAIRS: dict[str, Callable[[Spans, Ints, Rolls[Floats], float], Ranges]] = {
    "nsp": next_sentence_ranges,
    "sop": sentence_order_ranges,
}


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Which examples are made of a corpus. Two equal settings over equal shards give equal examples."""

    length: int = 128  # tokens in the longest sequence, [CLS] and [SEP] included
    objective: tuple[str, ...] = ("mlm",)
    masking: Literal["token", "whole-word", "n-gram", "entity"] = "token"
    rate: float = 0.15
    mask_share: float | None = None  # of the chosen; None is the paper's: 0.8, or 0.85 for rtd; 1 with fill
    random_share: float | None = None  # None is the paper's: 0.1, or 0 for rtd; the rest stays as it is
    static: bool = False  # True: the same sequences and masks in every epoch, only their order changes
    short_share: float = 0.1  # of pairs, made shorter than they need be
    block: int = (
        256  # sequences of full length in a block: it holds block x length tokens, in more sequences if shorter
    )
    seed: int = 0

    def __post_init__(self) -> None:
        _check_objective(self.objective)
        masked, random = self.shares
        _require(self.masking in UNITS, "masking", self.masking, f"is unknown; choose from: {', '.join(UNITS)}")
        _require(self.room >= (2 if self.pairs else 1), "length", self.length, "leaves no room for text")
        _require(0 < self.rate <= 1, "rate", self.rate, "must be over 0 and at most 1")
        _require(0 <= masked <= 1, "mask_share", masked, "must be in [0, 1]")
        _require(
            FILL not in self.objective or masked == 1, "mask_share", masked, "must be 1 with fill, which asks blanks"
        )
        _require(0 <= random <= 1, "random_share", random, "must be in [0, 1]")
        _require(
            masked + random <= 1, "mask_share + random_share", masked + random, "must be at most 1; lower one of them"
        )
        _require(0 <= self.short_share <= 1, "short_share", self.short_share, "must be in [0, 1]")
        _require(self.block >= 1, "block", self.block, "must be at least 1")
        _require(0 <= self.seed < 2**64, "seed", self.seed, "must be in 0..2^64-1")

    @property
    def pairs(self) -> str | None:
        """Which question is asked about two texts: "nsp", "sop" or none."""
        return next((name for name in self.objective if name in PAIRS), None)

    @property
    def room(self) -> int:
        """Tokens of text in the longest sequence."""
        return self.length - (3 if self.pairs else 2)

    @property
    def shares(self) -> tuple[float, float]:
        """How much of the chosen becomes [MASK], and how much a random piece."""
        masked, random = (0.85, 0.0) if "rtd" in self.objective else (0.8, 0.1)
        masked = 1.0 if FILL in self.objective else masked  # what is left to fill must be a blank
        return (
            masked if self.mask_share is None else self.mask_share,
            random if self.random_share is None else self.random_share,
        )


@dataclass(frozen=True)
class TokenIds:
    """What the loader knows of a vocabulary."""

    cls: int
    sep: int
    mask: int
    special: tuple[int, ...]  # never chosen and never a random piece
    size: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "TokenIds":
        """The ids of a tokenizer."""
        wiring = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
        return cls(*wiring, special=(*wiring, tokenizer.pad_id, tokenizer.unknown_id), size=tokenizer.size)


@dataclass(frozen=True, eq=False)
class Examples:
    """N sequences, their T tokens end to end with [CLS] and [SEP] in place."""

    ids: Ids  # T, corrupted
    segments: Ids  # T: 0 up to the first [SEP], 1 behind it
    lengths: Ints  # N
    chosen: Ints  # M positions in `ids`, in order; none for causal
    targets: Ids  # M: what stood there
    pair_labels: Ints | None  # N: 0 in the text's order, 1 not (nsp: from another document; sop: swapped)
    epoch: int  # of the first example
    limits: Limits | None = None  # what no other block of the source exceeds either


class ExampleSource:
    """All examples of a corpus. `block` is a pure function of its number: call it in any order, anywhere."""

    def __init__(self, shards: Corpus, settings: DataSettings, ids: TokenIds | None = None) -> None:
        self.shards = shards
        self.settings = settings
        self.ids = TokenIds.of(shards.tokenizer) if ids is None else ids
        self._places = _places(shards, settings)
        self._special = np.zeros(self.ids.size, dtype=np.bool_)
        self._special[list(self.ids.special)] = True
        pieces = np.flatnonzero(~self._special).astype(np.int32)
        self._corruption = Corruption(self.ids.mask, pieces, *settings.shares)
        names = settings.masking == "entity" and self._masks
        self._names = np.ascontiguousarray(shards.entities.T) if names else None

    def examples_in(self, epoch: int) -> int:
        """How many examples an epoch has: as many as any other."""
        return len(self._places)

    @cached_property
    def packing(self) -> Packing:
        """Which examples share a block."""
        return Packing(self._lengths, self.settings.length, self.settings.block)

    @property
    def blocks_in_epoch(self) -> float:
        """How many blocks hold as many examples as an epoch has; they need not begin where it does."""
        return len(self._places) * self.packing.blocks / self.packing.examples

    def block(self, number: int) -> Examples:
        """The examples of one block."""
        return replace(self.examples(self._members(number)), limits=self.packing.limits)

    def examples(self, index: Ints) -> Examples:
        """Any examples of the endless sequence; what they are does not depend on blocks."""
        numbers, epochs, fresh = self._order(index)
        ranges = self._ranges(numbers, fresh)
        ids, packed = self._wired(ranges)
        chosen, corrupted = self._mask(ids, packed, numbers, fresh)
        segments, lengths = _segments(ranges.lengths), np.diff(packed.offsets)
        return Examples(corrupted, segments, lengths, chosen, ids[chosen], ranges.labels, int(epochs[0]))

    def ranges(self, number: int) -> Ranges:
        """Where in the corpus the text of a block lies."""
        numbers, _, fresh = self._order(self._members(number))
        return self._ranges(numbers, fresh)

    def _members(self, number: int) -> Ints:
        if number < 0:
            raise RequestError(f"there is no block {number}; they count from 0")
        return self.packing.block(number)

    def _lengths(self, index: Ints) -> Ints:
        """How long examples of the endless sequence are, [CLS] and [SEP] included."""
        numbers, _, fresh = self._order(index)
        lengths: Ints = (self._ranges(numbers, fresh).lengths + 1).sum(axis=1) + 1
        return lengths

    def _order(self, index: Ints) -> tuple[Ints, Ints, Ints]:
        """Which examples of which epochs these are, and the epochs that cuts and masks are drawn for."""
        epochs, inside = np.divmod(index, len(self._places))
        numbers = permute(self._keys(Purpose.ORDER, epochs), len(self._places), inside)
        return numbers, epochs, np.zeros_like(epochs) if self.settings.static else epochs

    def _ranges(self, numbers: Ints, epochs: Ints) -> Ranges:
        if isinstance(self._places, Pieces):
            return self._places.ranges(numbers, self._keys(Purpose.CUTS, epochs))
        rolls = draw_rolls(self._keys(Purpose.PAIRS, epochs, numbers))
        assert self.settings.pairs
        return PAIRS[self.settings.pairs](self._places, numbers, rolls, self.settings.short_share)

    def _wired(self, ranges: Ranges) -> tuple[Ids, Packed]:
        """The text with [CLS] and [SEP] in place, and what a choice sees of it."""
        text, words = self.shards.gather(ranges.starts.ravel(), ranges.lengths.ravel())
        starts = words != 0
        if self._names is not None:
            starts = _with_names(starts, ranges, self._names)
        is_text, separators, offsets = _layout(ranges.lengths)
        ids = np.full(len(is_text), self.ids.cls, dtype=np.int32)
        ids[separators] = self.ids.sep
        ids[is_text] = text
        unit_starts = np.zeros(len(ids), dtype=np.bool_)
        unit_starts[is_text] = starts
        return ids, Packed(~self._special[ids], unit_starts, offsets)

    def _mask(self, ids: Ids, packed: Packed, numbers: Ints, epochs: Ints) -> tuple[Ints, Ids]:
        """(chosen, corrupted ids); left to right nothing is chosen."""
        if not self._masks:
            return np.empty(0, dtype=np.int64), ids
        units = UNITS[self.settings.masking](packed, self._keys(Purpose.SPANS, epochs, numbers))
        chosen = choose_packed(packed, units, self._keys(Purpose.CHOICE, epochs, numbers), self.settings.rate)
        keys = self._keys(Purpose.CORRUPTION, epochs, numbers)
        return chosen, corrupt_packed(ids, chosen, packed.offsets, keys, self._corruption)

    @property
    def _masks(self) -> bool:
        return "causal" not in self.settings.objective

    def _keys(self, purpose: Purpose, *counters: Ints) -> Bits:
        return draw(self.settings.seed, purpose, *counters)


def _places(shards: Corpus, settings: DataSettings) -> Pieces | Spans:
    """Where examples lie in the corpus; a corpus that holds none is refused."""
    places: Pieces | Spans
    if settings.pairs:
        places = Spans.pack(shards, settings.room)
        if settings.pairs == "nsp":
            check_documents(places)
    else:
        places = Pieces(np.asarray(shards.sentence_starts)[shards.document_starts], settings.room)
    if not len(places):
        raise RequestError("the shards hold no text to make examples of; make them from a corpus that has some")
    return places


def _layout(parts: Ints) -> tuple[Flags, Ints, Ints]:
    """T flags for text, the rest being [CLS] and [SEP]; where the [SEP]s are; where sequences start, and the end."""
    offsets = np.concatenate(([0], np.cumsum((parts + 1).sum(axis=1) + 1)))
    separators = offsets[:-1, None] + np.cumsum(parts + 1, axis=1)
    is_text = np.ones(offsets[-1], dtype=np.bool_)
    is_text[offsets[:-1]] = False
    is_text[separators] = False
    return is_text, separators, offsets


def _segments(parts: Ints) -> Ids:
    """T: which part of its sequence each token belongs to; a [SEP] belongs to the part that it ends."""
    numbers = np.arange(parts.shape[1], dtype=np.int32)
    return np.repeat(np.tile(numbers, len(parts)), (parts + 1 + (numbers == 0)).ravel())


def _with_names(starts: Flags, ranges: Ranges, names: Ints) -> Flags:
    """Word starts of the gathered text with the names in it joined; a name cut by a range is the part inside."""
    begins, lengths = ranges.starts.ravel(), ranges.lengths.ravel()
    first = np.searchsorted(names[1], begins, side="right")
    counts = np.searchsorted(names[0], begins + lengths, side="left") - first
    which = np.repeat(np.arange(len(begins)), counts)
    found = names[:, np.arange(len(which)) + np.repeat(first - (np.cumsum(counts) - counts), counts)]
    places = np.cumsum(lengths) - lengths
    low, high = begins[which], (begins + lengths)[which]
    return join_names(starts, np.clip(found, low, high) - low + places[which], places)


def _check_objective(objective: Sequence[str]) -> None:
    known = (*WORDS, FILL, *PAIRS)
    listed = ", ".join(objective)
    for name in objective:
        _require(name in known, "objective", name, f"is unknown; choose from: {', '.join(known)}")
    _require(len(set(objective)) == len(objective), "objective", listed, "names one of them twice")
    words, pairs = ([name for name in objective if name in names] for names in (WORDS, PAIRS))
    _require(len(words) == 1, "objective", listed, f"needs exactly one of: {', '.join(WORDS)}")
    _require(len(pairs) <= 1, "objective", listed, "asks two questions about each pair; choose nsp or sop")
    _require(not pairs or words != ["causal"], "objective", listed, "reads one text; leave out the pair")
    _require(not pairs or words != ["rtd"], "objective", listed, "judges tokens and never a pair; leave out the pair")
    _require(
        FILL not in objective or words == ["rtd"], "objective", listed, "has fill without rtd; mlm fills by itself"
    )


def _require(condition: bool, name: str, value: object, rule: str) -> None:
    if not condition:
        raise RequestError(f"{name}={value} {rule}")
