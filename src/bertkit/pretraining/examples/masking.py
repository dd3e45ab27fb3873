"""Masking: which tokens the model must predict, and what replaces them in the input.

Units are chosen: tokens, words, groups of one to three words, or names. Of a sequence's U units, rate x U are chosen,
rounded up or down at random, but at least one. So every unit has the same probability, no word is split, and on average
`rate` of the tokens are chosen, in every mode; with a budget of tokens, long units would often not fit. The functions
above the line work on one sequence and are the readable reference; those below do the same, from the same random
numbers, for a whole block of packed sequences.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.pretraining.examples.random import Bits, Floats, Ints, draw, uniform

Flags = NDArray[np.bool_]
Ids = NDArray[Any]
Unit = list[int]  # neighboring positions that are chosen together

HALF = np.uint64(32)  # bits: the upper half of a draw is the random key, the lower half an index


@dataclass(frozen=True)
class Corruption:
    """What replaces a chosen token: [MASK], a random token, or (the rest) the token itself."""

    mask_id: int
    pieces: Ids  # the ids that a random token is drawn from: all but special tokens
    mask_share: float = 0.8
    random_share: float = 0.1


def words_of(maskable: Sequence[bool], word_starts: Sequence[bool]) -> list[Unit]:
    """The words as lists of positions; a word ends at the next word start, or at a token that is not maskable."""
    words: list[Unit] = []
    for position, is_maskable in enumerate(maskable):
        if is_maskable and (word_starts[position] or not position or not maskable[position - 1]):
            words.append([])
        if is_maskable:
            words[-1].append(position)
    return words


def n_grams_of(words: list[Unit], sizes: Sequence[int]) -> list[Unit]:
    """Neighboring words in groups of the given sizes; a group ends early at a [SEP] or at the sequence's end."""
    groups: list[Unit] = []
    start = number = 0  # of the current run of adjacent words, and of the group in it
    while start < len(words):
        stop = start + 1
        while stop < len(words) and words[stop][0] == words[stop - 1][-1] + 1:
            stop += 1
        at = number = start
        while at < stop:
            group = words[at : min(at + sizes[number], stop)]
            groups.append([position for word in group for position in word])
            at, number = at + len(group), number + 1
        start = stop
    return groups


def names_joined(starts: Sequence[bool], names: Sequence[tuple[int, int]]) -> list[bool]:
    """Word starts with each name [first, stop) as one word: a start at its first token, and one after it."""
    joined = list(starts)
    for first, stop in names:
        joined[first:stop] = [True] + [False] * (stop - first - 1)
        if stop < len(joined):
            joined[stop] = True
    return joined


def choose(units: list[Unit], bits: Bits, rate: float) -> list[int]:
    """The positions of the chosen units, first in a random order; bits[0] rounds their number, the others sort them."""
    count = int(rate * len(units) + uniform(bits[:1])[0])
    count = min(max(count, 1), len(units))
    keys = bits[1:] >> HALF
    order = sorted(range(len(units)), key=lambda unit: (keys[unit], unit))
    return sorted(position for unit in order[:count] for position in units[unit])


def corrupt(
    ids: Sequence[int],
    chosen: Sequence[int],
    bits: Bits,
    corruption: Corruption,
    deciding: Mapping[int, int] = MappingProxyType({}),
) -> list[int]:
    """BERT's 80/10/10: the ids with the chosen ones replaced by [MASK], by a random token, or kept.

    `deciding` maps a position to the one whose draw decides for it; by default its own.
    """
    out = list(ids)
    for position in chosen:
        roll, pick = int(bits[deciding.get(position, position)]) >> 32, int(bits[position]) & 2**32 - 1
        if roll < corruption.mask_share * 2**32:
            out[position] = corruption.mask_id
        elif roll < (corruption.mask_share + corruption.random_share) * 2**32:
            out[position] = int(corruption.pieces[pick * len(corruption.pieces) >> 32])
    return out


def n_gram_sizes(rolls: Floats) -> Ints:
    """ALBERT's n-gram sizes: one, two or three words with probabilities 6/11, 3/11 and 2/11 (1 : 1/2 : 1/3)."""
    return 1 + (rolls >= 6 / 11).astype(np.int64) + (rolls >= 9 / 11)


SPAN_PROBABILITIES = 0.2 * 0.8 ** np.arange(10)  # SpanBERT: geometric with p = 0.2, at most ten words


def span_sizes(rolls: Floats) -> Ints:
    """SpanBERT's span sizes: one to ten words from a geometric distribution; 3.8 on average."""
    cumulative = np.cumsum(SPAN_PROBABILITIES / SPAN_PROBABILITIES.sum())
    return 1 + np.searchsorted(cumulative[:-1], rolls, side="right").astype(np.int64)


# ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packed:
    """Concatenated sequences, as far as masking needs them."""

    maskable: Flags  # T: False for [CLS], [SEP] and every other special token
    unit_starts: Flags  # T: starts of words; with entity masking, starts of names and of words outside names
    offsets: Ints  # N+1: the start of each sequence, and the end


def token_starts(packed: Packed, keys: Bits) -> Flags:
    """T: every token is a unit."""
    return packed.maskable


def word_starts(packed: Packed, keys: Bits) -> Flags:
    """T: the starts of the units of `words_of`."""
    starts = packed.unit_starts.copy()
    starts[1:] |= ~packed.maskable[:-1]
    starts[:1] = True
    starts &= packed.maskable
    return starts


def n_gram_starts(packed: Packed, keys: Bits) -> Flags:
    """T: the starts of groups of one to three words."""
    return group_starts(packed, keys, n_gram_sizes)


def span_starts(packed: Packed, keys: Bits) -> Flags:
    """T: the starts of spans of one to ten words."""
    return group_starts(packed, keys, span_sizes)


def group_starts(packed: Packed, keys: Bits, sizes_of: Callable[[Floats], Ints]) -> Flags:
    """T: the starts of the units of `n_grams_of`; sizes are drawn from the sequence's key and the word's number."""
    words = np.flatnonzero(word_starts(packed, keys))
    counts = np.diff(np.searchsorted(words, packed.offsets))
    sizes = sizes_of(uniform(draw(np.repeat(keys, counts), _within(counts))))
    runs = np.flatnonzero(~packed.maskable[words - 1])  # token 0 is a [CLS], so no word starts there
    lengths = np.diff(runs, append=len(words))
    before = np.cumsum(sizes) - sizes
    position = before - np.repeat(before[runs], lengths)  # in the run, of each group's first word
    inside = position < np.repeat(lengths, lengths)
    starts = np.zeros(len(packed.maskable), dtype=np.bool_)
    starts[words[(position + np.repeat(runs, lengths))[inside]]] = True
    return starts


def join_names(starts: Flags, names: Ints, parts: Ints) -> Flags:
    """`names_joined` for text in parts that start at `parts`; `names` has two rows, starts and stops."""
    first, stop = names
    joined = starts.copy()
    sizes = stop - first
    joined[np.repeat(first, sizes) + _within(sizes)] = False
    following = stop[~np.isin(stop, parts) & (stop < len(starts))]
    joined[following] = True
    joined[first] = True
    return joined


@dataclass(frozen=True)
class Masking:
    """A masking mode: how sequences are split into the units that are chosen together."""

    starts: Callable[[Packed, Bits], Flags]
    joins_names: bool = False  # the entity spans of the shards are units
    alike: bool = False  # all tokens of a unit are replaced in the same way

    def __call__(self, packed: Packed, keys: Bits) -> Flags:
        """T: the starts of the units."""
        return self.starts(packed, keys)


UNITS: Mapping[str, Masking] = MappingProxyType(
    {
        "token": Masking(token_starts),
        "whole-word": Masking(word_starts),
        "n-gram": Masking(n_gram_starts),
        "entity": Masking(word_starts, joins_names=True),
        "span": Masking(span_starts, alike=True),
    }
)


class MaskingKeys(NamedTuple):
    """N random keys for each purpose, one per sequence."""

    units: Bits
    choice: Bits
    corruption: Bits


def mask_packed(
    ids: Ids, packed: Packed, masking: Masking, keys: MaskingKeys, rate: float, corruption: Corruption
) -> tuple[Ints, Ids]:
    """The chosen positions, in order, and the ids with these positions corrupted."""
    starts = masking(packed, keys.units)
    chosen = choose_packed(packed, starts, keys.choice, rate)
    deciding = unit_firsts(starts)[chosen] if masking.alike else None
    return chosen, corrupt_packed(ids, chosen, packed.offsets, keys.corruption, corruption, deciding)


def unit_firsts(starts: Flags) -> Ints:
    """T: the position of the first token of each token's unit."""
    return np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0))


def choose_packed(packed: Packed, starts: Flags, keys: Bits, rate: float) -> Ints:
    """The positions of the chosen tokens, in order: `choose` for every sequence, with draws from its key."""
    units = np.flatnonzero(starts)
    counts = np.diff(np.searchsorted(units, packed.offsets))
    picked = units[_picked(counts, keys, rate)]
    if starts is packed.maskable:
        return picked
    # The other tokens of a unit follow its start: advance all units by one token until none continues.
    chosen = np.zeros(len(starts), dtype=np.bool_)
    continues = np.append(packed.maskable & ~starts, False)
    while len(picked):
        chosen[picked] = True
        picked = picked[continues[picked + 1]] + 1
    return np.flatnonzero(chosen)


def corrupt_packed(
    ids: Ids, chosen: Ints, offsets: Ints, keys: Bits, corruption: Corruption, deciding: Ints | None = None
) -> Ids:
    """The ids with the chosen ones corrupted: `corrupt` for every sequence, with draws from its key.

    `deciding`: for each chosen position, the position whose draw decides for it; None: its own.
    """
    counts = np.diff(np.searchsorted(chosen, offsets))
    sequence_keys, starts = np.repeat(keys, counts), np.repeat(offsets[:-1], counts)
    bits = draw(sequence_keys, chosen - starts)
    roll = (bits if deciding is None else draw(sequence_keys, deciding - starts)) >> HALF
    masked = roll < corruption.mask_share * 2**32
    random = ~masked & (roll < (corruption.mask_share + corruption.random_share) * 2**32)
    out = ids.copy()
    out[chosen[masked]] = corruption.mask_id
    pick = (bits[random] & np.uint64(2**32 - 1)) * np.uint64(len(corruption.pieces)) >> HALF
    out[chosen[random]] = corruption.pieces[pick]
    return out


def _picked(counts: Ints, keys: Bits, rate: float) -> Flags:
    """For every unit of every sequence whether it is chosen: those with the smallest random keys of each row."""
    chosen = (rate * counts + uniform(draw(keys, 0))).astype(np.int64)  # number of units per sequence
    chosen = np.minimum(np.maximum(chosen, 1), counts)
    columns = np.arange(counts.max(initial=0) + 1, dtype=np.uint64)
    real = columns < counts[:, None].astype(np.uint64)
    # Upper half: random key. Lower half: the number of the unit, so that keys differ and the earlier unit wins.
    order = draw(keys[:, None], columns + np.uint64(1)) >> HALF << HALF | columns
    order[~real] = np.iinfo(np.uint64).max
    threshold = np.take_along_axis(np.sort(order, axis=1), chosen[:, None], axis=1)
    return (order < threshold)[real]


def _within(counts: Ints) -> Ints:
    """0, 1, ... count-1 for each of the counts, concatenated."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
