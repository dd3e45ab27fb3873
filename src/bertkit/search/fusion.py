"""Several retrievers' hits as one list: by their scores with weights, even or fitted, or by reciprocal ranks."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import RequestError
from bertkit.search.retrievers.retriever import NO_HITS, Hits, best
from bertkit.tasks.metrics.ranking import MAIN_RANKING_METRIC, ranking_scores

Weights = Mapping[str, float]  # by retriever
# By name: the weights of `fused`, from those of an index.
FUSIONS: dict[str, Callable[[Weights], Weights | None]] = {"scores": lambda weights: weights, "ranks": lambda _: None}
RANK_CONSTANT = 60  # of reciprocal-rank fusion (Cormack 2009)
STEPS = 10  # of the grid of weights between 0 and 1


def fused(found: Mapping[str, Hits], weights: Weights | None, k: int) -> Hits:
    """The best `k` of all hits of one query; without weights by reciprocal ranks. A single list stays as it is."""
    if len(found) == 1:
        [(numbers, scores)] = found.values()
        return numbers[:k], scores[:k]
    points = {
        name: (hits[0], 1 / (RANK_CONSTANT + _ranks(hits)) if weights is None else weights[name] * _scaled(hits[1]))
        for name, hits in found.items()
    }
    numbers = np.unique(np.concatenate([NO_HITS[0], *(each[0] for each in points.values())]))
    totals = np.zeros(len(numbers))
    for of_one, added in points.values():
        totals[np.searchsorted(numbers, of_one)] += added
    return best(numbers, totals, k)


def fit_weights(
    found: Sequence[Mapping[str, Hits]], judged: Sequence[Mapping[str, float]], ids: Sequence[Mapping[int, str]]
) -> dict[str, float]:
    """The weights, of a grid, with the best mean nDCG@10 over judged queries; of equal ones the most even.

    `ids`: for each query the ids of its hits, by which its relevance is known.
    """
    names = list(found[0]) if found else []
    if len(names) < 2:
        raise RequestError("weights are fitted for several retrievers; this index has one, or no query is judged")
    relevance = [dict[Hashable, float](each.items()) for each in judged]

    def score(weights: Weights) -> tuple[float, float]:
        rankings = (
            [keys[n] for n in fused(hits, weights, 10)[0].tolist()] for hits, keys in zip(found, ids, strict=True)
        )
        mean = ranking_scores(zip(relevance, rankings, strict=True))[MAIN_RANKING_METRIC]
        return round(mean, 6), -max(weights.values())

    return max(_grid(names), key=score)


def _grid(names: Sequence[str]) -> Iterator[dict[str, float]]:
    """Weights that sum to 1."""
    for shares in product(range(STEPS + 1), repeat=len(names) - 1):
        if sum(shares) <= STEPS:
            yield dict(zip(names, [share / STEPS for share in (*shares, STEPS - sum(shares))], strict=True))


def _ranks(hits: Hits) -> NDArray[np.float64]:
    return np.arange(1.0, len(hits[0]) + 1)


def _scaled(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """From 1, the best of the list, to 0, the last; documents that are not in it have 0, too."""
    scaled = scores.astype(np.float64)
    span = float(np.ptp(scaled)) if len(scaled) else 0.0
    return (scaled - scaled.min()) / span if span else np.ones(len(scaled))
