"""Exact nearest-neighbor search: every vector is compared, block by block, and only the best are kept."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from bertkit.errors import RequestError
from bertkit.text.length import numbered
from bertkit.text_inputs import each_text, refuse_unlisted

VectorsOrFile = np.ndarray | Path | str  # vectors in an array, or the path of a .npy file
TextsOrVectors = Iterable[str] | np.ndarray | Path
ROWS_PER_BLOCK = 8192  # stored vectors compared at a time: 50 MB at width 768 in float64


@dataclass(frozen=True)
class Found:
    """One of the nearest texts."""

    index: int  # of the text, or of the array's row, from 0
    score: float  # cosine between its vector and the query's
    text: str | None  # None: only vectors were searched


@dataclass(frozen=True)
class VectorBlock:
    """Consecutive texts with a vector each; `texts` is None where only vectors are known."""

    vectors: np.ndarray  # float, [texts, width]
    texts: Sequence[str] | None = None


@dataclass(frozen=True)
class NearestSoFar:
    """The nearest texts of one query so far, best first."""

    scores: np.ndarray  # float32
    indices: np.ndarray  # int64
    texts: list[str | None]

    def merged(self, scores: np.ndarray, block: VectorBlock, first: int, k: int) -> "NearestSoFar":
        """The nearest `k` with a block whose texts are numbered from `first`; of equal scores the earlier text wins."""
        all_scores = np.concatenate((self.scores, scores))
        count = len(all_scores)
        lowest = np.partition(all_scores, count - k)[count - k] if count > k else -np.inf
        candidates = np.flatnonzero(all_scores >= lowest)  # in order of index, which a stable sort keeps
        chosen = candidates[np.argsort(-all_scores[candidates], kind="stable")][:k]
        before = len(self.scores)
        texts = [self.texts[n] if n < before else block.texts[n - before] if block.texts else None for n in chosen]
        indices = np.concatenate((self.indices, np.arange(first, first + len(scores))))
        return NearestSoFar(all_scores[chosen], indices[chosen], texts)


def search_blocks(queries_QD: np.ndarray, blocks: Iterable[VectorBlock], k: int) -> list[list[Found]]:
    """The `k` nearest by cosine for each query, best first; memory does not grow with the number of blocks."""
    unit_QD = _unit(queries_QD, partial(numbered, "query"))
    best = [NearestSoFar(np.zeros(0, np.float32), np.zeros(0, np.int64), []) for _ in unit_QD]
    done = 0
    for block in blocks:
        scores_QN = cosines(unit_QD, block.vectors, done)
        best = [nearest.merged(scores, block, done, k) for nearest, scores in zip(best, scores_QN, strict=True)]
        done += len(block.vectors)
    return [_listed(nearest) for nearest in best]


def search_all(queries_QD: np.ndarray, vectors_ND: np.ndarray, k: int) -> list[list[tuple[int, float]]]:
    """The slow twin: all cosines at once, sorted whole; (index, score) pairs."""
    scores_QN = cosines(_unit(queries_QD, partial(numbered, "query")), vectors_ND, 0)
    ranked = [sorted(zip(-scores, range(len(scores)), strict=True))[:k] for scores in scores_QN]
    return [[(index, float(-score)) for score, index in row] for row in ranked]


def cosines(unit_QD: np.ndarray, vectors_ND: np.ndarray, first: int) -> np.ndarray:
    """Cosines, float32 [queries, vectors]; vectors need not have length 1, and a zero vector has cosine 0.

    Computed in float64 and rounded, so that equal vectors have equal scores in every block.
    """
    scores_QN: np.ndarray = unit_QD @ _unit(vectors_ND, lambda row: numbered("vector", first + row)).T
    return scores_QN.astype(np.float32)


def texts_and_vectors(
    texts: TextsOrVectors | None, vectors: VectorsOrFile | None
) -> tuple[Iterator[str] | None, VectorsOrFile | None]:
    """Checked texts and vectors, one of which may be None; vectors may be passed as `texts`."""
    if isinstance(texts, Path) or (isinstance(texts, np.ndarray) and texts.ndim == 2):
        if vectors is not None:
            raise RequestError("vectors came twice, in the place of texts and as vectors; give them once")
        return None, texts
    if texts is None and vectors is None:
        raise RequestError("there is nothing to search: give texts, vectors or both")
    return None if texts is None else checked_texts(texts), vectors


def searched_blocks(
    texts: TextsOrVectors | None,
    vectors: VectorsOrFile | None,
    width: int,
    embed: Callable[[Iterable[str]], Iterator[VectorBlock]],
) -> Iterator[VectorBlock]:
    """Blocks of stored vectors; where there are none, `embed` makes them from the texts."""
    checked, stored = texts_and_vectors(texts, vectors)
    return embed(checked or ()) if stored is None else vector_blocks(open_vectors(stored, width), checked)


def open_vectors(vectors: VectorsOrFile, width: int) -> np.ndarray:
    """The vectors as a float array [rows, width]; a .npy file is memory-mapped. `width` is that of the model."""
    if not isinstance(vectors, np.ndarray | Path | str):
        raise RequestError(f"vectors must be a NumPy array or the path of a .npy file, not {type(vectors).__name__}")
    name = "the array of vectors" if isinstance(vectors, np.ndarray) else str(vectors)
    array = vectors if isinstance(vectors, np.ndarray) else _mapped(Path(vectors))
    if array.ndim != 2 or (array.dtype.kind != "f" and array.dtype != np.int8):
        shape = "x".join(map(str, array.shape))
        raise RequestError(f"{name} holds {shape} numbers of type {array.dtype}; rows of floats or int8 belong there")
    if array.shape[1] != width:
        raise RequestError(
            f"{name} has {array.shape[1]} numbers in a row, but this model's vectors have {width}: "
            "make them with the same model and settings"
        )
    return array


def vector_blocks(vectors_ND: np.ndarray, texts: Iterable[str] | None = None) -> Iterator[VectorBlock]:
    """Blocks of an array's rows, with their texts where these are given; there must be as many."""
    remaining = None if texts is None else iter(texts)
    for start in range(0, len(vectors_ND), ROWS_PER_BLOCK):
        rows = vectors_ND[start : start + ROWS_PER_BLOCK]
        of_block = None if remaining is None else list(islice(remaining, len(rows)))
        if of_block is not None and len(of_block) < len(rows):
            count = start + len(of_block)
            raise RequestError(f"{count} texts came with {len(vectors_ND)} vectors; give as many of both")
        yield VectorBlock(rows, of_block)
    if remaining is not None and next(remaining, None) is not None:
        raise RequestError(
            f"more than {len(vectors_ND)} texts came with {len(vectors_ND)} vectors; give as many of both"
        )


def check_count(k: int) -> int:
    """`k` as an int, from 1."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise RequestError(f"k={k!r} must be a whole number from 1: how many texts to find")
    return int(k)


def checked_texts(texts: Iterable[str]) -> Iterator[str]:
    """The texts one by one, each checked to be a str."""
    if isinstance(texts, str | bytes):
        raise RequestError(
            "a list of texts to search belongs here, not one text; vectors in a file are named vectors='vectors.npy'"
        )
    refuse_unlisted(texts)
    if not isinstance(texts, Iterable):
        raise RequestError(f"texts must be a list or another iterable of str, not {type(texts).__name__}")
    return each_text(texts)


def _mapped(path: Path) -> np.ndarray:
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise RequestError(
            f"{path} is not a whole .npy file of numbers, as bertkit embed writes it; "
            "the lines of a text file are given as open(path)"
        ) from error
    if not isinstance(array, np.ndarray):
        raise RequestError(f"{path} is an archive of arrays; name a .npy file, as bertkit embed writes it")
    return array


def _unit(vectors_ND: np.ndarray, name_of: Callable[[int], str]) -> np.ndarray:
    """float64 rows of length 1; a row that is not finite is an error, which calls it `name_of(row)`."""
    rows = np.asarray(vectors_ND, dtype=np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.isfinite(lengths).all():
        bad = int(np.flatnonzero(~np.isfinite(lengths[:, 0]))[0])
        raise RequestError(f"{name_of(bad)} has numbers that are not finite; make the vectors again")
    return rows / np.where(lengths > 0, lengths, 1)


def _listed(best: NearestSoFar) -> list[Found]:
    columns = (best.indices.tolist(), best.scores.tolist(), best.texts)
    return [Found(index, score, text) for index, score, text in zip(*columns, strict=True)]
