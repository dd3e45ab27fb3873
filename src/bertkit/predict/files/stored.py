"""STORED: the number types that vectors are written in, smaller ones with less of each number."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]  # [rows, width]
LARGEST = 127  # int8


@dataclass(frozen=True)
class StoredAs:
    """A row of STORED."""

    dtype: str
    encode: Callable[[Vectors], NDArray[Any]]
    per_number: int = 1  # numbers of a vector in one number on disk

    def width(self, width: int) -> int:
        """Numbers on disk of a vector of so many."""
        return -(-width // self.per_number)


def to_int8(vectors_ND: Vectors) -> NDArray[np.int8]:
    """Each vector times the number that makes its largest value 127: cosines stay as they are, but for rounding."""
    largest_N1 = np.abs(vectors_ND).max(axis=1, keepdims=True)
    rounded: NDArray[np.int8] = np.rint(vectors_ND * (LARGEST / np.where(largest_N1 > 0, largest_N1, 1))).astype(
        np.int8
    )
    return rounded


def to_bits(vectors_ND: NDArray[Any]) -> NDArray[np.uint8]:
    """A bit for each number, 1 where it is over 0; eight in a byte, the first in the highest bit."""
    return np.packbits(vectors_ND > 0, axis=1)


STORED: dict[str, StoredAs] = {
    "float32": StoredAs("<f4", lambda vectors: vectors),
    "float16": StoredAs("<f2", lambda vectors: vectors.astype(np.float16)),
    "int8": StoredAs("|i1", to_int8),
    "binary": StoredAs("|u1", to_bits, per_number=8),
}
