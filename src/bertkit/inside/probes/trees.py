"""Dependency trees: distances, depths, minimum spanning trees, and correlations with predicted distances.

Hewitt & Manning 2019: UUAS is the share of gold edges in the minimum spanning tree of predicted distances, without
punctuation; Spearman's correlation is computed for each word's row of distances, averaged over the sentences of each
length, then over lengths from 5 to 50.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Floats = NDArray[np.floating]
Edge = tuple[int, int]  # the earlier word first
MIN_LENGTH, MAX_LENGTH = 5, 50  # lengths whose correlations are averaged


def tree_depths(heads: Sequence[int]) -> NDArray[np.int16]:
    """The distance of each word from the root; heads count from 0, the root's is -1."""
    depths = np.full(len(heads), -1, dtype=np.int16)
    for start in range(len(heads)):
        word, ancestors = start, []
        while word >= 0 and depths[word] < 0:
            ancestors.append(word)
            word = heads[word]
        above = -1 if word < 0 else int(depths[word])
        for step, word in enumerate(reversed(ancestors), start=1):
            depths[word] = above + step
    return depths


def tree_distances(heads: Sequence[int]) -> NDArray[np.int16]:
    """N n: the number of edges between any two words."""
    distances = np.zeros((len(heads), len(heads)), dtype=np.int16)
    # From the root on: a word is one step farther from all earlier words than its head.
    order = np.argsort(tree_depths(heads), kind="stable")
    for count, word in enumerate(order[1:], start=1):
        earlier = order[:count]
        distances[word, earlier] = distances[earlier, word] = distances[heads[word], earlier] + 1
    return distances


def tree_edges(heads: Sequence[int], counted: Sequence[int]) -> set[Edge]:
    """The edges between counted words."""
    words = set(counted)
    pairs = ((word, head) for word, head in enumerate(heads) if word in words and head in words)
    return {(min(pair), max(pair)) for pair in pairs}


def spanning_tree(distances: Floats, counted: Sequence[int]) -> set[Edge]:
    """The edges of the minimum spanning tree of the counted words, by Prim's algorithm."""
    if len(counted) < 2:
        return set()
    words = np.asarray(counted)
    between = distances[np.ix_(words, words)]
    nearest, parent = between[0].astype(np.float64), np.zeros(len(words), dtype=np.int64)
    nearest[0] = np.inf
    inside = np.zeros(len(words), dtype=bool)
    inside[0] = True
    edges = set()
    for _ in range(len(words) - 1):
        new = int(nearest.argmin())
        edges.add((int(min(words[new], words[parent[new]])), int(max(words[new], words[parent[new]]))))
        inside[new], nearest[new] = True, np.inf
        closer = ~inside & (between[new] < nearest)
        nearest[closer], parent[closer] = between[new][closer], new
    return edges


def row_correlations(gold: Floats | NDArray[np.int16], predicted: Floats) -> Floats:
    """Spearman's correlation of each row of two matrices; 0 for constant rows."""
    ranks = [rankdata(matrix, axis=-1) for matrix in (gold, predicted)]
    first, second = (rank - rank.mean(axis=-1, keepdims=True) for rank in ranks)
    norm = np.sqrt((first**2).sum(axis=-1) * (second**2).sum(axis=-1))
    correlations: Floats = np.where(norm > 0, (first * second).sum(axis=-1) / np.maximum(norm, 1e-12), 0.0)
    return correlations


def mean_over_lengths(lengths: NDArray[np.int64], values_SN: Floats, times: NDArray[np.int64]) -> Floats:
    """N: the mean over lengths of the mean of each length, of sentences counted `times` times; NaN without any."""
    shown = [length for length in range(MIN_LENGTH, MAX_LENGTH + 1) if times[lengths == length].any()]
    means = [np.average(values_SN[lengths == n], axis=0, weights=times[lengths == n]) for n in shown]
    return np.mean(means, axis=0) if means else np.full(values_SN.shape[1], np.nan)
