"""Fast counts of the pairs of neighboring pieces, for `wordpiece.train`.

`FastPairCounts` is the fast twin of `SlowPairCounts`, which counts all pairs again for every merge. Here all words are
end to end in one array of piece numbers with a linked list over it; a merge changes only the positions of its pair, and
corrects the counts of the pairs beside them. The most frequent pair comes from a heap whose entries may be out of date.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.text.wordpiece import Pair, joined

Positions = NDArray[np.int32]

BORDER = -1  # between two words; pieces are numbered from 0
MERGED = -2  # the right half of a merged pair
POSITIONS_PER_SLICE = 4_000_000  # counted at once, to bound the memory of the first count


class FastPairCounts:
    """The pieces of all words, and the counts of neighboring pairs."""

    def __init__(self, word_counts: Mapping[str, int], alphabet: Sequence[str], min_count: int) -> None:
        known = set(alphabet)
        words = {word: count for word, count in word_counts.items() if word and known.issuperset(word)}
        self._pieces = [piece for char in alphabet for piece in (char, f"##{char}")]
        self._numbers = {piece: number for number, piece in enumerate(self._pieces)}
        self._min_count = max(min_count, 1)
        self._counts: dict[Pair, int] = {}
        self._heap: list[tuple[int, str, str]] = []
        self._lay_out(words, alphabet)
        self._count_all()

    def _lay_out(self, words: dict[str, int], alphabet: Sequence[str]) -> None:
        """One position for each character and one border before, between and after the words."""
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        word_of = np.repeat(np.arange(len(words), dtype=np.int32), lengths)
        positions = np.arange(len(word_of), dtype=np.int32) + word_of + 1
        self._piece = np.full(len(word_of) + len(words) + 1, BORDER, np.int32)
        self._piece[positions] = 2 * _letter_numbers(words, alphabet) + 1  # "##c"
        first = positions[np.cumsum(lengths) - lengths] if len(words) else positions
        self._piece[first] -= 1  # "c"
        # No pair is more frequent than all characters together; if int64 could overflow, Python's integers are used.
        characters = sum(count * len(word) for word, count in words.items())
        self._count_of_word = np.array(list(words.values()), np.int64 if characters < 2**63 else object)
        self._word = np.zeros_like(self._piece)
        self._word[positions] = word_of
        self._after = np.arange(1, len(self._piece) + 1, dtype=np.int32)
        self._before = np.arange(-1, len(self._piece) - 1, dtype=np.int32)
        self._positions = _grouped(self._piece, len(self._pieces))

    def _count_all(self) -> None:
        for start in range(0, len(self._piece) - 1, POSITIONS_PER_SLICE):
            left = self._piece[start : start + POSITIONS_PER_SLICE]
            right = self._piece[start + 1 : start + POSITIONS_PER_SLICE + 1]
            left = left[: len(right)]
            inside = np.flatnonzero((left != BORDER) & (right != BORDER))
            weights = self._count_of_word[self._word[start + inside]]
            self._change(left[inside], right[inside], weights)

    def _change(self, left: Positions, right: Positions, weights: NDArray[Any]) -> None:
        """Add `weights` to the counts of the pairs of neighbors, except those with a border."""
        real = (left >= 0) & (right >= 0)
        keys = (left[real].astype(np.int64) << 32) | right[real]
        order = np.argsort(keys)
        keys, weights = keys[order], weights[real][order]
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        if not len(starts):
            return
        sums = np.add.reduceat(weights, starts)
        for key, change in zip(keys[starts].tolist(), sums.tolist(), strict=True):
            self._change_one((self._pieces[key >> 32], self._pieces[key & 0xFFFFFFFF]), change)

    def _change_one(self, pair: Pair, change: int) -> None:
        count = self._counts.get(pair, 0) + change
        if count:
            self._counts[pair] = count
        else:
            self._counts.pop(pair, None)
        # A count that fell is corrected when its entry is popped; one that rose needs a new entry.
        if change > 0 and count >= self._min_count:
            heapq.heappush(self._heap, (-count, *pair))

    def most_frequent(self) -> Pair | None:
        """The pair with the highest count, of equal ones the first in order; None below the minimum count."""
        while self._heap:
            entry, left, right = heapq.heappop(self._heap)
            count = self._counts.get((left, right), 0)
            if count == -entry:
                return left, right
            if self._min_count <= count < -entry:
                heapq.heappush(self._heap, (-count, left, right))
        return None

    def merge(self, left: str, right: str) -> str:
        """Replace the pair by one piece everywhere, and correct the counts of the pairs beside it."""
        piece = joined((left, right))
        firsts, number = self._find(left, right), self._number(piece)
        seconds = self._after[firsts]
        following = self._after[seconds]
        weights = self._count_of_word[self._word[firsts]]
        # In "abab" the pair (b, a) is right of one merge and left of the next: it is counted only once.
        chained = np.append(following[:-1] == firsts[1:], [False])
        lone = ~chained
        self._change(self._piece[self._before[firsts]], self._piece[firsts], -weights)
        self._change(self._piece[seconds[lone]], self._piece[following[lone]], -weights[lone])
        self._counts.pop((left, right), None)
        self._piece[firsts], self._piece[seconds] = number, MERGED
        self._after[firsts], self._before[following] = following, firsts
        self._change(self._piece[self._before[firsts]], self._piece[firsts], weights)
        self._change(self._piece[firsts[lone]], self._piece[following[lone]], weights[lone])
        self._positions[number] = np.union1d(self._positions[number], firsts)
        return piece

    def _number(self, piece: str) -> int:
        """The number of a piece, which is nearly always new: only words with "#" can make one that exists."""
        number = self._numbers.setdefault(piece, len(self._pieces))
        if number == len(self._pieces):
            self._pieces.append(piece)
            self._positions.append(np.empty(0, np.int32))
        return number

    def _find(self, left: str, right: str) -> Positions:
        """The first positions of the pair, in order, from the positions of the rarer of its halves."""
        a, b = self._numbers[left], self._numbers[right]
        if len(self._positions[a]) <= len(self._positions[b]):
            firsts = self._positions_of(a)
            firsts = firsts[self._piece[self._after[firsts]] == b]
        else:
            firsts = self._before[self._positions_of(b)]
            firsts = firsts[self._piece[firsts] == a]
        return _every_other(firsts, self._after) if a == b else firsts

    def _positions_of(self, number: int) -> Positions:
        """The current positions of a piece; those where it has been merged are dropped."""
        positions = self._positions[number]
        self._positions[number] = positions[self._piece[positions] == number]
        return self._positions[number]


def _letter_numbers(words: Iterable[str], alphabet: Sequence[str]) -> Positions:
    """The number in the alphabet of each character of the words, end to end."""
    codes = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), np.uint32)
    known = np.array([ord(char) for char in alphabet], np.uint32)
    return np.searchsorted(known, codes).astype(np.int32)


def _grouped(pieces: Positions, kinds: int) -> list[Positions]:
    """The positions of each piece number, in order."""
    order = np.argsort(pieces, kind="stable").astype(np.int32)
    ends = np.searchsorted(pieces[order], np.arange(kinds + 1))
    return [order[start:end] for start, end in pairwise(ends)]


def _every_other(positions: Positions, after: Positions) -> Positions:
    """Of a chain of equal neighbors "aaaa" every second position, so that merges do not overlap."""
    index = np.arange(len(positions))
    starts_chain = np.append([True], after[positions[:-1]] != positions[1:])[: len(positions)]
    chain_start = np.maximum.accumulate(np.where(starts_chain, index, 0))
    chosen: Positions = positions[(index - chain_start) % 2 == 0]
    return chosen
