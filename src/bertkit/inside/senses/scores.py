"""Scores of how well vectors separate senses: nearest-neighbor accuracy, chance, clusters and silhouette."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import RequestError

Vectors = NDArray[np.float32]
MAX_CLUSTERS = 6  # tried if the number is not given
MIN_USES_PER_CLUSTER = 5  # on average: of fewer uses, clusters are accidents
COSINE_TOLERANCE = 1e-6  # smaller differences are below the precision of float32
ROWS_AT_ONCE = 512  # of the matrix of cosines


@dataclass(frozen=True)
class Clusters:
    """The cluster of each vector, and the silhouette (1: well separated, 0: not; None: fewer than two clusters)."""

    numbers: tuple[int, ...]
    silhouette: float | None


def units(vectors: Vectors) -> Vectors:
    """The vectors normalized to length 1."""
    normalized: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
    return normalized


def neighbor_accuracy(vectors: Vectors, senses: Sequence[str]) -> float:
    """How often the nearest other vector has the same sense; of equally near ones, the share that has it."""
    if len(senses) < 2:
        raise RequestError("a nearest neighbor needs two uses or more")
    directions, sense_ids = units(vectors), np.unique(np.asarray(senses), return_inverse=True)[1]
    correct = 0.0
    for start in range(0, len(directions), ROWS_AT_ONCE):
        cosines = directions[start : start + ROWS_AT_ONCE] @ directions.T
        rows = np.arange(start, start + len(cosines))
        cosines[np.arange(len(cosines)), rows] = -np.inf
        nearest = cosines >= cosines.max(axis=1, keepdims=True) - COSINE_TOLERANCE
        same = sense_ids[rows, None] == sense_ids[None]
        correct += float(((nearest & same).sum(axis=1) / nearest.sum(axis=1)).sum())
    return correct / len(directions)


def chance(senses: Sequence[str]) -> float:
    """The accuracy of a random neighbor, which is that of one vector for all uses."""
    size = len(senses)
    return sum(count * (count - 1) for count in Counter(senses).values()) / (size * max(size - 1, 1))


def cluster(vectors: Vectors, count: int | None = None, seed: int = 1) -> Clusters:
    """k-means on normalized vectors; without a count, the number with the best silhouette.

    Tried are 2 to 6 clusters of at least 5 uses on average, and a cluster of one use is chosen only if all have one.
    """
    if count is not None and not 1 <= count <= len(vectors):
        raise RequestError(f"clusters={count} must be from 1 to the number of uses, {len(vectors)}")
    directions = units(vectors)
    distinct = len(np.unique(directions.round(5), axis=0))
    most = min(MAX_CLUSTERS, distinct, max(2, len(directions) // MIN_USES_PER_CLUSTER), len(directions) - 1)
    counts = [min(count, distinct)] if count is not None else list(range(2, most + 1))
    candidates = [_k_means(directions, number, seed) for number in counts if number > 1]
    single = Clusters((0,) * len(directions), None)
    candidates = [each for each in candidates if min(Counter(each.numbers).values()) > 1] or candidates
    return max(candidates, key=lambda one: -2 if one.silhouette is None else one.silhouette, default=single)


def _k_means(directions: Vectors, count: int, seed: int) -> Clusters:
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    numbers = KMeans(count, n_init=10, random_state=seed).fit_predict(directions)
    # Clusters are numbered by size, so that colors are the same in every run.
    order = {old: new for new, (old, _) in enumerate(Counter(numbers.tolist()).most_common())}
    defined = 1 < len(order) < len(directions)
    score = float(silhouette_score(directions, numbers, metric="cosine")) if defined else None
    return Clusters(tuple(order[number] for number in numbers.tolist()), score)


def label_silhouette(vectors: Vectors, senses: Sequence[str]) -> float | None:
    """The silhouette of the labeled senses; None for one sense, or as many senses as uses."""
    from sklearn.metrics import silhouette_score

    if not 1 < len(set(senses)) < len(senses):
        return None
    return float(silhouette_score(units(vectors), list(senses), metric="cosine"))


def project(vectors: Vectors) -> tuple[NDArray[np.float64], float]:
    """The first two principal components n 2 of the normalized vectors, and their share of the variance."""
    from sklearn.decomposition import PCA

    directions = units(vectors).astype(np.float64)
    if np.ptp(directions, axis=0).max() < COSINE_TOLERANCE:
        return np.zeros((len(directions), 2)), 1.0
    pca = PCA(2, random_state=0, svd_solver="full")
    points: NDArray[np.float64] = pca.fit_transform(directions)
    return points, float(pca.explained_variance_ratio_.sum())
