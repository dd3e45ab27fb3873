"""How vectors are stored, and how the nearest are found in each format: first by quick scores, then exactly.

The quick scores of a format are off by at most a known margin. Documents within two margins of the k-th best are
scored again, from the stored numbers in float64; no other can be among the best, so the result is that of scoring all.
Only bits have no margin: there the best of many candidates are taken.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.engine.int8 import levels
from bertkit.predict.files.outputs import LARGEST, to_bits, to_int8
from bertkit.predict.search import cosines
from bertkit.search.arrays import ArrayWriter, open_array

Rows = NDArray[Any]  # [documents, width]
ROWS_AT_A_TIME = 1024  # of floats that are converted for quick scores: they stay in the cache
ROUNDING = 1e-4  # how far a float32 product of two vectors of length 1 is off, at most


@dataclass(frozen=True)
class QuickQuery:
    """A query of length 1, prepared for quick scores; `margin` is how far they are off, at most."""

    unit_D: NDArray[np.float64]
    prepared: Any
    margin: float | None  # None: not known


@dataclass(frozen=True)
class VectorFormat:
    """A row of FORMATS. Files are named by their arrays: those of `encode`, "vectors" always."""

    dtypes: Mapping[str, str]  # array -> dtype on disk
    encode: Callable[[NDArray[np.float32]], Mapping[str, Rows]]
    prepare: Callable[[NDArray[np.float64]], QuickQuery]
    quick: Callable[[Mapping[str, Rows], Any], NDArray[np.float32]]

    def open(self, folder: Path) -> dict[str, Rows]:
        """The arrays of a segment, memory-mapped."""
        return {name: open_array(folder / f"{name}.npy") for name in self.dtypes}


def exact_scores(query: QuickQuery, vectors_ND: Rows) -> NDArray[np.float32]:
    """Cosines between the query and stored vectors, as `predict.search.search_all` computes them."""
    scores: NDArray[np.float32] = cosines(query.unit_D[None], vectors_ND, 0)[0]
    return scores


def _float_query(unit_D: NDArray[np.float64]) -> QuickQuery:
    return QuickQuery(unit_D, torch.from_numpy(unit_D.astype(np.float32)), ROUNDING)


def _float_scores(arrays: Mapping[str, Rows], query_D: torch.Tensor) -> NDArray[np.float32]:
    blocks = torch.split(torch.from_numpy(arrays["vectors"]), ROWS_AT_A_TIME)
    scores: NDArray[np.float32] = torch.cat([block.float() @ query_D for block in blocks]).numpy()
    return scores


def _int8(vectors_ND: NDArray[np.float32]) -> Mapping[str, Rows]:
    """`scales` makes each vector's length 1 again."""
    rounded = to_int8(vectors_ND)
    lengths = np.linalg.norm(rounded.astype(np.float32), axis=1)
    return {"vectors": rounded, "scales": np.where(lengths > 0, 1 / np.where(lengths > 0, lengths, 1), 0)}


def _int8_query(unit_D: NDArray[np.float64]) -> QuickQuery:
    """The query in int8: rounding moves it by a vector, whose length is the most that a cosine can change."""
    # Without VNNI, pairs of products are added in 16 bits: of 127 and 127 they would overflow there.
    step = float(np.abs(unit_D).max()) / (LARGEST if levels() == LARGEST else LARGEST // 2) or 1.0
    rounded = np.rint(unit_D / step)
    margin = float(np.linalg.norm(unit_D - rounded * step)) + ROUNDING
    return QuickQuery(unit_D, (torch.from_numpy(rounded.astype(np.int8))[:, None], step), margin)


def _int8_scores(arrays: Mapping[str, Rows], query: tuple[torch.Tensor, float]) -> NDArray[np.float32]:
    column_D1, step = query
    products = torch._int_mm(torch.from_numpy(arrays["vectors"]), column_D1)[:, 0]
    scores: NDArray[np.float32] = products.numpy() * (arrays["scales"] * np.float32(step))
    return scores


def _binary(vectors_ND: NDArray[np.float32]) -> Mapping[str, Rows]:
    """A bit for the sign of each number; the int8 vectors are kept for exact scores of the candidates."""
    return {"bits": _bits(vectors_ND), **_int8(vectors_ND)}


def _bits(vectors_ND: NDArray[Any]) -> NDArray[np.uint64]:
    """[documents, width / 64, rounded up]."""
    packed = to_bits(vectors_ND)
    return np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8))).view(np.uint64)


def _binary_scores(arrays: Mapping[str, Rows], query_B: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Minus the number of bits that differ; word by word, as NumPy sums short rows slowly."""
    differing = np.zeros(len(arrays["bits"]), np.float32)
    for words_N, word in zip(arrays["bits"].T, query_B, strict=True):
        differing += _ones(words_N ^ word)
    return -differing


def _ones_slowly(words_N: NDArray[np.uint64]) -> NDArray[Any]:
    """The number of ones in each word, for NumPy 1."""
    ones_N: NDArray[Any] = np.unpackbits(np.ascontiguousarray(words_N).view(np.uint8).reshape(-1, 8), axis=1).sum(1)
    return ones_N


_ones: Callable[[NDArray[np.uint64]], NDArray[Any]] = getattr(np, "bitwise_count", _ones_slowly)


# The first is the default. Bytes of a vector of 384 numbers: 384, 1,536, 768, and 48 that every query reads.
FORMATS: dict[str, VectorFormat] = {
    "int8": VectorFormat({"vectors": "|i1", "scales": "<f4"}, _int8, _int8_query, _int8_scores),
    "float32": VectorFormat({"vectors": "<f4"}, lambda vectors: {"vectors": vectors}, _float_query, _float_scores),
    "float16": VectorFormat({"vectors": "<f2"}, lambda vectors: {"vectors": vectors}, _float_query, _float_scores),
    "binary": VectorFormat(
        {"bits": "<u8", "vectors": "|i1", "scales": "<f4"},
        _binary,
        lambda unit_D: QuickQuery(unit_D, _bits(unit_D[None])[0], None),
        _binary_scores,
    ),
}


class VectorsWriter:
    """Vectors of one segment in a format, written as they come."""

    def __init__(self, folder: Path, form: VectorFormat) -> None:
        self.folder, self.form = folder, form
        self._files: dict[str, ArrayWriter] = {}

    def append(self, vectors_ND: NDArray[np.float32]) -> None:
        """Append vectors."""
        for name, rows in self.form.encode(vectors_ND).items():
            if name not in self._files:
                width = rows.shape[1] if rows.ndim == 2 else None
                self._files[name] = ArrayWriter(self.folder / f"{name}.npy", self.form.dtypes[name], width)
            self._files[name].append(rows)

    def close(self) -> None:
        """Complete the files."""
        for file in self._files.values():
            file.close()
