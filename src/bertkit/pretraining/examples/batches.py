"""The loader: the examples of a block are a pure function of its number, so there is no state to save or restore.

The examples of all epochs form one endless sequence: epoch 0 in its order, then epoch 1 in another. A block has as many
examples as fill its budget of tokens (`packing`). Ranks and accumulation steps read different block numbers.
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
    """How examples are made from a corpus. Equal settings and equal shards give equal examples."""

    length: int = 128  # tokens in the longest sequence, [CLS] and [SEP] included
    objective: tuple[str, ...] = ("mlm",)
    masking: str = "token"  # a row of masking.UNITS
    rate: float = 0.15
    mask_share: float | None = (
        None  # share of the chosen tokens that become [MASK]; None: 0.8, 0.85 for rtd, 1 with fill
    )
    random_share: float | None = None  # share that becomes a random token; None: 0.1, 0 for rtd. The rest is kept
    static: bool = False  # True: the same sequences and masks in every epoch, only their order changes
    short_share: float = 0.1  # share of pairs that are made shorter than `length`
    block: int = 256  # a block has block x length tokens: this many sequences of full length, or more shorter ones
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
        """The objective on pairs of texts, if there is one."""
        return next((row for row in self.rows if row.kind == "pair"), None)

    @property
    def pairs(self) -> str | None:
        """The name of the objective on pairs of texts, if there is one."""
        return self.pair_row.name if self.pair_row else None

    @property
    def masks_tokens(self) -> bool:
        """Whether the objective masks or replaces tokens."""
        return token_row(self.objective).masks_tokens

    @property
    def causal(self) -> bool:
        """Whether the model's attention must be causal."""
        return any(row.causal for row in self.rows)

    @property
    def room(self) -> int:
        """Tokens of text in the longest sequence."""
        return self.length - (3 if self.pairs else 2)

    @property
    def shares(self) -> tuple[float, float]:
        """The shares of the chosen tokens that become [MASK] and that become a random token."""
        masked, random = next((row.shares for row in reversed(self.rows) if row.shares), (0.8, 0.1))
        return (
            masked if self.mask_share is None else self.mask_share,
            random if self.random_share is None else self.random_share,
        )


@dataclass(frozen=True)
class TokenIds:
    """The token ids that the loader needs."""

    cls: int
    sep: int
    mask: int
    special: tuple[int, ...]  # never chosen, and never a random replacement
    size: int  # of the vocabulary

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "TokenIds":
        """The ids of a tokenizer."""
        inserted = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
        return cls(*inserted, special=(*inserted, tokenizer.pad_id, tokenizer.unknown_id), size=tokenizer.size)


class ExampleSource:
    """The examples of a corpus. `block` is a pure function of its number, so blocks can be made in any order."""

    def __init__(self, shards: Corpus, settings: DataSettings, ids: TokenIds | None = None) -> None:
        self.shards = shards
        self.settings = settings
        self.ids = TokenIds.of(shards.tokenizer) if ids is None else ids
        self._text_spans = _text_spans(shards, settings)
        self._special = np.zeros(self.ids.size, dtype=np.bool_)
        self._special[list(self.ids.special)] = True
        ordinary = np.flatnonzero(~self._special).astype(np.int32)
        self._corruption = Corruption(self.ids.mask, ordinary, *settings.shares)
        names = settings.masks_tokens and UNITS[settings.masking].joins_names
        self._names = np.ascontiguousarray(shards.entities.T) if names else None

    @property
    def examples_per_epoch(self) -> int:
        """The number of examples of every epoch."""
        return len(self._text_spans)

    @cached_property
    def packing(self) -> Packing:
        """The assignment of examples to blocks."""
        return Packing(self._lengths, self.settings.length, self.settings.block)

    @property
    def blocks_in_epoch(self) -> float:
        """The number of blocks per epoch; epochs need not start at the start of a block."""
        return len(self._text_spans) * self.packing.blocks / self.packing.examples

    def block(self, number: int) -> Examples:
        """The examples of one block."""
        return replace(self.examples(self._example_numbers(number)), limits=self.packing.limits)

    def examples(self, index: Ints) -> Examples:
        """Examples of the endless sequence by their index, independent of blocks."""
        numbers, epochs, drawn_epochs = self._order(index)
        ranges = self._ranges(numbers, drawn_epochs)
        ids, packed = self._with_special_tokens(ranges)
        chosen, corrupted = self._mask(ids, packed, numbers, drawn_epochs)
        segments, lengths = _segments(ranges.lengths), np.diff(packed.offsets)
        return Examples(corrupted, segments, lengths, chosen, ids[chosen], ranges.labels, int(epochs[0]))

    def ranges(self, number: int) -> Ranges:
        """The ranges of tokens in the corpus that a block reads."""
        numbers, _, drawn_epochs = self._order(self._example_numbers(number))
        return self._ranges(numbers, drawn_epochs)

    def _example_numbers(self, number: int) -> Ints:
        if number < 0:
            raise RequestError(f"there is no block {number}; they count from 0")
        return self.packing.block(number)

    def _lengths(self, index: Ints) -> Ints:
        """The lengths of examples of the endless sequence, [CLS] and [SEP] included."""
        numbers, _, drawn_epochs = self._order(index)
        lengths: Ints = (self._ranges(numbers, drawn_epochs).lengths + 1).sum(axis=1) + 1
        return lengths

    def _order(self, index: Ints) -> tuple[Ints, Ints, Ints]:
        """(numbers of the examples in their epochs, epochs, epochs that seed cuts and masks: 0 if static)."""
        epochs, positions = np.divmod(index, len(self._text_spans))
        numbers = permute(self._keys(Purpose.ORDER, epochs), len(self._text_spans), positions)
        return numbers, epochs, np.zeros_like(epochs) if self.settings.static else epochs

    def _ranges(self, numbers: Ints, epochs: Ints) -> Ranges:
        if isinstance(self._text_spans, Pieces):
            return self._text_spans.ranges(numbers, self._keys(Purpose.CUTS, epochs))
        rolls = draw_rolls(self._keys(Purpose.PAIRS, epochs, numbers))
        row = self.settings.pair_row
        assert row  # without pairs, texts are Pieces
        return row.ranges(self._text_spans, numbers, rolls, self.settings.short_share)

    def _with_special_tokens(self, ranges: Ranges) -> tuple[Ids, Packed]:
        """The ids with [CLS] and [SEP] inserted, and their maskable tokens and word starts."""
        text, words = self.shards.gather(ranges.starts.ravel(), ranges.lengths.ravel())
        starts = words != 0
        if self._names is not None:
            starts = _join_names(starts, ranges, self._names)
        is_text, separators, offsets = _layout(ranges.lengths)
        ids = np.full(len(is_text), self.ids.cls, dtype=np.int32)
        ids[separators] = self.ids.sep
        ids[is_text] = text
        unit_starts = np.zeros(len(ids), dtype=np.bool_)
        unit_starts[is_text] = starts
        return ids, Packed(~self._special[ids], unit_starts, offsets)

    def _mask(self, ids: Ids, packed: Packed, numbers: Ints, epochs: Ints) -> tuple[Ints, Ids]:
        """(chosen positions, corrupted ids); nothing is chosen if the objective masks nothing."""
        if not self.settings.masks_tokens:
            return np.empty(0, dtype=np.int64), ids
        purposes = (Purpose.SPANS, Purpose.CHOICE, Purpose.CORRUPTION)
        keys = MaskingKeys(*(self._keys(purpose, epochs, numbers) for purpose in purposes))
        return mask_packed(ids, packed, UNITS[self.settings.masking], keys, self.settings.rate, self._corruption)

    def _keys(self, purpose: Purpose, *counters: Ints) -> Bits:
        return draw(self.settings.seed, purpose, *counters)


def _text_spans(shards: Corpus, settings: DataSettings) -> Pieces | Spans:
    """The texts that examples are made of; a corpus without any is refused."""
    texts: Pieces | Spans
    if settings.pair_row:
        texts = Spans.pack(shards, settings.room)
        settings.pair_row.check_spans(texts)
    else:
        texts = Pieces(np.asarray(shards.sentence_starts)[shards.document_starts], settings.room)
    if not len(texts):
        raise RequestError("the shards hold no text to make examples of; make them from a corpus that has some")
    return texts


def _layout(parts: Ints) -> tuple[Flags, Ints, Ints]:
    """(T flags: text, not [CLS] or [SEP]; positions of the [SEP]; starts of the sequences, and the end)."""
    offsets = np.concatenate(([0], np.cumsum((parts + 1).sum(axis=1) + 1)))
    separators = offsets[:-1, None] + np.cumsum(parts + 1, axis=1)
    is_text = np.ones(offsets[-1], dtype=np.bool_)
    is_text[offsets[:-1]] = False
    is_text[separators] = False
    return is_text, separators, offsets


def _segments(parts: Ints) -> Ids:
    """T: the part of its sequence that each token belongs to; a [SEP] belongs to the part before it."""
    numbers = np.arange(parts.shape[1], dtype=np.int32)
    return np.repeat(np.tile(numbers, len(parts)), (parts + 1 + (numbers == 0)).ravel())


def _join_names(starts: Flags, ranges: Ranges, names: Ints) -> Flags:
    """Word starts of the gathered text, with each name as one word; of a name cut by a range, the part inside."""
    begins, lengths = ranges.starts.ravel(), ranges.lengths.ravel()
    first = np.searchsorted(names[1], begins, side="right")
    counts = np.searchsorted(names[0], begins + lengths, side="left") - first
    ranges_of_names = np.repeat(np.arange(len(begins)), counts)
    inside = names[:, np.arange(len(ranges_of_names)) + np.repeat(first - (np.cumsum(counts) - counts), counts)]
    offsets = np.cumsum(lengths) - lengths
    low, high = begins[ranges_of_names], (begins + lengths)[ranges_of_names]
    return join_names(starts, np.clip(inside, low, high) - low + offsets[ranges_of_names], offsets)


def _require(condition: bool, name: str, value: object, rule: str) -> None:
    if not condition:
        raise RequestError(f"{name}={value} {rule}")
