"""Late interaction (ColBERT): a vector for each token; a document's score is the sum of each query token's best match.

Every document is compared, block by block, by products in float32; those that may be among the best are scored again
in float64, from the stored numbers. The result is that of scoring all of them so (`predict.retrieval` has the formula).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import RequestError
from bertkit.model.retrieval import LateSettings
from bertkit.predict.retrieval import maxsim, token_blocks
from bertkit.search.arrays import ArrayWriter, open_array
from bertkit.search.retrievers.formats import FORMATS, ROUNDING, VectorsWriter
from bertkit.search.retrievers.learned import Learned
from bertkit.search.retrievers.retriever import NO_HITS, Hits, Segment, best
from bertkit.settings import check_fields

TOKENS_PER_BLOCK = 32_768  # of stored vectors that are compared at a time: 16 MB at width 128
QUERIES_AT_A_TIME = 16  # for which the stored vectors are read once


@dataclass(frozen=True, kw_only=True)
class TokenSettings:
    """How vectors of tokens are stored."""

    token_vectors: Literal["float16", "int8"] = "float16"

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class TokenPart:
    """The stored vectors of one segment: those of document n are from `starts[n]` to `starts[n + 1]`."""

    arrays: Mapping[str, NDArray[Any]]
    starts: NDArray[np.int64]

    def vectors(self, start: int, end: int) -> NDArray[np.float32]:
        """The vectors of documents from `start` to `end`, end to end."""
        rows = slice(self.starts[start], self.starts[end])
        vectors: NDArray[np.float32] = self.arrays["vectors"][rows].astype(np.float32)
        return vectors * self.arrays["scales"][rows, None] if "scales" in self.arrays else vectors

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Documents from and to, of about TOKENS_PER_BLOCK tokens together; one at least."""
        start, last = 0, len(self.starts) - 1
        while start < last:
            fitting = int(np.searchsorted(self.starts, self.starts[start] + TOKENS_PER_BLOCK, side="right")) - 1
            end = max(fitting, start + 1)
            yield start, end
            start = end


class Late(Learned[TokenPart]):
    """The retriever by a vector for each token."""

    settings_type, kind, encode = TokenSettings, LateSettings, token_blocks

    def writer(self, folder: Path) -> "LateWriter":
        """Embeds the tokens of a segment's documents."""
        if self.settings.token_vectors == "int8" and not self.late.normalize:
            raise RequestError("token_vectors=int8 keeps only directions, and this model's vectors differ in length")
        return LateWriter(self, folder)

    @property
    def late(self) -> LateSettings:
        """How the model's vectors are made and compared."""
        assert isinstance(self.how, LateSettings)
        return self.how

    def open(self, folder: Path) -> TokenPart:
        """The stored vectors."""
        return TokenPart(FORMATS[self.settings.token_vectors].open(folder), open_array(folder / "starts.npy"))

    def search(self, segments: Sequence[Segment[TokenPart]], queries: Sequence[str], k: int) -> list[Hits]:
        """The documents with the highest sums; one without vectors is not found."""
        vectors, found = self.queries(queries), []
        for first in range(0, len(vectors), QUERIES_AT_A_TIME):
            together = vectors[first : first + QUERIES_AT_A_TIME]
            columns = [quick_scores(segment.part, together) for segment in segments]
            scores_QN = np.concatenate([np.zeros((len(together), 0), np.float32), *columns], axis=1)
            score = partial(_exact_hits, segments, k, self.late.mean)
            found += [score(query, quick) for query, quick in zip(together, scores_QN, strict=True)]
        return found


class LateWriter:
    """Vectors of the tokens of one segment."""

    def __init__(self, late: Late, folder: Path) -> None:
        self._late, self._end = late, 0
        self._vectors = VectorsWriter(folder, FORMATS[late.settings.token_vectors])
        self._starts = ArrayWriter(folder / "starts.npy", "<i8")
        self._starts.append(np.zeros(1, np.int64))

    def add(self, texts: Sequence[str]) -> None:
        """Embed the tokens of the texts and write their vectors."""
        rows = self._late.documents(texts)
        self._vectors.append(np.concatenate(rows))
        ends = self._end + np.cumsum([len(vectors) for vectors in rows])
        self._starts.append(ends)
        self._end = int(ends[-1])

    def finish(self) -> None:
        """Complete the files."""
        self._vectors.close()
        self._starts.close()


def quick_scores(part: TokenPart, queries: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Q N: sums of best matches in float32; minus infinity for documents without vectors."""
    scores_QN = np.full((len(queries), len(part.starts) - 1), -np.inf, np.float32)
    for start, end in part.blocks():
        vectors_TW = part.vectors(start, end)
        firsts = part.starts[start:end] - part.starts[start]
        filled = np.diff(part.starts[start : end + 1]) > 0
        for scores_N, query_LW in zip(scores_QN, queries, strict=True):
            if filled.any():
                best_NL = np.maximum.reduceat(vectors_TW @ query_LW.T, firsts[filled], axis=0)
                scores_N[start:end][filled] = best_NL.sum(axis=1)
    return scores_QN


def _exact_hits(
    segments: Sequence[Segment[TokenPart]],
    k: int,
    mean: bool,
    query_LW: NDArray[np.float32],
    quick_N: NDArray[np.float32],
) -> Hits:
    """The best documents by float64 scores of all that the quick scores leave as candidates."""
    numbers = np.flatnonzero(np.isfinite(quick_N))
    if not len(numbers) or not len(query_LW):
        return NO_HITS
    if len(numbers) > k:
        least = np.partition(quick_N[numbers], len(numbers) - k)[len(numbers) - k]
        longest = float(np.linalg.norm(query_LW, axis=1).sum())
        numbers = numbers[quick_N[numbers] >= least - 2 * ROUNDING * longest]
    scores = [_exact(segments, number, query_LW.astype(np.float64), mean) for number in numbers.tolist()]
    return best(numbers, np.array(scores), k)


def _exact(segments: Sequence[Segment[TokenPart]], number: int, query_LW: NDArray[np.float64], mean: bool) -> float:
    segment = next(each for each in reversed(segments) if each.first <= number)
    place = number - segment.first
    return maxsim(query_LW, segment.part.vectors(place, place + 1).astype(np.float64), mean=mean)
