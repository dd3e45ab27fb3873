"""The loader: block number in, examples out, the same every time. There is no state to save and none to restore.

All examples of all epochs form one endless sequence: epoch 0 in its order, then epoch 1 in another. A block is as many
of them as fill its budget of tokens (`packing`). Ranks and accumulation steps take different numbers; resuming is one.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bertkit.errors import RequestError
from bertkit.pretraining.examples.arrays import Examples, Ids
from bertkit.pretraining.examples.masking import UNITS, Corruption, Flags, MaskingKeys, Packed, join_names, mask_packed
from bertkit.pretraining.examples.packing import Packing
from bertkit.pretraining.examples.random import Bits, Ints, Purpose, draw, permute
from bertkit.pretraining.examples.spans import Corpus, Pieces, Ranges, Spans, draw_rolls
from bertkit.pretraining.objectives.objective import Objective
from bertkit.pretraining.objectives.table import check_objective, objective_rows, token_row
from bertkit.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Which examples are made of a corpus. Two equal settings over equal shards give equal examples."""

    length: int = 128  # tokens in the longest sequence, [CLS] and [SEP] included
    objective: tuple[str, ...] = ("mlm",)
    masking: str = "token"  # a row of masking.UNITS
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
        check_objective(self.objective)
        masked, random = self.shares
        _require(self.masking in UNITS, "masking", self.masking, f"is unknown; choose from: {', '.join(UNITS)}")
        _require(self.room >= (2 if self.pairs else 1), "length", self.length, "leaves no room for text")
        _require(0 < self.rate <= 1, "rate", self.rate, "must be over 0 and at most 1")
        _require(0 <= masked <= 1, "mask_share", masked, "must be in [0, 1]")
        for row in self.rows:
            row.check(self.masking, self.shares)
        _require(0 <= random <= 1, "random_share", random, "must be in [0, 1]")
        _require(
            masked + random <= 1, "mask_share + random_share", masked + random, "must be at most 1; lower one of them"
        )
        _require(0 <= self.short_share <= 1, "short_share", self.short_share, "must be in [0, 1]")
        _require(self.block >= 1, "block", self.block, "must be at least 1")
        _require(0 <= self.seed < 2**64, "seed", self.seed, "must be in 0..2^64-1")

    @property
    def rows(self) -> tuple[Objective, ...]:
        """The objectives, in the table's order."""
        return objective_rows(self.objective)

    @property
    def pair_row(self) -> Objective | None:
        """The objective about pairs of texts, if there is one."""
        return next((row for row in self.rows if row.kind == "pair"), None)

    @property
    def pairs(self) -> str | None:
        """Its name."""
        return self.pair_row.name if self.pair_row else None

    @property
    def hides(self) -> bool:
        """Whether tokens are masked or replaced."""
        return token_row(self.objective).hides

    @property
    def causal(self) -> bool:
        """Whether the model has to read from left to right."""
        return any(row.causal for row in self.rows)

    @property
    def room(self) -> int:
        """Tokens of text in the longest sequence."""
        return self.length - (3 if self.pairs else 2)

    @property
    def shares(self) -> tuple[float, float]:
        """How much of the chosen becomes [MASK], and how much a random piece."""
        masked, random = next((row.shares for row in reversed(self.rows) if row.shares), (0.8, 0.1))
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
        inserted = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
        return cls(*inserted, special=(*inserted, tokenizer.pad_id, tokenizer.unknown_id), size=tokenizer.size)


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
        names = settings.hides and UNITS[settings.masking].joins_names
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
        ids, packed = self._with_special_tokens(ranges)
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
        row = self.settings.pair_row
        assert row  # the places are spans
        return row.ranges(self._places, numbers, rolls, self.settings.short_share)

    def _with_special_tokens(self, ranges: Ranges) -> tuple[Ids, Packed]:
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
        """(chosen, corrupted ids); nothing is chosen where the objective hides nothing."""
        if not self.settings.hides:
            return np.empty(0, dtype=np.int64), ids
        purposes = (Purpose.SPANS, Purpose.CHOICE, Purpose.CORRUPTION)
        keys = MaskingKeys(*(self._keys(purpose, epochs, numbers) for purpose in purposes))
        return mask_packed(ids, packed, UNITS[self.settings.masking], keys, self.settings.rate, self._corruption)

    def _keys(self, purpose: Purpose, *counters: Ints) -> Bits:
        return draw(self.settings.seed, purpose, *counters)


def _places(shards: Corpus, settings: DataSettings) -> Pieces | Spans:
    """Where examples lie in the corpus; a corpus that holds none is refused."""
    places: Pieces | Spans
    if settings.pair_row:
        places = Spans.pack(shards, settings.room)
        settings.pair_row.check_spans(places)
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


def _require(condition: bool, name: str, value: object, rule: str) -> None:
    if not condition:
        raise RequestError(f"{name}={value} {rule}")
