"""The structural probe: a linear map after which squared distances are tree distances and squared norms are depths.

Hewitt & Manning 2019: the loss is the mean of |tree distance - squared distance| over the pairs of words of a sentence;
for depth, the same over its words. The probes of all layers are trained together, independently of each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.engine.batches import token_batches
from bertkit.inside.probes.tree_files import Tree
from bertkit.inside.probes.trees import tree_depths, tree_distances
from bertkit.inside.probes.word_vectors import WordVectors
from bertkit.progress import Meter

WORDS_PER_STEP = 512
MAX_WORDS = 512  # of a sentence; the number of distances is the square


@dataclass(frozen=True)
class StructureSettings:
    """How the linear maps are trained."""

    rank: int = 128
    epochs: int = 10
    rate: float = 2e-3
    seed: int = 0


@dataclass(frozen=True)
class StructuralProbe:
    """A linear map for distances and one for depths at each layer, N D K each."""

    distance: Tensor
    depth: Tensor

    def project(self, vectors_NWD: Tensor) -> Tensor:
        """N W K: the words in the space of distances."""
        return torch.einsum("nwd,ndk->nwk", vectors_NWD, self.distance)

    def distances(self, vectors_NWD: Tensor) -> Tensor:
        """N W W: predicted tree distances of one sentence."""
        return squared_distances(self.project(vectors_NWD))

    def depths(self, vectors_NWD: Tensor) -> Tensor:
        """N W: predicted tree depths."""
        return torch.einsum("nwd,ndk->nwk", vectors_NWD, self.depth).square().sum(dim=-1)


def squared_distances(points: Tensor) -> Tensor:
    """... n K -> ... n n: squared distances of all pairs, from their dot products."""
    norms = points.square().sum(dim=-1)
    return (norms[..., :, None] + norms[..., None, :] - 2 * points @ points.transpose(-1, -2)).clamp(min=0)


def fit_structure(
    vectors: WordVectors, trees: Sequence[Tree], settings: StructureSettings, meter: Meter | None = None
) -> StructuralProbe:
    """Train both maps at every layer. The result of a layer does not depend on the other layers."""
    scale = _feature_scale(vectors)
    layers, width = scale.shape
    maps = _initial_maps(layers, width, min(settings.rank, width), settings.seed)
    optimizer = torch.optim.Adam(maps, lr=settings.rate)
    gold = [(tree_distances(tree.heads), tree_depths(tree.heads)) for tree in trees]
    total = settings.epochs * sum(len(tree.words) for tree in trees)
    done = 0
    for chosen in _batches([len(tree.words) for tree in trees], settings):
        rows = np.concatenate([np.arange(vectors.starts[n], vectors.starts[n + 1]) for n in chosen])
        optimizer.param_groups[0]["lr"] = settings.rate * (1 - done / total)
        optimizer.zero_grad()
        loss = _loss(vectors.rows(rows) / scale[:, None], maps, [gold[n] for n in chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        done += len(rows)
        if meter is not None:
            meter.update(done, {"loss": f"{float(loss.detach()) / layers:.3f}"})
    return StructuralProbe(*(weights.detach() / scale[:, :, None] for weights in maps))


def _initial_maps(layers: int, width: int, rank: int, seed: int) -> list[Tensor]:
    """Random maps, equal for all layers, that give distances of about 4, as in trees."""
    generator = torch.Generator().manual_seed(seed)
    size = (2 / (rank * width)) ** 0.5
    maps = [size * torch.randn(1, width, rank, generator=generator) for _ in range(2)]
    return [weights.repeat(layers, 1, 1).requires_grad_() for weights in maps]


def _feature_scale(vectors: WordVectors, most: int = 4096) -> Tensor:
    """N D: the root mean square of each feature, estimated on at most `most` words, to normalize the inputs."""
    words = vectors.values.shape[1]
    sample = np.unique(np.linspace(0, words - 1, min(words, most)).astype(np.int64))
    return vectors.rows(sample).square().mean(dim=1).sqrt().clamp(min=1e-4)


def _batches(lengths: Sequence[int], settings: StructureSettings) -> Iterator[list[int]]:
    """Batches of sentences of similar length, shuffled in each epoch."""
    rng = np.random.default_rng(settings.seed)
    for _ in range(settings.epochs):
        order = rng.permutation(len(lengths))  # shuffles sentences of equal length
        groups = [
            [int(order[i]) for i in group] for group in token_batches([lengths[n] for n in order], WORDS_PER_STEP)
        ]
        yield from (groups[n] for n in rng.permutation(len(groups)))


def _loss(
    vectors_NWD: Tensor, maps: Sequence[Tensor], gold: Sequence[tuple[NDArray[np.int16], NDArray[np.int16]]]
) -> Tensor:
    """The mean over sentences of both losses, summed over layers."""
    distance, depth = (torch.bmm(vectors_NWD, weights) for weights in maps)
    lengths = [len(depths) for _, depths in gold]
    true, mask = _padded_distances([distances for distances, _ in gold])
    predicted = squared_distances(_padded(distance, mask))
    pairs = mask[:, :, None] & mask[:, None, :]
    count = torch.tensor(lengths, dtype=torch.float32)
    distance_loss = ((predicted - true).abs() * (pairs / count.square()[:, None, None])).sum()
    depths = torch.from_numpy(np.concatenate([depths for _, depths in gold])).float()
    depth_loss = ((depth.square().sum(dim=-1) - depths).abs() / count.repeat_interleave(torch.tensor(lengths))).sum()
    return (distance_loss + depth_loss) / len(lengths)


def _padded_distances(distances: Sequence[NDArray[np.int16]]) -> tuple[Tensor, Tensor]:
    """Distances S n n, padded, and their mask S n."""
    longest = max(map(len, distances))
    values = np.zeros((len(distances), longest, longest), dtype=np.float32)
    mask = np.zeros((len(distances), longest), dtype=bool)
    for n, matrix in enumerate(distances):
        values[n, : len(matrix), : len(matrix)] = matrix
        mask[n, : len(matrix)] = True
    return torch.from_numpy(values), torch.from_numpy(mask)


def _padded(points_NWK: Tensor, mask_Sn: Tensor) -> Tensor:
    """N W K -> N S n K: the words of each sentence in a row."""
    layers, _, rank = points_NWK.shape
    padded = points_NWK.new_zeros(layers, mask_Sn.numel(), rank)
    index = mask_Sn.flatten().nonzero().squeeze(1)
    return padded.index_copy(1, index, points_NWK).view(layers, *mask_Sn.shape, rank)
