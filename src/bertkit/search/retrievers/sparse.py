"""Learned sparse retrieval (SPLADE): weights of word pieces by a masked-word head, in an inverted index."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertkit.model.retrieval import SparseSettings
from bertkit.predict.retrieval import Weights, sparse_blocks
from bertkit.search.retrievers.learned import Learned
from bertkit.search.retrievers.postings import Postings, PostingsWriter
from bertkit.search.retrievers.retriever import Hits, Segment, best, joined
from bertkit.settings import Count, check_fields


@dataclass(frozen=True, kw_only=True)
class PieceSettings:
    """How much of a document is kept."""

    pieces: Count = 512  # the heaviest word pieces of a document; models that were trained for it give fewer

    def __post_init__(self) -> None:
        check_fields(self)


class Sparse(Learned[Postings]):
    """The retriever by the word pieces that a text stands for."""

    settings_type, kind, encode = PieceSettings, SparseSettings, sparse_blocks

    def writer(self, folder: Path) -> "SparseWriter":
        """Weighs the word pieces of a segment's documents."""
        return SparseWriter(self, folder)

    def open(self, folder: Path) -> Postings:
        """The postings."""
        return Postings.open(folder)

    def search(self, segments: Sequence[Segment[Postings]], queries: Sequence[str], k: int) -> list[Hits]:
        """Documents that share no word piece with the query are not found."""
        return [joined([_hits(each, weights, k) for each in segments], k) for weights in self.queries(queries)]


class SparseWriter:
    """Postings of one segment."""

    def __init__(self, sparse: Sparse, folder: Path) -> None:
        self._sparse, self._postings, self._documents = sparse, PostingsWriter(folder), 0

    def add(self, texts: Sequence[str]) -> None:
        """Add the word pieces of the texts."""
        rows = [heaviest(weights, self._sparse.settings.pieces) for weights in self._sparse.documents(texts)]
        numbers = np.repeat(np.arange(self._documents, self._documents + len(rows)), [len(ids) for ids, _ in rows])
        ids, weights = (np.concatenate(column) for column in zip(*rows, strict=True))
        self._postings.add(ids, numbers, weights)
        self._documents += len(rows)

    def finish(self) -> None:
        """Write the postings."""
        self._postings.finish()


def heaviest(weights: Weights, most: int) -> Weights:
    """The `most` heaviest word pieces; of equal ones the first in the vocabulary."""
    ids, values = weights
    kept = np.sort(np.argsort(-values, kind="stable")[:most])
    return ids[kept], values[kept]


def _hits(segment: Segment[Postings], query: Weights, k: int) -> Hits:
    """The best documents of a segment: the sum over shared pieces of the product of the weights."""
    ids, weights = query
    scores = np.zeros(segment.documents)
    found = segment.part.find(ids.astype(np.uint64))
    for weight, (documents, values) in zip(weights.astype(np.float64), found, strict=True):
        scores[documents] += weight * values
    numbers = np.flatnonzero(scores)
    return best(segment.first + numbers, scores[numbers], k)
