"""Structural probes of all layers, with two baselines: a chain of neighbors and an untrained encoder."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.inside.probes.data import ProbeReport, ProbeSettings
from bertkit.inside.probes.structural import StructuralProbe, StructureSettings, fit_structure
from bertkit.inside.probes.tree_files import Tree
from bertkit.inside.probes.trees import (
    Edge,
    Floats,
    mean_over_lengths,
    row_correlations,
    spanning_tree,
    tree_depths,
    tree_distances,
    tree_edges,
)
from bertkit.inside.probes.word_vectors import TrainAndTest, Untrained, WordVectors
from bertkit.progress import ShowProgress, silent
from bertkit.tasks.metrics.intervals import Interval, score_intervals

DRAWN_SENTENCES = 4  # in the report
DRAWN_WORDS = range(8, 17)
Prediction = tuple[Tree, Floats, Floats]  # distances N n n and depths N n of one sentence


@dataclass(frozen=True)
class StructureScore:
    """The scores of one layer's predicted trees."""

    layer: int  # 0: the embeddings
    uuas: float  # share of gold edges found, without punctuation
    distance_spearman: float | None  # over sentences of 5 to 50 words; None if there are none
    root: float  # share of sentences whose root has the smallest predicted depth
    depth_spearman: float | None
    intervals: dict[str, Interval] = field(default_factory=dict)  # of 95 %, by the names above


@dataclass(frozen=True)
class DrawnTree:
    """One sentence to draw.

    Gold heads, predicted edges, and the words in the probe's space.
    """

    words: tuple[str, ...]
    heads: tuple[int, ...]
    counted: tuple[int, ...]
    predicted: tuple[Edge, ...]
    points: tuple[tuple[float, float], ...]  # first two principal components
    lengths: tuple[tuple[int, int, float], ...]  # gold edges (word, head) and their squared length; 1 is correct


@dataclass(frozen=True, kw_only=True)
class StructureReport(ProbeReport):
    """The structural probes of all layers, the baselines, and some sentences to draw."""

    rank: int
    layers: tuple[StructureScore, ...]
    random: tuple[StructureScore, ...]  # an untrained encoder
    chain: StructureScore  # edges between neighbors, the first word as root
    drawn: tuple[DrawnTree, ...]

    @property
    def best(self) -> StructureScore:
        """The layer with the highest UUAS."""
        return max(self.layers, key=lambda layer: layer.uuas)


def probe_structure(
    train: Sequence[Tree],
    test: Sequence[Tree],
    vectors: TrainAndTest,
    random: Untrained,
    settings: ProbeSettings,
    show: ShowProgress = silent,
) -> StructureReport:
    """Train on `train`, score on `test`; `random` gives the vectors of an untrained encoder."""
    probe, layers = _fit_and_score(train, test, vectors, settings, show, "tree probes")
    best = max(layers, key=lambda layer: layer.uuas).layer
    _, untrained = _fit_and_score(train, test, random(), settings, show, "tree probes, untrained")
    [chain] = score_trees(chain_predictions(test))
    drawn = [n for n, tree in enumerate(test) if len(tree.counted) in DRAWN_WORDS][:DRAWN_SENTENCES]
    return StructureReport(
        what="structure",
        rank=probe.distance.shape[-1],
        layers=layers,
        random=untrained,
        chain=chain,
        drawn=tuple(_drawn_tree(probe, vectors[1], test[n], n, best) for n in drawn),
    )


def _fit_and_score(
    train: Sequence[Tree],
    test: Sequence[Tree],
    vectors: TrainAndTest,
    settings: ProbeSettings,
    show: ShowProgress,
    title: str,
) -> tuple[StructuralProbe, tuple[StructureScore, ...]]:
    training = StructureSettings(rank=settings.rank, epochs=settings.epochs, seed=settings.seed)
    with show(title, training.epochs * vectors[0].starts[-1]) as meter:
        probe = fit_structure(vectors[0], train, training, meter)
    return probe, score_trees(predictions(probe, vectors[1], test))


def predictions(probe: StructuralProbe, vectors: WordVectors, trees: Sequence[Tree]) -> Iterator[Prediction]:
    """Each sentence with its predicted distances and depths at every layer."""
    for number, tree in enumerate(trees):
        words_NWD = vectors.sentence(number)
        yield tree, probe.distances(words_NWD).numpy(), probe.depths(words_NWD).numpy()


def chain_predictions(trees: Iterable[Tree]) -> Iterator[Prediction]:
    """The baseline without a model: distances and depths by the position in the sentence."""
    for tree in trees:
        position = np.arange(len(tree.words), dtype=np.float64)
        yield tree, np.abs(position[:, None] - position)[None], position[None]


def score_trees(predicted: Iterable[Prediction]) -> tuple[StructureScore, ...]:
    """UUAS, root accuracy and both correlations at every layer, as in the paper, with their intervals."""
    counts = TreeCounts.of(predicted)
    scores = counts.scores()
    layers, sentences = counts.correct_edges.shape[1], len(counts.lengths)
    found = {f"{name} {layer}": values[layer] for name, values in scores.items() for layer in range(layers)}

    def resampled(chosen: Sequence[int]) -> dict[str, float]:
        rows = counts.scores(np.bincount(chosen, minlength=sentences)).items()
        return {f"{name} {layer}": values[layer] for name, values in rows for layer in range(layers)}

    intervals = score_intervals(resampled, sentences, found)
    return tuple(
        StructureScore(
            layer,
            uuas=float(scores["uuas"][layer]),
            distance_spearman=_known(scores["distance_spearman"][layer]),
            root=float(scores["root"][layer]),
            depth_spearman=_known(scores["depth_spearman"][layer]),
            intervals={name: intervals[key] for name in scores if (key := f"{name} {layer}") in intervals},
        )
        for layer in range(layers)
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


@dataclass(frozen=True)
class TreeCounts:
    """What the scores are made of: a row for each of S sentences, a column for each of N layers."""

    lengths: NDArray[np.int64]  # words of each sentence
    edges: NDArray[np.int64]  # gold edges of each
    correct_edges: Floats  # S N
    correct_roots: Floats  # S N
    distances: Floats  # S N: mean correlation of the words' rows of distances
    depths: Floats  # S N

    @classmethod
    def of(cls, predicted: Iterable[Prediction]) -> "TreeCounts":
        """The counts of each sentence."""
        return cls(*(np.array(column) for column in zip(*map(_tree_counts, predicted), strict=True)))

    def scores(self, times: NDArray[np.int64] | None = None) -> dict[str, Floats]:
        """Metric -> N values, with each sentence counted so many times, by default once; NaN: there is none."""
        times = np.ones(len(self.lengths), np.int64) if times is None else times
        return {
            "uuas": times @ self.correct_edges / max(int(times @ self.edges), 1),
            "distance_spearman": mean_over_lengths(self.lengths, self.distances, times),
            "root": times @ self.correct_roots / times.sum(),
            "depth_spearman": mean_over_lengths(self.lengths, self.depths, times),
        }


def _tree_counts(predicted: Prediction) -> tuple[int, int, Floats, Floats, Floats, Floats]:
    """The fields of `TreeCounts` for one sentence."""
    tree, distances, depths = predicted
    gold, counted = tree_edges(tree.heads, tree.counted), list(tree.counted)
    correct = np.array([float(len(gold & spanning_tree(matrix, counted))) for matrix in distances])
    roots = np.zeros(len(depths))
    if counted:
        roots += np.array(counted)[depths[:, counted].argmin(axis=1)] == tree.root
    correlations = row_correlations(tree_distances(tree.heads), distances).mean(axis=-1)
    return len(tree.words), len(gold), correct, roots, correlations, row_correlations(tree_depths(tree.heads), depths)


def _drawn_tree(probe: StructuralProbe, vectors: WordVectors, tree: Tree, number: int, layer: int) -> DrawnTree:
    words_NWD = vectors.sentence(number)
    points_WK, distances = probe.project(words_NWD)[layer], probe.distances(words_NWD)[layer].numpy()
    lengths = [
        (word, head, round(float(distances[word, head]), 3)) for word, head in enumerate(tree.heads) if head >= 0
    ]
    return DrawnTree(
        words=tree.words,
        heads=tree.heads,
        counted=tree.counted,
        predicted=tuple(sorted(spanning_tree(distances, tree.counted))),
        points=tuple((round(x, 3), round(y, 3)) for x, y in principal_components(points_WK).tolist()),
        lengths=tuple(lengths),
    )


def principal_components(points_WK: torch.Tensor) -> torch.Tensor:
    """W 2: the first two principal components; the largest entry of each direction is positive."""
    centered = (points_WK - points_WK.mean(dim=0)).double()
    _, _, directions = torch.linalg.svd(centered, full_matrices=False)
    points = torch.zeros(len(centered), 2, dtype=torch.float64)
    for axis, direction in enumerate(directions[:2]):
        points[:, axis] = centered @ (direction * direction[direction.abs().argmax()].sign())
    return points
