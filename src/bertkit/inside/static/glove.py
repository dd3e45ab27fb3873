"""GloVe: vectors whose products are the logarithms of how often words stand near each other."""

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

COUNTED = 1_000_000  # words whose pairs are counted at a time: ten million of them with a window of 10
PAIRS = 4096  # of one step
ENOUGH, BEND = 100.0, 0.75  # the paper's: a pair counts (count / 100) ** 0.75, and 1 from there on
RUN = 250_000  # pairs that one thread takes at a time


@dataclass(frozen=True, eq=False)
class NearCounts:
    """P pairs of words, each once with the smaller number first, and how often they are near: 1 / distance, summed."""

    one: NDArray[np.int32]
    other: NDArray[np.int32]
    counts: NDArray[np.float32]

    def shuffled(self, seed: int) -> "NearCounts":
        """The same pairs in another order: training must not meet all pairs of one word in a row."""
        order = np.random.default_rng(seed).permutation(len(self.counts))
        return NearCounts(self.one[order], self.other[order], self.counts[order])


def near_counts(corpus: WordCorpus, window: int, watch: Callable[[int], None] = lambda done: None) -> NearCounts:
    """Count every pair of words that stand within a window in one sentence."""
    size = len(corpus.words)
    total = csr_matrix((size, size), dtype=np.float64)
    for start in range(0, len(corpus.ids), COUNTED):
        # A pair belongs to the stretch of its first word, so stretches overlap by a window.
        ids = corpus.ids[start : start + COUNTED + window]
        sentences = corpus.sentence_numbers(start, start + COUNTED + window)
        total = total + _counted(ids, sentences, window, min(COUNTED, len(corpus.ids) - start), size)
        watch(start)
    found = total.tocoo()
    return NearCounts(found.row.astype(np.int32), found.col.astype(np.int32), found.data.astype(np.float32))


def _counted(ids: NDArray[np.int32], sentences: NDArray[np.int64], window: int, firsts: int, size: int) -> csr_matrix:
    pairs, shares = [], []
    for distance in range(1, window + 1):
        last = min(firsts, len(ids) - distance)
        here, there = slice(0, max(last, 0)), slice(distance, distance + max(last, 0))
        same = sentences[here] == sentences[there]
        pairs.append(np.sort(np.stack([ids[here][same], ids[there][same]]), axis=0))
        shares.append(np.full(pairs[-1].shape[1], 1 / distance))
    one, other = np.concatenate(pairs, axis=1)
    return coo_matrix((np.concatenate(shares), (one, other)), shape=(size, size)).tocsr()


def near_counts_by_words(corpus: WordCorpus, window: int) -> Counter[tuple[int, int]]:
    """The slow twin: word by word."""
    found: Counter[tuple[int, int]] = Counter()
    for start, stop in zip(corpus.starts[:-1].tolist(), corpus.starts[1:].tolist(), strict=True):
        words = corpus.ids[start:stop].tolist()
        for place, word in enumerate(words):
            for distance, other in enumerate(words[place + 1 : place + 1 + window], start=1):
                found[min(word, other), max(word, other)] += 1 / distance  # type: ignore[assignment]
    return found


class GloveTables:
    """Two vectors and two biases for each word, with AdaGrad's sum of squares beside every number."""

    def __init__(self, words: int, settings: StaticSettings) -> None:
        generator = torch.Generator().manual_seed(settings.seed)
        shape = (words, settings.width + 1)  # the last column is the bias
        self.rows = [(torch.rand(shape, generator=generator) - 0.5) / settings.width for _ in range(2)]
        self.squares = [torch.ones(shape) for _ in range(2)]

    def step(self, one: Tensor, other: Tensor, counts: Tensor, rate: float) -> None:
        """Move both words of each pair toward a product of log(count)."""
        sides = (one, other)
        x, y = (rows.index_select(0, ids) for rows, ids in zip(self.rows, sides, strict=True))
        biases = x[:, -1] + y[:, -1]
        x[:, -1] = y[:, -1] = 1  # from here on these are slopes: of the other's vector, and of a bias
        error = counts.log() - biases - (x * y).sum(dim=1) + 1
        error *= (counts / ENOUGH).clamp_(max=1).pow_(BEND)
        for rows, squares, ids, slope in zip(self.rows, self.squares, sides, (y, x), strict=True):
            steps, where = slope.mul_(error[:, None]), ids[:, None].expand_as(slope)
            squares.scatter_add_(0, where, steps.square())
            steps *= squares.index_select(0, ids).rsqrt_().mul_(rate)
            rows.scatter_add_(0, where, steps)

    def vectors(self) -> Tensor:
        """W D: the sum of both vectors of each word, as the paper has it."""
        return self.rows[0][:, :-1] + self.rows[1][:, :-1]


def glove_run(tables: GloveTables, near: NearCounts, start: int, rate: float, seed: list[int]) -> int:
    """Train on the pairs of one run, in a drawn order, either word of a pair as the center; says how many they were."""
    rng = np.random.default_rng(seed)
    order = start + rng.permutation(min(RUN, len(near.counts) - start))
    turned = rng.random(len(order)) < 0.5
    one, other = near.one[order], near.other[order]
    sides = [torch.from_numpy(np.where(turned, a, b).astype(np.int64)) for a, b in ((one, other), (other, one))]
    counts = torch.from_numpy(near.counts[order])
    for first in range(0, len(order), PAIRS):
        here = slice(first, first + PAIRS)
        tables.step(sides[0][here], sides[1][here], counts[here], rate)
    return len(order)
