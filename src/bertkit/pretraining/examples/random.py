"""Stateless random numbers: each is a function of a seed and counters, so resuming needs one integer.

`draw` maps arrays of counters to 64 bits each: a mask depends on its example alone, and not on the block, rank or run
in which it is made.
"""

import math
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import RequestError

Bits = NDArray[np.uint64]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Counter = int | Bits | Ints

GOLDEN_STEP = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: the increment of SplitMix64
ROUNDS = 8  # of the permutation; 4 pass the tests, but at size 5 even 12 favor some positions by 1 %
SMALL_SIZE = 1000  # permutations up to this size use twice as many rounds


class Purpose(IntEnum):
    """The first counter of every draw, so that different uses of a seed get different numbers. Never renumber."""

    ORDER = 1
    CUTS = 2
    PAIRS = 3
    SPANS = 4
    CHOICE = 5
    CORRUPTION = 6


def draw(state: Counter, *counters: Counter) -> Bits:
    """64 random bits for each combination of the counters, which broadcast. A draw can seed further draws."""
    bits = np.atleast_1d(np.asarray(state, dtype=np.uint64))
    for counter in counters:
        bits = _mix(bits + GOLDEN_STEP * (np.atleast_1d(np.asarray(counter, dtype=np.uint64)) + np.uint64(1)))
    return bits


def uniform(bits: Bits) -> Floats:
    """Random bits as floats in [0, 1)."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(rolls: Floats, limit: Ints | int) -> Ints:
    """Floats in [0, 1) as integers in [0, limit)."""
    return (rolls * limit).astype(np.int64)


def permute(seed: Counter, size: int, index: Ints) -> Ints:
    """The images of indices under a pseudo-random permutation of range(size), in O(1) and without a table.

    `seed` is one number, or one per index if they belong to different permutations. This is a Feistel network over a
    rectangle of at least `size` cells: row and column are shifted in turn, each by a hash of the other. Results of
    `size` or more are mapped again until they are in range (cycle walking).
    """
    index = np.asarray(index, dtype=np.int64)
    if index.size and not 0 <= index.min() <= index.max() < size:
        raise RequestError(f"an index of {index.min()}..{index.max()} is outside a permutation of {size}")
    rows = math.isqrt(max(size - 1, 0)) + 1
    sides = (rows, -(-size // rows))
    rounds = ROUNDS if size > SMALL_SIZE else 2 * ROUNDS
    keys = np.broadcast_to(draw(seed, np.arange(rounds)[:, None]), (rounds, len(index)))
    image = _feistel(index, sides, keys)
    while len(outside := np.flatnonzero(image >= size)):
        image[outside] = _feistel(image[outside], sides, keys[:, outside])
    return image


def _feistel(index: Ints, sides: tuple[int, int], keys: Bits) -> Ints:
    """One pass of the network over the cells of a rectangle, numbered row by row; `keys` has a row per round."""
    halves: list[Ints] = list(np.divmod(index, sides[1]))
    for number, key in enumerate(keys):
        side, other = number % 2, 1 - number % 2
        shift = (draw(key, halves[other]) >> np.uint64(32)) * np.uint64(sides[side]) >> np.uint64(32)
        halves[side] = (halves[side] + shift.astype(np.int64)) % sides[side]
    return halves[0] * sides[1] + halves[1]


def _mix(bits: Bits) -> Bits:
    """The finalizer of SplitMix64: every bit of the result depends on every bit of the input. In place."""
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits
