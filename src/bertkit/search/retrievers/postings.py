"""An inverted index on disk: for each key (a word's hash, a token's id) the documents that have it, with weights.

Files: `keys.npy` (ascending), `starts.npy` (where each key's postings start), `documents.npy` (ascending for each key,
counted in the segment), `weights.npy`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.search.arrays import open_array, save_array

FILES = ("keys", "starts", "documents", "weights")


class PostingsWriter:
    """Collects the postings of one segment in memory, and writes them sorted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._added: list[tuple[NDArray[Any], ...]] = []

    def add(self, keys: NDArray[Any], documents: NDArray[Any], weights: NDArray[Any]) -> None:
        """Postings in any order; the weights of a key that is added to a document several times are summed."""
        self._added.append((keys.astype(np.uint64), documents.astype(np.uint32), weights.astype(np.float32)))

    def finish(self) -> None:
        """Write the files."""
        empty = (np.zeros(0, np.uint64), np.zeros(0, np.uint32), np.zeros(0, np.float32))
        keys, documents, weights = (np.concatenate(column) for column in zip(empty, *self._added, strict=True))
        order = np.lexsort((documents, keys))
        keys, documents, weights = keys[order], documents[order], weights[order]
        first = np.flatnonzero(_changes(keys) | _changes(documents))  # of each pair of key and document
        weights = np.add.reduceat(weights, first) if len(first) else weights
        keys, documents = keys[first], documents[first]
        starts = np.flatnonzero(_changes(keys))
        arrays = (keys[starts], np.append(starts, len(keys)).astype(np.int64), documents, weights)
        for name, array in zip(FILES, arrays, strict=True):
            save_array(self.folder / f"{name}.npy", array)


def _changes(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a value differs from the one before; the first does."""
    return np.concatenate([np.ones(min(len(values), 1), np.bool_), values[1:] != values[:-1]])


@dataclass(frozen=True)
class Postings:
    """The postings of one segment, memory-mapped."""

    keys: NDArray[np.uint64]
    starts: NDArray[np.int64]
    documents: NDArray[np.uint32]
    weights: NDArray[np.float32]

    @classmethod
    def open(cls, folder: Path) -> "Postings":
        """From the folder that a PostingsWriter has filled."""
        return cls(*(open_array(folder / f"{name}.npy") for name in FILES))

    def find(self, keys: NDArray[np.uint64]) -> list[tuple[NDArray[np.uint32], NDArray[np.float32]]]:
        """The documents and weights of each key; of one that no document has, empty arrays."""
        at = np.searchsorted(self.keys, keys)
        known = [n < len(self.keys) and self.keys[n] == key for n, key in zip(at, keys, strict=True)]
        spans = [(self.starts[n], self.starts[n + 1]) if ok else (0, 0) for n, ok in zip(at, known, strict=True)]
        return [(self.documents[start:end], self.weights[start:end]) for start, end in spans]
