"""GloVe: vectors whose dot products approximate the logarithms of co-occurrence counts."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix
from torch import Tensor

from bertkit.inside.static.corpus import WordCorpus
from bertkit.inside.static.settings import StaticSettings

WORDS_AT_ONCE = 1_000_000  # for counting pairs: ten million pairs with a window of 10
PAIRS_PER_STEP = 4096
MAX_COUNT, COUNT_EXPONENT = 100.0, 0.75  # the weight of a pair is min(1, (count / 100) ** 0.75), as in the paper
PAIRS_PER_JOB = 250_000  # of one thread


@dataclass(frozen=True, eq=False)
class Cooccurrences:
    """P pairs of words, the smaller id first, and their co-occurrence counts: the sums of 1 / distance."""

    one: NDArray[np.int32]
    other: NDArray[np.int32]
    counts: NDArray[np.float32]

    def shuffled(self, seed: int) -> "Cooccurrences":
        """The pairs in random order, so that those of one word are not consecutive."""
        order = np.random.default_rng(seed).permutation(len(self.counts))
        return Cooccurrences(self.one[order], self.other[order], self.counts[order])


def count_pairs(corpus: WordCorpus, window: int, update: Callable[[int], None] = lambda words: None) -> Cooccurrences:
    """Count all pairs of words within a window of one sentence."""
    size = len(corpus.words)
    total = csr_matrix((size, size), dtype=np.float64)
    for start in range(0, len(corpus.ids), WORDS_AT_ONCE):
        # A pair belongs to the part of its first word, so parts overlap by a window.
        ids = corpus.ids[start : start + WORDS_AT_ONCE + window]
        sentences = corpus.sentence_numbers(start, start + WORDS_AT_ONCE + window)
        total = total + _count_part(ids, sentences, window, min(WORDS_AT_ONCE, len(corpus.ids) - start), size)
        update(start)
    pairs = total.tocoo()
    return Cooccurrences(pairs.row.astype(np.int32), pairs.col.astype(np.int32), pairs.data.astype(np.float32))


def _count_part(
    ids: NDArray[np.int32], sentences: NDArray[np.int64], window: int, firsts: int, size: int
) -> csr_matrix:
    """The counts of pairs whose first word is among the first `firsts` words."""
    pairs, counts = [], []
    for distance in range(1, window + 1):
        last = min(firsts, len(ids) - distance)
        first, second = slice(0, max(last, 0)), slice(distance, distance + max(last, 0))
        same = sentences[first] == sentences[second]
        pairs.append(np.sort(np.stack([ids[first][same], ids[second][same]]), axis=0))
        counts.append(np.full(pairs[-1].shape[1], 1 / distance))
    one, other = np.concatenate(pairs, axis=1)
    return coo_matrix((np.concatenate(counts), (one, other)), shape=(size, size)).tocsr()


def count_pairs_plain(corpus: WordCorpus, window: int) -> Counter[tuple[int, int]]:
    """The readable reference of `count_pairs`, word by word."""
    counts: Counter[tuple[int, int]] = Counter()
    for start, stop in zip(corpus.starts[:-1].tolist(), corpus.starts[1:].tolist(), strict=True):
        words = corpus.ids[start:stop].tolist()
        for index, word in enumerate(words):
            for distance, other in enumerate(words[index + 1 : index + 1 + window], start=1):
                counts[min(word, other), max(word, other)] += 1 / distance  # type: ignore[assignment]
    return counts


class GloveTables:
    """Two vectors and two biases for each word, with the sums of squared gradients of AdaGrad."""

    def __init__(self, words: int, settings: StaticSettings) -> None:
        generator = torch.Generator().manual_seed(settings.seed)
        shape = (words, settings.width + 1)  # the last column is the bias
        self.rows = [(torch.rand(shape, generator=generator) - 0.5) / settings.width for _ in range(2)]
        self.squares = [torch.ones(shape) for _ in range(2)]

    def step(self, one: Tensor, other: Tensor, counts: Tensor, rate: float) -> None:
        """Update both words of each pair, so that their product approaches log(count)."""
        sides = (one, other)
        x, y = (rows.index_select(0, ids) for rows, ids in zip(self.rows, sides, strict=True))
        biases = x[:, -1] + y[:, -1]
        x[:, -1] = y[:, -1] = (
            1  # x and y are now the gradients of the product with respect to each other, and of the biases
        )
        error = counts.log() - biases - (x * y).sum(dim=1) + 1
        error *= (counts / MAX_COUNT).clamp_(max=1).pow_(COUNT_EXPONENT)
        for rows, squares, ids, gradient in zip(self.rows, self.squares, sides, (y, x), strict=True):
            steps, index = gradient.mul_(error[:, None]), ids[:, None].expand_as(gradient)
            squares.scatter_add_(0, index, steps.square())
            steps *= squares.index_select(0, ids).rsqrt_().mul_(rate)
            rows.scatter_add_(0, index, steps)

    def vectors(self) -> Tensor:
        """W D: the sum of both vectors of each word, as in the paper."""
        return self.rows[0][:, :-1] + self.rows[1][:, :-1]


def train_pairs(tables: GloveTables, pairs: Cooccurrences, start: int, rate: float, seed: list[int]) -> int:
    """Train on the pairs of one job in random order, with a random center of each; return their number."""
    rng = np.random.default_rng(seed)
    order = start + rng.permutation(min(PAIRS_PER_JOB, len(pairs.counts) - start))
    swapped = rng.random(len(order)) < 0.5
    one, other = pairs.one[order], pairs.other[order]
    sides = [torch.from_numpy(np.where(swapped, a, b).astype(np.int64)) for a, b in ((one, other), (other, one))]
    counts = torch.from_numpy(pairs.counts[order])
    for first in range(0, len(order), PAIRS_PER_STEP):
        step = slice(first, first + PAIRS_PER_STEP)
        tables.step(sides[0][step], sides[1][step], counts[step], rate)
    return len(order)
