"""Blocks full of tokens: which examples of the endless sequence go through the model together.

Examples differ in length, so a fixed number of them leaves room unused. The sequence is therefore taken in chunks of so
many examples as fill so many blocks, both the same for every chunk: the chunk of a block follows from its number alone.
Inside a chunk an example is in one block, at most WINDOW blocks from where it would be in strict order; the rare one
that fits nowhere is left out. Blocks of 32,768 tokens are 99.8 % full for length 128 and 99.5 % for 512 on encyclopedia
articles, small ones less. What stays free is room for chunks that are longer than most. A corpus of fewer blocks than
that mixes its epochs a bit.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bertkit.pretraining.examples.random import Ints

CHUNK_EXAMPLES, CHUNK_BLOCKS = 1 << 19, 4096  # at most, about: a fraction of a second to pack, a few MB to keep
CERTAIN = 4.0  # deviations of a chunk's sum of lengths that there is room for: one in 30,000 strays further
FILLING = 2  # full sequences' worth of tokens in each block that are not dealt but fill it up
WINDOW = 64  # blocks that are packed together
ROUND = 8  # one part in so many of the blocks gets an example in each round


@dataclass(frozen=True)
class Limits:
    """What no block exceeds: compiled code then sees one shape."""

    tokens: int
    sequences: int


def pack_plain(lengths: list[int], blocks: int, budget: int, longest: int) -> list[int]:
    """The block of each example, -1 for one that fits none. The readable twin.

    Long ones are dealt in order, an equal share of tokens to each block. The short ones fill the blocks up, the longest
    of them first, in rounds: each of the roomiest blocks is offered one, and the roomiest the longest.
    """
    homes, room = [-1] * len(lengths), [budget] * blocks
    waiting = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    dealt = total = 0
    while dealt < len(waiting) and total + lengths[waiting[dealt]] <= blocks * (budget - FILLING * longest):
        total += lengths[waiting[dealt]]
        dealt += 1
    before = 0
    for n in sorted(waiting[:dealt]):
        homes[n] = before * blocks // total
        room[homes[n]] -= lengths[n]
        before += lengths[n]
    waiting = waiting[dealt:]
    while waiting := [n for n in waiting if lengths[n] <= max(room)]:
        roomiest = sorted(range(blocks), key=lambda block: -room[block])[: -(-blocks // ROUND)]
        for n, block in zip(waiting, roomiest, strict=False):
            if lengths[n] <= room[block]:
                homes[n] = block
                room[block] -= lengths[n]
        waiting = [n for n in waiting if homes[n] < 0]
    return homes


def pack(lengths: Ints, blocks: int, budget: int, longest: int) -> Ints:
    """The same for arrays: the block of each example, or -1."""
    homes, room = np.full(len(lengths), -1), np.full(blocks, budget)
    waiting = np.argsort(-lengths, kind="stable")
    sums = np.cumsum(lengths[waiting])
    count = int(np.searchsorted(sums, blocks * (budget - FILLING * longest), side="right"))
    if count:
        dealt = np.sort(waiting[:count])
        before = np.cumsum(lengths[dealt]) - lengths[dealt]
        homes[dealt] = before * blocks // sums[count - 1]
        room -= np.bincount(homes[dealt], lengths[dealt], blocks).astype(np.int64)
    waiting, together = waiting[count:], -(-blocks // ROUND)
    while len(waiting := waiting[np.searchsorted(-lengths[waiting], -room.max()) :]):
        now = waiting[:together]
        roomiest = np.argsort(-room, kind="stable")[: len(now)]
        fits = lengths[now] <= room[roomiest]
        homes[now[fits]] = roomiest[fits]
        room[roomiest[fits]] -= lengths[now[fits]]
        waiting = np.concatenate((now[~fits], waiting[together:]))
    return homes


@dataclass(frozen=True)
class Chunk:
    """One packed chunk: the examples of its blocks end to end."""

    members: NDArray[np.int32]  # places in the chunk
    offsets: Ints  # K+1: where each block starts in `members`, and where the last one ends

    @classmethod
    def of(cls, homes: Ints, blocks: int) -> "Chunk":
        """From the block of each example."""
        order = np.argsort(homes, kind="stable")
        return cls(order.astype(np.int32), np.searchsorted(homes[order], np.arange(blocks + 1)))

    def block(self, number: int) -> Ints:
        """The members of a block; one that got none, if blocks hold hardly more than one, sees its neighbor's again."""
        stop = max(int(self.offsets[number + 1]), 1)
        return self.members[min(int(self.offsets[number]), stop - 1) : stop].astype(np.int64)


class Packing:
    """The blocks of an endless sequence of examples: a pure function of their numbers.

    `lengths` gives the lengths of any examples of the sequence, none over `longest`. A block has as many as fit
    `block` x `longest` tokens, never more. Should a chunk be so long that a few examples fit nowhere, these are left
    out: it takes four deviations, or text that has hardly any short examples to fill small blocks up with.
    """

    def __init__(self, lengths: Callable[[Ints], Ints], longest: int, block: int) -> None:
        self.lengths = lengths
        self.longest = longest
        self.budget = block * longest
        self._kept: dict[int, Chunk] = {}

    def block(self, number: int) -> Ints:
        """The places in the endless sequence of a block's examples, in order."""
        chunk, inside = divmod(number, self.blocks)
        return chunk * self.examples + self._chunk(chunk).block(inside)

    @property
    def blocks(self) -> int:
        """How many blocks every chunk has."""
        return self._size[0]

    @property
    def examples(self) -> int:
        """How many examples every chunk has."""
        return self._size[1]

    @cached_property
    def limits(self) -> Limits:
        """The budget, and for sequences a good deal more than any block of the first chunk has."""
        return Limits(self.budget, int(1.25 * np.diff(self._chunk(0).offsets).max()) + 8)

    @cached_property
    def _size(self) -> tuple[int, int]:
        """(blocks, examples) of a chunk: what the first one holds, less what others may need."""
        about = float(self.lengths(np.arange(CHUNK_BLOCKS)).mean())
        blocks = min(CHUNK_BLOCKS, max(1, int(CHUNK_EXAMPLES * about / self.budget)))
        lengths = self.lengths(np.arange(int(1.1 * blocks * self.budget / about) + 1))
        # Twice the variance of a sum: the mean that the number of examples follows from is itself of one chunk.
        stray = CERTAIN * float(lengths.std()) * math.sqrt(2 * len(lengths))
        examples = max(1, int((blocks * self.budget - stray) / lengths.mean()))
        # In small blocks whole examples can leave more room than that: then fewer to a chunk.
        less = 0.0025
        while (self._homes(lengths[:examples], blocks) < 0).any():
            examples, less = max(1, int((1 - less) * examples)), min(2 * less, 0.1)
        return blocks, examples

    def _homes(self, lengths: Ints, blocks: int) -> Ints:
        """`pack` for one window after the other: an example stays near its place in the sequence."""
        borders = np.append(np.arange(0, blocks, WINDOW), blocks)
        # A window has its share of the chunk's tokens, to within one example.
        cuts = np.searchsorted(np.cumsum(lengths) - lengths, borders * lengths.sum() // blocks)
        homes = np.full(len(lengths), -1)
        for (first, stop), (start, end) in zip(pairwise(borders), pairwise(cuts), strict=True):
            found = pack(lengths[start:end], stop - first, self.budget, self.longest)
            homes[start:end] = np.where(found < 0, -1, first + found)
        return homes

    def _chunk(self, number: int) -> Chunk:
        """A packed chunk; the latest two are kept, since blocks are mostly asked for one after the other."""
        if number not in self._kept:
            lengths = self.lengths(number * self.examples + np.arange(self.examples))
            newest = list(self._kept.items())[-1:]
            self._kept = dict([*newest, (number, Chunk.of(self._homes(lengths, self.blocks), self.blocks))])
        return self._kept[number]
