"""The structural probe: a linear map after which squared distances are distances in the tree, and squared norms depths.

Hewitt & Manning 2019: |tree distance - squared distance| summed over a sentence's pairs, divided by their number; for
depth the same over its words. Every layer's probe is learned at once, and none of them feels the others.
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
MAX_WORDS = 512  # of a sentence: its distances are the square of that


@dataclass(frozen=True)
class StructureSettings:
    """How the maps are trained."""

    rank: int = 128
    epochs: int = 10
    rate: float = 2e-3
    seed: int = 0


@dataclass(frozen=True)
class StructuralProbe:
    """One map for distances and one for depths at each layer, N D K."""

    distance: Tensor
    depth: Tensor

    def place(self, vectors_NWD: Tensor) -> Tensor:
        """N W K: where the words are in the space of distances."""
        return torch.einsum("nwd,ndk->nwk", vectors_NWD, self.distance)

    def distances(self, vectors_NWD: Tensor) -> Tensor:
        """N W W: predicted tree distances of one sentence."""
        return squared_distances(self.place(vectors_NWD))

    def depths(self, vectors_NWD: Tensor) -> Tensor:
        """N W: predicted tree depths."""
        return torch.einsum("nwd,ndk->nwk", vectors_NWD, self.depth).square().sum(dim=-1)


def squared_distances(places: Tensor) -> Tensor:
    """... n K -> ... n n: squared distances from the products of all pairs."""
    norms = places.square().sum(dim=-1)
    return (norms[..., :, None] + norms[..., None, :] - 2 * places @ places.transpose(-1, -2)).clamp(min=0)


def fit_structure(
    vectors: WordVectors, trees: Sequence[Tree], settings: StructureSettings, meter: Meter | None = None
) -> StructuralProbe:
    """Train both maps at every layer. The same seed gives the same maps, alone or beside other layers."""
    scale = _scale(vectors)
    layers, width = scale.shape
    maps = _first_maps(layers, width, min(settings.rank, width), settings.seed)
    optimizer = torch.optim.Adam(maps, lr=settings.rate)
    gold = [(tree_distances(tree.heads), tree_depths(tree.heads)) for tree in trees]
    total = settings.epochs * sum(len(tree.words) for tree in trees)
    done = 0
    for chosen in _steps([len(tree.words) for tree in trees], settings):
        rows = np.concatenate([np.arange(vectors.starts[n], vectors.starts[n + 1]) for n in chosen])
        optimizer.param_groups[0]["lr"] = settings.rate * (1 - done / total)
        optimizer.zero_grad()
        loss = _loss(vectors.rows(rows) / scale[:, None], maps, [gold[n] for n in chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        done += len(rows)
        if meter is not None:
            meter.update(done, {"loss": f"{float(loss.detach()) / layers:.3f}"})
    return StructuralProbe(*(each.detach() / scale[:, :, None] for each in maps))


def _first_maps(layers: int, width: int, rank: int, seed: int) -> list[Tensor]:
    """Initial maps: distances of about 4, as trees have them, and the same for every layer."""
    generator = torch.Generator().manual_seed(seed)
    size = (2 / (rank * width)) ** 0.5
    drawn = [size * torch.randn(1, width, rank, generator=generator) for _ in range(2)]
    return [each.repeat(layers, 1, 1).requires_grad_() for each in drawn]


def _scale(vectors: WordVectors, most: int = 4096) -> Tensor:
    """N D: the scale of each feature, so that one learning rate suits all; the trained map is divided by it."""
    words = vectors.values.shape[1]
    some = np.unique(np.linspace(0, words - 1, min(words, most)).astype(np.int64))
    return vectors.rows(some).square().mean(dim=1).sqrt().clamp(min=1e-4)


def _steps(lengths: Sequence[int], settings: StructureSettings) -> Iterator[list[int]]:
    """Sentences of about one length together, in an order that is new in each epoch."""
    draw = np.random.default_rng(settings.seed)
    for _ in range(settings.epochs):
        order = draw.permutation(len(lengths))  # equal lengths are neighbors by chance
        groups = [
            [int(order[i]) for i in group] for group in token_batches([lengths[n] for n in order], WORDS_PER_STEP)
        ]
        yield from (groups[at] for at in draw.permutation(len(groups)))


def _loss(
    vectors_NWD: Tensor, maps: Sequence[Tensor], gold: Sequence[tuple[NDArray[np.int16], NDArray[np.int16]]]
) -> Tensor:
    """The sum over layers of the mean over sentences of both published losses."""
    distance, depth = (torch.bmm(vectors_NWD, each) for each in maps)
    lengths = [len(depths) for _, depths in gold]
    true, mask = _padded_distances([distances for distances, _ in gold])
    apart = squared_distances(_padded(distance, mask))
    pairs = mask[:, :, None] & mask[:, None, :]
    count = torch.tensor(lengths, dtype=torch.float32)
    of_pairs = ((apart - true).abs() * (pairs / count.square()[:, None, None])).sum()
    deep = torch.from_numpy(np.concatenate([depths for _, depths in gold])).float()
    of_words = ((depth.square().sum(dim=-1) - deep).abs() / count.repeat_interleave(torch.tensor(lengths))).sum()
    return (of_pairs + of_words) / len(lengths)


def _padded_distances(found: Sequence[NDArray[np.int16]]) -> tuple[Tensor, Tensor]:
    """S n n of distances, and S n bool: where a word is."""
    longest = max(map(len, found))
    values = np.zeros((len(found), longest, longest), dtype=np.float32)
    mask = np.zeros((len(found), longest), dtype=bool)
    for n, each in enumerate(found):
        values[n, : len(each), : len(each)] = each
        mask[n, : len(each)] = True
    return torch.from_numpy(values), torch.from_numpy(mask)


def _padded(places_NWK: Tensor, mask_Sn: Tensor) -> Tensor:
    """N W K -> N S n K."""
    layers, _, rank = places_NWK.shape
    padded = places_NWK.new_zeros(layers, mask_Sn.numel(), rank)
    at = mask_Sn.flatten().nonzero().squeeze(1)
    return padded.index_copy(1, at, places_NWK).view(layers, *mask_Sn.shape, rank)
