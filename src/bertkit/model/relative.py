"""Relative positions: scores that depend on the distance between two tokens (MPNet, DeBERTa, XLNet).

A module here has a layer's parameters and gives the `ScoreBias` of a batch. Everything that depends on a distance alone
is computed once for the distances of the longest sequence, and then picked for each pair of tokens. Lengths are shapes,
and not `len`, which would fix them in an exported graph.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.model.attention import Places
from bertkit.model.embeddings import MASKED, DistanceTable, EmbeddingTable, sinusoid_halves
from bertkit.settings import pick


@dataclass(frozen=True, eq=False)
class TableBias:
    """MPNet's bias: a number for each head and distance."""

    values_RH: Tensor  # R: the distances from 1 - longest to longest - 1
    scale: float
    by_length: ClassVar[bool] = False

    def __call__(self, q_NHLK: Tensor, k_NHLK: Tensor, places: Places) -> Tensor:
        """1 H L L, or N H L L where padding may be anywhere."""
        rows = places.distance + self.values_RH.shape[0] // 2
        bias = F.embedding(rows, self.values_RH).movedim(-1, -3).to(q_NHLK.dtype)
        return bias if bias.dim() == 4 else bias[None]


class TablePositions(nn.Module):
    """MPNet's: T5's buckets of distances, one table for all layers."""

    def __init__(self, config: BertConfig, table: DistanceTable) -> None:
        super().__init__()
        self.tables = (table,)  # in a tuple, because it belongs to the embeddings and not to this module
        self.scale = config.head_width**-0.5

    def forward(self, qkv: nn.Linear, longest: int) -> TableBias:
        """For sequences up to `longest`."""
        [table] = self.tables
        return TableBias(table()[table.rows(longest)], self.scale)


@dataclass(frozen=True, eq=False)
class DisentangledBias:
    """DeBERTa's: query with position (c2p) and key with position (p2c), for each distance."""

    rows_R: Tensor  # row of each distance from 1 - longest to longest - 1
    keys_HPK: Tensor | None  # keys of positions; None: no c2p
    queries_HPK: Tensor | None  # queries of positions; None: no p2c
    scale: float
    by_length: ClassVar[bool] = False

    def __call__(self, q_NHLK: Tensor, k_NHLK: Tensor, places: Places) -> Tensor:
        """N H L L."""
        rows = self.rows_R[places.distance + self.rows_R.shape[0] // 2]
        rows = rows.expand(*q_NHLK.shape[:2], -1, -1) if rows.dim() == 2 else rows[:, None]
        terms = []
        if self.keys_HPK is not None:
            terms.append(_picked(q_NHLK @ self.keys_HPK.mT, rows))
        if self.queries_HPK is not None:
            terms.append(_picked(k_NHLK @ self.queries_HPK.mT, rows.mT).mT)
        return sum(terms[1:], terms[0]) * self.scale


class DisentangledPositions(nn.Module):
    """DeBERTa's: one table of distance embeddings for all layers, projected to keys and queries by each layer.

    With `relative_shared` a layer projects them by the matrices of its tokens, else by two of its own.
    """

    def __init__(self, config: BertConfig, table: EmbeddingTable) -> None:
        super().__init__()
        parts = config.parts
        self.heads, self.tables = config.heads, (table,)
        self.c2p, self.p2c = parts.relative_terms != "p2c", parts.relative_terms != "c2p"
        own = not parts.relative_shared
        self.key = nn.Linear(config.width, config.width) if own and self.c2p else None
        self.query = nn.Linear(config.width, config.width) if own and self.p2c else None
        self.dropout = nn.Dropout(config.dropout)
        self.scale = (config.head_width * (1 + self.c2p + self.p2c)) ** -0.5

    def forward(self, qkv: nn.Linear, longest: int) -> DisentangledBias:
        """For sequences up to `longest`."""
        [table] = self.tables
        used = table.used(longest)
        embeddings_PD = self.dropout(table()[used]).to(qkv.weight.dtype)
        queries, keys, _ = _matrices(qkv)
        return DisentangledBias(
            table.rows(longest) - used.start,
            self._project(embeddings_PD, keys if self.key is None else _weights(self.key)) if self.c2p else None,
            self._project(embeddings_PD, queries if self.query is None else _weights(self.query)) if self.p2c else None,
            self.scale,
        )

    def _project(self, x_PD: Tensor, weights: tuple[Tensor, Tensor | None]) -> Tensor:
        """H P K."""
        return F.linear(x_PD, *weights).view(x_PD.shape[0], self.heads, -1).transpose(0, 1)


@dataclass(frozen=True, eq=False)
class TransformerXLBias:
    """XLNet's: key bias, query with distance, and query with "the same segment" or "another segment".

    [CLS] is the first token in a batch, and to XLNet the last one of its sequence. Keys of masked tokens are not seen.
    """

    keys_HRK: Tensor  # of the distances from 1 - longest to longest - 1
    content_HK: Tensor
    position_HK: Tensor
    segment_HK: Tensor
    segments_2HK: Tensor
    scale: float
    by_length: ClassVar[bool] = True

    def __call__(self, q_NHLK: Tensor, k_NHLK: Tensor, places: Places) -> Tensor:
        """N H L L."""
        masked_N11L = (places.segments >= MASKED)[:, None, None, :]
        places = Places(places.positions, places.segments % MASKED).with_cls_last()
        rows = places.distance + self.keys_HRK.shape[1] // 2
        rows = rows.expand(*q_NHLK.shape[:2], -1, -1) if rows.dim() == 2 else rows[:, None]
        content_NH1L = self.content_HK[:, None] @ k_NHLK.mT
        position_NHLL = _picked((q_NHLK + self.position_HK[:, None]) @ self.keys_HRK.mT, rows)
        same, other = ((q_NHLK + self.segment_HK[:, None]) @ self.segments_2HK.permute(1, 2, 0)).chunk(2, dim=-1)
        segments = places.segments
        apart_N1LL = (segments[:, :, None] != segments[:, None, :])[:, None]
        scores = (content_NH1L + position_NHLL + torch.where(apart_N1LL, other, same)) * self.scale
        return scores.masked_fill(masked_N11L, float("-inf"))


class TransformerXLPositions(nn.Module):
    """XLNet's, from Transformer-XL: sinusoids of distances as keys, and three biases of the queries."""

    def __init__(self, config: BertConfig, table: DistanceTable | None = None) -> None:
        super().__init__()
        self.heads = config.heads
        self.key = nn.Linear(config.width, config.width, bias=False)
        self.content = nn.Parameter(torch.empty(config.width))  # added to queries where they meet keys
        self.position = nn.Parameter(torch.empty(config.width))  # where they meet distances
        self.segment = nn.Parameter(torch.empty(config.width))  # where they meet segments
        shape = (2, config.heads, config.head_width)
        self.segments = nn.Parameter(torch.empty(shape))  # the same segment, another one
        self.dropout = nn.Dropout(config.dropout)
        self.scale = config.head_width**-0.5

    def forward(self, qkv: nn.Linear, longest: int) -> TransformerXLBias:
        """For sequences up to `longest`."""
        weight = self.key.weight
        distances_R = torch.arange(1 - longest, longest, device=weight.device)
        sinusoids_RD = self.dropout(sinusoid_halves(distances_R, weight.shape[1])).to(weight.dtype)
        keys_HRK = self.key(sinusoids_RD).view(distances_R.shape[0], self.heads, -1).transpose(0, 1)
        content, position, segment = (x.view(self.heads, -1) for x in (self.content, self.position, self.segment))
        return TransformerXLBias(keys_HRK, content, position, segment, self.segments, self.scale)


RelativePositions = TablePositions | DisentangledPositions | TransformerXLPositions
RELATIVE_POSITIONS: dict[str, type[RelativePositions]] = {
    "table": TablePositions,
    "disentangled": DisentangledPositions,
    "transformer_xl": TransformerXLPositions,
}


def relative_positions(config: BertConfig, table: DistanceTable | None) -> RelativePositions | None:
    """A layer's relative positions; `table` is what all layers share. None: the family has none."""
    kind = config.parts.relative
    return None if kind == "none" else pick(RELATIVE_POSITIONS, kind, "relative")(config, table)  # type: ignore[arg-type]


def _picked(scores_NHLP: Tensor, rows: Tensor) -> Tensor:
    """N H L L: of each row's scores with P distances, the one of each pair of tokens."""
    return scores_NHLP.gather(-1, rows.expand(*scores_NHLP.shape[:2], -1, -1))


def _matrices(qkv: nn.Linear) -> list[tuple[Tensor, Tensor | None]]:
    """Weight and bias of queries, keys and values."""
    biases = [None] * 3 if qkv.bias is None else qkv.bias.chunk(3)
    return list(zip(qkv.weight.chunk(3), biases, strict=True))


def _weights(linear: nn.Linear) -> tuple[Tensor, Tensor | None]:
    return linear.weight, linear.bias
