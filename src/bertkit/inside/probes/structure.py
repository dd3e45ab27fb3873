"""The structural probe of every layer, with two baselines: a chain of neighbors and an untrained encoder."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

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
from bertkit.inside.probes.word_vectors import BothSides, Untrained, WordVectors
from bertkit.progress import ShowProgress, silent

DRAWN_SENTENCES = 4  # in the report
DRAWN_WORDS = range(8, 17)
Prediction = tuple[Tree, Floats, Floats]  # distances N n n and depths N n of one sentence


@dataclass(frozen=True)
class StructureScore:
    """One layer's trees compared with the gold ones."""

    layer: int  # 0: the embeddings
    uuas: float  # share of gold edges found, without punctuation
    distance_spearman: float | None  # over sentences of 5 to 50 words; None: there are none
    root: float  # share of sentences whose root is the word of the least depth
    depth_spearman: float | None


@dataclass(frozen=True)
class DrawnTree:
    """One sentence to draw: gold heads, predicted edges, and where its words are in the probe's space."""

    words: tuple[str, ...]
    heads: tuple[int, ...]
    counted: tuple[int, ...]
    predicted: tuple[Edge, ...]
    points: tuple[tuple[float, float], ...]  # first two principal components
    lengths: tuple[tuple[int, int, float], ...]  # gold edges (word, head) and their squared length; 1 is correct


@dataclass(frozen=True, kw_only=True)
class StructureReport(ProbeReport):
    """The structural probe at every layer, its baselines, and some sentences."""

    rank: int
    layers: tuple[StructureScore, ...]
    random: tuple[StructureScore, ...]  # an untrained encoder
    chain: StructureScore  # neighbors are linked, the first word is the root
    drawn: tuple[DrawnTree, ...]

    @property
    def best(self) -> StructureScore:
        """The layer with the highest UUAS."""
        return max(self.layers, key=lambda each: each.uuas)


def probe_structure(
    train: Sequence[Tree],
    test: Sequence[Tree],
    vectors: BothSides,
    random: Untrained,
    settings: ProbeSettings,
    show: ShowProgress = silent,
) -> StructureReport:
    """Fit on `train`, score on `test`; `random` gives the vectors of an encoder that was never trained."""
    probe, layers = _fit_and_score(train, test, vectors, settings, show, "tree probes")
    best = max(layers, key=lambda each: each.uuas).layer
    _, untrained = _fit_and_score(train, test, random(), settings, show, "tree probes, untrained")
    [chain] = score_trees(chain_predictions(test))
    drawn = [n for n, tree in enumerate(test) if len(tree.counted) in DRAWN_WORDS][:DRAWN_SENTENCES]
    return StructureReport(
        what="structure",
        rank=probe.distance.shape[-1],
        layers=layers,
        random=untrained,
        chain=chain,
        drawn=tuple(_drawn(probe, vectors[1], test[n], n, best) for n in drawn),
    )


def _fit_and_score(
    train: Sequence[Tree],
    test: Sequence[Tree],
    vectors: BothSides,
    settings: ProbeSettings,
    show: ShowProgress,
    title: str,
) -> tuple[StructuralProbe, tuple[StructureScore, ...]]:
    how = StructureSettings(rank=settings.rank, epochs=settings.epochs, seed=settings.seed)
    with show(title, how.epochs * vectors[0].starts[-1]) as meter:
        probe = fit_structure(vectors[0], train, how, meter)
    return probe, score_trees(predictions(probe, vectors[1], test))


def predictions(probe: StructuralProbe, vectors: WordVectors, trees: Sequence[Tree]) -> Iterator[Prediction]:
    """Each sentence with its predicted distances and depths at every layer."""
    for number, tree in enumerate(trees):
        own = vectors.rows(np.arange(vectors.starts[number], vectors.starts[number + 1]))
        yield tree, probe.distances(own).numpy(), probe.depths(own).numpy()


def chain_predictions(trees: Iterable[Tree]) -> Iterator[Prediction]:
    """The baseline that needs no model: distances in the line, depths by the place in it."""
    for tree in trees:
        place = np.arange(len(tree.words), dtype=np.float64)
        yield tree, np.abs(place[:, None] - place)[None], place[None]


def score_trees(found: Iterable[Prediction]) -> tuple[StructureScore, ...]:
    """UUAS, root and both correlations at every layer, as published."""
    right: Any = 0
    roots: Any = 0
    edges = sentences = 0
    rows: dict[int, list[Floats]] = defaultdict(list)
    columns: dict[int, list[Floats]] = defaultdict(list)
    for tree, distances, depths in found:
        gold, counted = tree_edges(tree.heads, tree.counted), list(tree.counted)
        right = right + np.array([len(gold & spanning_tree(each, counted)) for each in distances])
        edges, sentences = edges + len(gold), sentences + 1
        if counted:
            roots = roots + (np.array(counted)[depths[:, counted].argmin(axis=1)] == tree.root)
        rows[len(tree.words)].append(row_correlations(tree_distances(tree.heads), distances))
        columns[len(tree.words)].append(row_correlations(tree_depths(tree.heads), depths)[:, None])
    layers = len(next(iter(rows.values()))[0])
    shares, tops = np.zeros(layers) + right / max(edges, 1), np.zeros(layers) + roots / max(sentences, 1)
    return tuple(
        StructureScore(n, float(shares[n]), _layer_mean(rows, n), float(tops[n]), _layer_mean(columns, n))
        for n in range(layers)
    )


def _layer_mean(found: dict[int, list[Floats]], layer: int) -> float | None:
    return mean_over_lengths({length: np.concatenate([each[layer] for each in own]) for length, own in found.items()})


def _drawn(probe: StructuralProbe, vectors: WordVectors, tree: Tree, number: int, layer: int) -> DrawnTree:
    own = vectors.rows(np.arange(vectors.starts[number], vectors.starts[number + 1]))
    places, distances = probe.place(own)[layer], probe.distances(own)[layer].numpy()
    lengths = [
        (word, head, round(float(distances[word, head]), 3)) for word, head in enumerate(tree.heads) if head >= 0
    ]
    return DrawnTree(
        words=tree.words,
        heads=tree.heads,
        counted=tree.counted,
        predicted=tuple(sorted(spanning_tree(distances, tree.counted))),
        points=tuple((round(x, 3), round(y, 3)) for x, y in flat(places).tolist()),
        lengths=tuple(lengths),
    )


def flat(places_WK: torch.Tensor) -> torch.Tensor:
    """W 2: the picture with the largest spread (PCA); the largest number of each direction is positive."""
    centered = (places_WK - places_WK.mean(dim=0)).double()
    _, _, directions = torch.linalg.svd(centered, full_matrices=False)
    points = torch.zeros(len(centered), 2, dtype=torch.float64)
    for at, direction in enumerate(directions[:2]):
        points[:, at] = centered @ (direction * direction[direction.abs().argmax()].sign())
    return points
