"""Whether vectors separate senses: nearest-neighbor accuracy, chance, and clusters with their silhouette."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import RequestError

Vectors = NDArray[np.float32]
MAX_CLUSTERS = 6  # tried when the number is not given
TIE = 1e-6  # cosines nearer than this are equal: float32 is no more precise
ROWS = 512  # of the table of cosines at a time


@dataclass(frozen=True)
class Clusters:
    """Which cluster each vector is in, and how clearly (1: far apart, 0: no border, None: fewer than two clusters)."""

    numbers: tuple[int, ...]
    silhouette: float | None


def units(vectors: Vectors) -> Vectors:
    """Each vector at length 1."""
    found: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
    return found


def neighbor_accuracy(vectors: Vectors, senses: Sequence[str]) -> float:
    """How often the nearest other vector has the same sense; of several equally near ones, the share that has it."""
    if len(senses) < 2:
        raise RequestError("a nearest neighbor needs two uses or more")
    ways, names = units(vectors), np.unique(np.asarray(senses), return_inverse=True)[1]
    right = 0.0
    for start in range(0, len(ways), ROWS):
        cosines = ways[start : start + ROWS] @ ways.T
        mine = np.arange(start, start + len(cosines))
        cosines[np.arange(len(cosines)), mine] = -np.inf
        nearest = cosines >= cosines.max(axis=1, keepdims=True) - TIE
        same = names[mine, None] == names[None]
        right += float(((nearest & same).sum(axis=1) / nearest.sum(axis=1)).sum())
    return right / len(ways)


def chance(senses: Sequence[str]) -> float:
    """The accuracy of a neighbor drawn at random: what one vector for all uses gives."""
    size = len(senses)
    return sum(count * (count - 1) for count in Counter(senses).values()) / (size * max(size - 1, 1))


def cluster(vectors: Vectors, count: int | None = None, seed: int = 1) -> Clusters:
    """k-means on directions; without a count, the one from 2 to 6 with the best silhouette."""
    if count is not None and not 1 <= count <= len(vectors):
        raise RequestError(f"clusters={count} must be from 1 to the number of uses, {len(vectors)}")
    ways = units(vectors)
    different = len(np.unique(ways.round(5), axis=0))
    most = min(MAX_CLUSTERS, different, len(ways) - 1)
    counts = [min(count, different)] if count is not None else list(range(2, most + 1))
    found = [_clustered(ways, number, seed) for number in counts if number > 1]
    one = Clusters((0,) * len(ways), None)
    return max(found, key=lambda each: -2 if each.silhouette is None else each.silhouette, default=one)


def _clustered(ways: Vectors, count: int, seed: int) -> Clusters:
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    numbers = KMeans(count, n_init=10, random_state=seed).fit_predict(ways)
    # Cluster 0 is the largest, so that colors mean the same from run to run.
    order = {old: new for new, (old, _) in enumerate(Counter(numbers.tolist()).most_common())}
    scored = 1 < len(order) < len(ways)
    score = float(silhouette_score(ways, numbers, metric="cosine")) if scored else None
    return Clusters(tuple(order[number] for number in numbers.tolist()), score)


def label_silhouette(vectors: Vectors, senses: Sequence[str]) -> float | None:
    """Silhouette of the given senses; None where there is one sense, or as many as uses."""
    from sklearn.metrics import silhouette_score

    if not 1 < len(set(senses)) < len(senses):
        return None
    return float(silhouette_score(units(vectors), list(senses), metric="cosine"))


def flat(vectors: Vectors) -> tuple[NDArray[np.float64], float]:
    """[n, 2]: the first two principal components, and their share of the variance."""
    from sklearn.decomposition import PCA

    ways = units(vectors).astype(np.float64)
    if np.ptp(ways, axis=0).max() < TIE:
        return np.zeros((len(ways), 2)), 1.0
    pca = PCA(2, random_state=0, svd_solver="full")
    points: NDArray[np.float64] = pca.fit_transform(ways)
    return points, float(pca.explained_variance_ratio_.sum())
