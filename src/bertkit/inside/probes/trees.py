"""The arithmetic of trees: distances, depths, the spanning tree of a probe's distances, and how near it comes to gold.

Hewitt & Manning 2019: UUAS is the share of gold edges that the minimum spanning tree has, without punctuation;
Spearman's correlation is taken for each word's row of distances, averaged over the sentences of each length, then over
the lengths from 5 to 50.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Floats = NDArray[np.floating]
Edge = tuple[int, int]  # the earlier word first
SHORTEST, LONGEST = 5, 50  # lengths whose correlations are averaged


def tree_depths(heads: Sequence[int]) -> NDArray[np.int16]:
    """How many steps each word is from the root; heads count from 0, the root's is -1."""
    depths = np.full(len(heads), -1, dtype=np.int16)
    for start in range(len(heads)):
        word, way = start, []
        while word >= 0 and depths[word] < 0:
            way.append(word)
            word = heads[word]
        above = -1 if word < 0 else int(depths[word])
        for step, each in enumerate(reversed(way), start=1):
            depths[each] = above + step
    return depths


def tree_distances(heads: Sequence[int]) -> NDArray[np.int16]:
    """Pairs n n: how many steps lie between any two words along the tree."""
    distances = np.zeros((len(heads), len(heads)), dtype=np.int16)
    # Root first: a word is one step further from all that hang already than its head is.
    order = np.argsort(tree_depths(heads), kind="stable")
    for at, word in enumerate(order[1:], start=1):
        placed = order[:at]
        distances[word, placed] = distances[placed, word] = distances[heads[word], placed] + 1
    return distances


def tree_edges(heads: Sequence[int], counted: Sequence[int]) -> set[Edge]:
    """The edges between words that are counted."""
    own = set(counted)
    pairs = ((word, head) for word, head in enumerate(heads) if word in own and head in own)
    return {(min(pair), max(pair)) for pair in pairs}


def spanning_tree(distances: Floats, counted: Sequence[int]) -> set[Edge]:
    """The edges that hold the counted words together at the least sum of distances: Prim's algorithm."""
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
    """Spearman's correlation of each row of two matrices; 0 where a row is constant, which predicts nothing."""
    rows = [rankdata(each, axis=-1) for each in (gold, predicted)]
    first, second = (each - each.mean(axis=-1, keepdims=True) for each in rows)
    size = np.sqrt((first**2).sum(axis=-1) * (second**2).sum(axis=-1))
    found: Floats = np.where(size > 0, (first * second).sum(axis=-1) / np.maximum(size, 1e-12), 0.0)
    return found


def mean_over_lengths(values: Mapping[int, Sequence[float] | Floats]) -> float | None:
    """The mean for each length, then the mean of these; None where no sentence has 5 to 50 words."""
    means = [np.mean(found) for length, found in sorted(values.items()) if SHORTEST <= length <= LONGEST]
    return float(np.mean(means)) if means else None
