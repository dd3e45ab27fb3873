"""The nearest texts to a query, exactly: every vector is compared, block by block, and only the best are kept."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from bertkit.errors import RequestError
from bertkit.text_inputs import each_text, refuse_unlisted

Stored = np.ndarray | Path | str  # vectors in an array, or the name of a .npy file
Searched = Iterable[str] | np.ndarray | Path
ROWS_PER_BLOCK = 8192  # of stored vectors: 50 MB at 768 numbers, in float64


@dataclass(frozen=True)
class Found:
    """One of the nearest texts."""

    index: int  # among all texts, or rows of the array, from 0
    score: float  # the cosine between its vector and the query's
    text: str | None  # None: there were only vectors


@dataclass(frozen=True)
class VectorBlock:
    """Some neighboring texts with a vector each; `texts` is None where only vectors are known."""

    vectors: np.ndarray  # float, [texts, width]
    texts: Sequence[str] | None = None


@dataclass(frozen=True)
class NearestSoFar:
    """The best of a query so far, best first."""

    scores: np.ndarray  # float32
    indices: np.ndarray  # int64
    texts: list[str | None]

    def merged(self, scores: np.ndarray, block: VectorBlock, first: int, k: int) -> "NearestSoFar":
        """With a block whose texts are numbered from `first`; of equal scores the one that came first stays ahead."""
        both = np.concatenate((self.scores, scores))
        floor = np.partition(both, len(both) - k)[len(both) - k] if len(both) > k else -np.inf
        near = np.flatnonzero(both >= floor)  # in the order of their numbers, so that a stable sort keeps it
        chosen = near[np.argsort(-both[near], kind="stable")][:k]
        own, kept = len(self.scores), self.texts
        texts = [kept[at] if at < own else block.texts[at - own] if block.texts else None for at in chosen]
        numbers = np.concatenate((self.indices, np.arange(first, first + len(scores))))
        return NearestSoFar(both[chosen], numbers[chosen], texts)


def search_blocks(queries_QD: np.ndarray, blocks: Iterable[VectorBlock], k: int) -> list[list[Found]]:
    """The `k` nearest by cosine for each query, best first; memory does not grow with the number of blocks."""
    unit_QD = _unit(queries_QD, "query number {}".format)
    best = [NearestSoFar(np.zeros(0, np.float32), np.zeros(0, np.int64), []) for _ in unit_QD]
    done = 0
    for block in blocks:
        scores_QN = cosines(unit_QD, block.vectors, done)
        best = [each.merged(scores, block, done, k) for each, scores in zip(best, scores_QN, strict=True)]
        done += len(block.vectors)
    return [_listed(each) for each in best]


def search_all(queries_QD: np.ndarray, vectors_ND: np.ndarray, k: int) -> list[list[tuple[int, float]]]:
    """The slow twin: all cosines at once, sorted whole; (index, score) pairs."""
    scores_QN = cosines(_unit(queries_QD, "query number {}".format), vectors_ND, 0)
    ranked = [sorted(zip(-scores, range(len(scores)), strict=True))[:k] for scores in scores_QN]
    return [[(index, float(-score)) for score, index in row] for row in ranked]


def cosines(unit_QD: np.ndarray, vectors_ND: np.ndarray, first: int) -> np.ndarray:
    """float32 [queries, vectors]; vectors need not be of length 1, and one of length 0 is as near as a right angle.

    Computed in float64 and rounded: equal vectors have equal scores, wherever in whichever block they stand.
    """
    scores_QN: np.ndarray = unit_QD @ _unit(vectors_ND, lambda row: f"the vector in row {first + row}").T
    return scores_QN.astype(np.float32)


def sort_out(texts: Searched | None, vectors: Stored | None) -> tuple[Iterator[str] | None, Stored | None]:
    """Texts and vectors, of which one may be missing; vectors may have come in the place of texts."""
    if isinstance(texts, Path) or (isinstance(texts, np.ndarray) and texts.ndim == 2):
        if vectors is not None:
            raise RequestError("vectors came twice, in the place of texts and as vectors; give them once")
        return None, texts
    if texts is None and vectors is None:
        raise RequestError("there is nothing to search: give texts, vectors or both")
    return None if texts is None else checked_texts(texts), vectors


def open_vectors(vectors: Stored, width: int) -> np.ndarray:
    """A two-dimensional array of floats, or such a .npy file, which is mapped and not read; `width` is the model's."""
    name = "the array of vectors" if isinstance(vectors, np.ndarray) else str(vectors)
    found = vectors if isinstance(vectors, np.ndarray) else _mapped(Path(vectors))
    if found.ndim != 2 or found.dtype.kind != "f":
        shape = "x".join(map(str, found.shape))
        raise RequestError(f"{name} holds {shape} numbers of type {found.dtype}; rows of floats belong there")
    if found.shape[1] != width:
        raise RequestError(
            f"{name} has {found.shape[1]} numbers in a row, but this model's vectors have {width}: "
            "make them with the same model and settings"
        )
    return found


def vector_blocks(vectors_ND: np.ndarray, texts: Iterable[str] | None = None) -> Iterator[VectorBlock]:
    """Rows of an array, with the texts they were made of if those are given; there must be as many."""
    waiting = None if texts is None else iter(texts)
    for start in range(0, len(vectors_ND), ROWS_PER_BLOCK):
        rows = vectors_ND[start : start + ROWS_PER_BLOCK]
        own = None if waiting is None else list(islice(waiting, len(rows)))
        if own is not None and len(own) < len(rows):
            raise RequestError(f"{start + len(own)} texts came with {len(vectors_ND)} vectors; give as many of both")
        yield VectorBlock(rows, own)
    if waiting is not None and next(waiting, None) is not None:
        raise RequestError(
            f"more than {len(vectors_ND)} texts came with {len(vectors_ND)} vectors; give as many of both"
        )


def check_count(k: int) -> int:
    """How many are wanted: a whole number from 1."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise RequestError(f"k={k!r} must be a whole number from 1: how many texts to find")
    return int(k)


def checked_texts(texts: Iterable[str]) -> Iterator[str]:
    """One after the other, each of them a str."""
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
        found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise RequestError(f"{path} is not a whole .npy file of numbers: {error}") from error
    if not isinstance(found, np.ndarray):
        raise RequestError(f"{path} is an archive of arrays; name a .npy file, as bertkit embed writes it")
    return found


def _unit(vectors_ND: np.ndarray, where: Callable[[int], str]) -> np.ndarray:
    """float64, each row of length 1; a row that is not finite is named."""
    rows = np.asarray(vectors_ND, dtype=np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.isfinite(lengths).all():
        bad = int(np.flatnonzero(~np.isfinite(lengths[:, 0]))[0])
        raise RequestError(f"{where(bad)} has numbers that are not finite; make the vectors again")
    return rows / np.where(lengths > 0, lengths, 1)


def _listed(best: NearestSoFar) -> list[Found]:
    found = zip(best.indices.tolist(), best.scores.tolist(), best.texts, strict=True)
    return [Found(index, score, text) for index, score, text in found]
