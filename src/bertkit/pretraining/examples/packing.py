"""Packing: which examples of the endless sequence form a block.

Examples differ in length, so a fixed number of them would leave room unused. The sequence is split into chunks with a
fixed number of examples and a fixed number of blocks, so that the chunk of a block follows from its number. Inside a
chunk, an example is at most WINDOW blocks away from its place in strict order; the rare example that fits into no block
is left out. Blocks of 32,768 tokens are 99.8 % full at length 128 and 99.5 % at 512 on encyclopedia articles, small
blocks less. The free room is a reserve for chunks that are longer than most. If an epoch has fewer blocks than a chunk,
its examples mix with those of the next epoch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bertkit.pretraining.examples.random import Ints

MAX_CHUNK_EXAMPLES, MAX_CHUNK_BLOCKS = 1 << 19, 4096  # about: packed in a fraction of a second, a few MB of memory
RESERVE_DEVIATIONS = 4.0  # standard deviations of a chunk's tokens kept free: one chunk in 30,000 exceeds them
FILLED_SEQUENCES = 2  # room in each block, in sequences of full length, that is filled with short examples
WINDOW = 64  # blocks that are packed together
ROUND_SHARE = 8  # in each round, one block in this many gets an example


@dataclass(frozen=True)
class Limits:
    """Upper bounds for all blocks, so that compiled code sees one shape."""

    tokens: int
    sequences: int


def pack_plain(lengths: list[int], blocks: int, budget: int, longest: int) -> list[int]:
    """The block of each example, -1 for one that fits into none. The readable reference of `pack`.

    Long examples are assigned in order, with an equal share of tokens for each block. Then short examples fill the
    blocks, longest first, in rounds: each of the emptiest blocks gets one, the emptiest block the longest.
    """
    block_of, room = [-1] * len(lengths), [budget] * blocks
    waiting = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    dealt = total = 0
    while dealt < len(waiting) and total + lengths[waiting[dealt]] <= blocks * (budget - FILLED_SEQUENCES * longest):
        total += lengths[waiting[dealt]]
        dealt += 1
    before = 0
    for n in sorted(waiting[:dealt]):
        block_of[n] = before * blocks // total
        room[block_of[n]] -= lengths[n]
        before += lengths[n]
    waiting = waiting[dealt:]
    while waiting := [n for n in waiting if lengths[n] <= max(room)]:
        emptiest = sorted(range(blocks), key=lambda block: -room[block])[: -(-blocks // ROUND_SHARE)]
        for n, block in zip(waiting, emptiest, strict=False):
            if lengths[n] <= room[block]:
                block_of[n] = block
                room[block] -= lengths[n]
        waiting = [n for n in waiting if block_of[n] < 0]
    return block_of


def pack(lengths: Ints, blocks: int, budget: int, longest: int) -> Ints:
    """`pack_plain` with arrays: the block of each example, or -1."""
    block_of, room = np.full(len(lengths), -1), np.full(blocks, budget)
    waiting = np.argsort(-lengths, kind="stable")
    sums = np.cumsum(lengths[waiting])
    count = int(np.searchsorted(sums, blocks * (budget - FILLED_SEQUENCES * longest), side="right"))
    if count:
        dealt = np.sort(waiting[:count])
        before = np.cumsum(lengths[dealt]) - lengths[dealt]
        block_of[dealt] = before * blocks // sums[count - 1]
        room -= np.bincount(block_of[dealt], lengths[dealt], blocks).astype(np.int64)
    waiting, per_round = waiting[count:], -(-blocks // ROUND_SHARE)
    while len(waiting := waiting[np.searchsorted(-lengths[waiting], -room.max()) :]):
        current = waiting[:per_round]
        emptiest = np.argsort(-room, kind="stable")[: len(current)]
        fits = lengths[current] <= room[emptiest]
        block_of[current[fits]] = emptiest[fits]
        room[emptiest[fits]] -= lengths[current[fits]]
        waiting = np.concatenate((current[~fits], waiting[per_round:]))
    return block_of


@dataclass(frozen=True)
class Chunk:
    """One packed chunk: the examples of its blocks, concatenated."""

    members: NDArray[np.int32]  # numbers of examples in the chunk
    offsets: Ints  # K+1: the start of each block in `members`, and the end

    @classmethod
    def of(cls, block_of: Ints, blocks: int) -> "Chunk":
        """The chunk from the block of each example."""
        order = np.argsort(block_of, kind="stable")
        return cls(order.astype(np.int32), np.searchsorted(block_of[order], np.arange(blocks + 1)))

    def block(self, number: int) -> Ints:
        """The members of a block; an empty one, possible for tiny blocks, repeats its neighbor's last example."""
        stop = max(int(self.offsets[number + 1]), 1)
        return self.members[min(int(self.offsets[number]), stop - 1) : stop].astype(np.int64)


class Packing:
    """The blocks of an endless sequence of examples, as a pure function of their numbers.

    `lengths` maps indices of the sequence to lengths, none over `longest`. A block has at most `block` x `longest`
    tokens. Examples of a chunk that fit into no block are left out: this takes a chunk that is four standard deviations
    too long, or text with hardly any short examples to fill small blocks.
    """

    def __init__(self, lengths: Callable[[Ints], Ints], longest: int, block: int) -> None:
        self.lengths = lengths
        self.longest = longest
        self.budget = block * longest
        self._kept: dict[int, Chunk] = {}

    def block(self, number: int) -> Ints:
        """The indices of a block's examples in the endless sequence, in order."""
        chunk, block = divmod(number, self.blocks)
        return chunk * self.examples + self._chunk(chunk).block(block)

    @property
    def blocks(self) -> int:
        """The number of blocks of every chunk."""
        return self._size[0]

    @property
    def examples(self) -> int:
        """The number of examples of every chunk."""
        return self._size[1]

    @cached_property
    def limits(self) -> Limits:
        """The budget of tokens, and 25 % more sequences than any block of the first chunk."""
        return Limits(self.budget, int(1.25 * np.diff(self._chunk(0).offsets).max()) + 8)

    @cached_property
    def _size(self) -> tuple[int, int]:
        """(blocks, examples) of a chunk: what the first chunk has room for, minus a reserve for longer chunks."""
        mean = float(self.lengths(np.arange(MAX_CHUNK_BLOCKS)).mean())
        blocks = min(MAX_CHUNK_BLOCKS, max(1, int(MAX_CHUNK_EXAMPLES * mean / self.budget)))
        lengths = self.lengths(np.arange(int(1.1 * blocks * self.budget / mean) + 1))
        # Twice the variance of a sum, because the mean is estimated from one chunk.
        reserve = RESERVE_DEVIATIONS * float(lengths.std()) * math.sqrt(2 * len(lengths))
        examples = max(1, int((blocks * self.budget - reserve) / lengths.mean()))
        # In small blocks, more room than that may stay unused: then take fewer examples.
        reduction = 0.0025
        while (self._assign(lengths[:examples], blocks) < 0).any():
            examples, reduction = max(1, int((1 - reduction) * examples)), min(2 * reduction, 0.1)
        return blocks, examples

    def _assign(self, lengths: Ints, blocks: int) -> Ints:
        """The block of each example: `pack` window by window, so that examples stay near their original position."""
        borders = np.append(np.arange(0, blocks, WINDOW), blocks)
        # A window gets its share of the chunk's tokens, to within one example.
        cuts = np.searchsorted(np.cumsum(lengths) - lengths, borders * lengths.sum() // blocks)
        block_of = np.full(len(lengths), -1)
        for (first, stop), (start, end) in zip(pairwise(borders), pairwise(cuts), strict=True):
            packed = pack(lengths[start:end], stop - first, self.budget, self.longest)
            block_of[start:end] = np.where(packed < 0, -1, first + packed)
        return block_of

    def _chunk(self, number: int) -> Chunk:
        """A packed chunk; the last two are cached, because blocks are mostly read in order."""
        if number not in self._kept:
            lengths = self.lengths(number * self.examples + np.arange(self.examples))
            newest = list(self._kept.items())[-1:]
            self._kept = dict([*newest, (number, Chunk.of(self._assign(lengths, self.blocks), self.blocks))])
        return self._kept[number]
