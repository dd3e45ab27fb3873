"""Which tokens the model must restore, and what stands in their place.

A choice is made of units: tokens, words, groups of one to three words, or names. Of a sequence's U units, rate x U are
taken, rounded up or down by chance and never none: so each unit has the same chance, long or short, no word is split,
and `rate` of the tokens are chosen on average, in every mode. What a budget counted in tokens would do to units that
no longer fit never comes up. The functions above the line work on one sequence and are there to be read; those below
do the same from the same random numbers for a whole block of packed sequences.
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

HALF = np.uint64(32)  # a draw's upper half decides, its lower half numbers or picks


@dataclass(frozen=True)
class Corruption:
    """What stands in the place of a chosen token: [MASK], a random piece, or, for the rest, the token itself."""

    mask_id: int
    pieces: Ids  # the ids that a random piece is drawn from: all that are not special
    mask_share: float = 0.8
    random_share: float = 0.1


def words_of(maskable: Sequence[bool], word_starts: Sequence[bool]) -> list[Unit]:
    """The words as lists of positions; one ends where another begins, or at a token that may not be chosen."""
    words: list[Unit] = []
    for position, may in enumerate(maskable):
        if may and (word_starts[position] or not position or not maskable[position - 1]):
            words.append([])
        if may:
            words[-1].append(position)
    return words


def n_grams_of(words: list[Unit], sizes: Sequence[int]) -> list[Unit]:
    """Neighboring words in groups of the given sizes; a group ends early at a [SEP] or at the sequence's end."""
    groups: list[Unit] = []
    start = number = 0  # of the run of words that stand side by side, and of the group in it
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
    """Word starts with the words of each name [first, stop) joined: a start at its first token and one behind it."""
    joined = list(starts)
    for first, stop in names:
        joined[first:stop] = [True] + [False] * (stop - first - 1)
        if stop < len(joined):
            joined[stop] = True
    return joined


def choose(units: list[Unit], bits: Bits, rate: float) -> list[int]:
    """Positions of the units that come first in a random order; bits[0] rounds their count, the others order them."""
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
    """Devlin's 80/10/10: mostly [MASK], some random, some left alone so that the model cannot trust its eyes.

    `deciding`: positions whose draw says what others become; what it does not name decides for itself.
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
    """ALBERT's law: one, two or three words with chances as 1 : 1/2 : 1/3, that is 6, 3 and 2 in 11."""
    return 1 + (rolls >= 6 / 11).astype(np.int64) + (rolls >= 9 / 11)


SPAN_CHANCES = 0.2 * 0.8 ** np.arange(10)  # SpanBERT: geometric with p = 0.2, at most ten words


def span_sizes(rolls: Floats) -> Ints:
    """SpanBERT's law: one to ten words, each further word with 0.8 of the chance before it; 3.8 on average."""
    until = np.cumsum(SPAN_CHANCES / SPAN_CHANCES.sum())
    return 1 + np.searchsorted(until[:-1], rolls, side="right").astype(np.int64)


# ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packed:
    """Sequences end to end, as far as a choice sees them."""

    maskable: Flags  # T: False for [CLS], [SEP] and every other special token
    unit_starts: Flags  # T: where a word begins, or with entities a name or a word outside of names
    offsets: Ints  # N+1: where each sequence starts, and where the last one ends


def token_starts(packed: Packed, keys: Bits) -> Flags:
    """T: every token is a unit."""
    return packed.maskable


def word_starts(packed: Packed, keys: Bits) -> Flags:
    """T: where the units of `words_of` begin."""
    starts = packed.unit_starts.copy()
    starts[1:] |= ~packed.maskable[:-1]
    starts[:1] = True
    starts &= packed.maskable
    return starts


def n_gram_starts(packed: Packed, keys: Bits) -> Flags:
    """T: where groups of one to three words begin."""
    return group_starts(packed, keys, n_gram_sizes)


def span_starts(packed: Packed, keys: Bits) -> Flags:
    """T: where spans of one to ten words begin."""
    return group_starts(packed, keys, span_sizes)


def group_starts(packed: Packed, keys: Bits, sizes_of: Callable[[Floats], Ints]) -> Flags:
    """T: where the units of `n_grams_of` begin, whose sizes are drawn from the sequence's key and the word's number."""
    words = np.flatnonzero(word_starts(packed, keys))
    counts = np.diff(np.searchsorted(words, packed.offsets))
    sizes = sizes_of(uniform(draw(np.repeat(keys, counts), _within(counts))))
    runs = np.flatnonzero(~packed.maskable[words - 1])  # the first token is a [CLS], so no word is at 0
    lengths = np.diff(runs, append=len(words))
    before = np.cumsum(sizes) - sizes
    place = before - np.repeat(before[runs], lengths)
    inside = place < np.repeat(lengths, lengths)
    starts = np.zeros(len(packed.maskable), dtype=np.bool_)
    starts[words[(place + np.repeat(runs, lengths))[inside]]] = True
    return starts


def join_names(starts: Flags, names: Ints, parts: Ints) -> Flags:
    """`names_joined` for text in parts that begin at `parts`; `names` is two rows: where each starts and stops."""
    first, stop = names
    joined = starts.copy()
    sizes = stop - first
    joined[np.repeat(first, sizes) + _within(sizes)] = False
    behind = stop[~np.isin(stop, parts) & (stop < len(starts))]
    joined[behind] = True
    joined[first] = True
    return joined


@dataclass(frozen=True)
class Masking:
    """A masking mode: how sequences are cut into the units that are chosen together."""

    starts: Callable[[Packed, Bits], Flags]
    joins_names: bool = False  # the shards' entity spans are units
    alike: bool = False  # all tokens of a unit become [MASK], or all random pieces, or all stay

    def __call__(self, packed: Packed, keys: Bits) -> Flags:
        """T: where units begin."""
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
    """N random keys each, one for each sequence."""

    units: Bits
    choice: Bits
    corruption: Bits


def mask_packed(
    ids: Ids, packed: Packed, masking: Masking, keys: MaskingKeys, rate: float, corruption: Corruption
) -> tuple[Ints, Ids]:
    """The chosen positions, in order, and the ids with these corrupted."""
    starts = masking(packed, keys.units)
    chosen = choose_packed(packed, starts, keys.choice, rate)
    deciding = unit_firsts(starts)[chosen] if masking.alike else None
    return chosen, corrupt_packed(ids, chosen, packed.offsets, keys.corruption, corruption, deciding)


def unit_firsts(starts: Flags) -> Ints:
    """T: the position where the unit of each token begins."""
    return np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0))


def choose_packed(packed: Packed, starts: Flags, keys: Bits, rate: float) -> Ints:
    """Positions of the chosen tokens, in order: `choose` for every sequence, with draws from its key."""
    units = np.flatnonzero(starts)
    counts = np.diff(np.searchsorted(units, packed.offsets))
    picked = units[_picked(counts, keys, rate)]
    if starts is packed.maskable:
        return picked
    # The rest of a unit is what follows without being a start: walk on from the starts until no unit goes on.
    chosen = np.zeros(len(starts), dtype=np.bool_)
    goes_on = np.append(packed.maskable & ~starts, False)
    while len(picked):
        chosen[picked] = True
        picked = picked[goes_on[picked + 1]] + 1
    return np.flatnonzero(chosen)


def corrupt_packed(
    ids: Ids, chosen: Ints, offsets: Ints, keys: Bits, corruption: Corruption, deciding: Ints | None = None
) -> Ids:
    """The ids with the chosen ones corrupted: `corrupt` for every sequence, with draws from its key.

    `deciding`: for each of the chosen the position whose draw says what it becomes; None: its own.
    """
    counts = np.diff(np.searchsorted(chosen, offsets))
    own_keys, starts = np.repeat(keys, counts), np.repeat(offsets[:-1], counts)
    bits = draw(own_keys, chosen - starts)
    roll = (bits if deciding is None else draw(own_keys, deciding - starts)) >> HALF
    masked = roll < corruption.mask_share * 2**32
    random = ~masked & (roll < (corruption.mask_share + corruption.random_share) * 2**32)
    out = ids.copy()
    out[chosen[masked]] = corruption.mask_id
    pick = (bits[random] & np.uint64(2**32 - 1)) * np.uint64(len(corruption.pieces)) >> HALF
    out[chosen[random]] = corruption.pieces[pick]
    return out


def _picked(counts: Ints, keys: Bits, rate: float) -> Flags:
    """For every unit of every sequence whether it is taken: the smallest keys of each row of a rectangle."""
    wanted = (rate * counts + uniform(draw(keys, 0))).astype(np.int64)
    wanted = np.minimum(np.maximum(wanted, 1), counts)
    columns = np.arange(counts.max(initial=0) + 1, dtype=np.uint64)
    real = columns < counts[:, None].astype(np.uint64)
    # Upper half: the key. Lower half: the unit's number, so that no two are equal and the earlier one wins.
    order = draw(keys[:, None], columns + np.uint64(1)) >> HALF << HALF | columns
    order[~real] = np.iinfo(np.uint64).max
    first_left = np.take_along_axis(np.sort(order, axis=1), wanted[:, None], axis=1)
    return (order < first_left)[real]


def _within(counts: Ints) -> Ints:
    """0, 1, ... count-1 for each of the counts, end to end."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
