"""Token ids to vectors: word + segment + position, normalized, and projected if the tables are narrower."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.model.batch import Batch
from bertkit.model.operations import TORCH, Operations
from bertkit.settings import pick

MASKED = 8  # added to the segment of a masked token


class NoTable(nn.Module):
    """Stands for a table that the family does not have."""

    def forward(self, batch: Batch) -> Tensor:
        """A zero, which is added to the sum."""
        return torch.zeros((), device=batch.ids.device)


class Segments(nn.Module):
    """A learned vector for each segment: text A is 0, text B is 1."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.segments, config.table_width))

    def forward(self, batch: Batch) -> Tensor:
        """T D."""
        if batch.segments.is_cuda and len(self.weight) == 2:
            # Its backward is two sums; that of a lookup adds the tokens to one of two rows one after the other.
            return torch.where(batch.segments[:, None] == 0, self.weight[0], self.weight[1])
        return F.embedding(batch.segments, self.weight)


class LearnedPositions(nn.Module):
    """A learned vector for each position, up to a hard limit."""

    def __init__(self, config: BertConfig, offset: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.max_length + offset, config.table_width))
        self.offset = offset

    def forward(self, batch: Batch) -> Tensor:
        """T D."""
        return F.embedding(batch.positions + self.offset, self.weight)


class OffsetPositions(LearnedPositions):
    """RoBERTa's: positions are counted from pad_id + 1; the rows below it were never used.

    Every token counts, a literal [PAD] inside a text too (transformers does not count those).
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, offset=config.pad_id + 1)


class SinusoidalPositions(nn.Module):
    """The Transformer's: sin and cos of position / 10000^(2i/D). Nothing is learned."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.width = config.table_width

    def forward(self, batch: Batch) -> Tensor:
        """T D."""
        return sinusoid(batch.positions, self.width)


class SinusoidalHalves(SinusoidalPositions):
    """Marian's: the same numbers, all sines before all cosines."""

    def forward(self, batch: Batch) -> Tensor:
        """T D."""
        return sinusoid_halves(batch.positions, self.width)


def sinusoid(positions_T: Tensor, width: int) -> Tensor:
    """T D: columns 2i and 2i+1 are sin and cos of position / 10000^(2i/D)."""
    rates = 10_000.0 ** (-torch.arange(0, width, 2, device=positions_T.device, dtype=torch.float64) / width)
    angles = positions_T[:, None].double() * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[:, :width].float()


def sinusoid_halves(positions_T: Tensor, width: int) -> Tensor:
    """T D: the same numbers, all sines before all cosines."""
    position_TD = sinusoid(positions_T, width)
    return torch.cat((position_TD[:, 0::2], position_TD[:, 1::2]), dim=-1)


class DistanceTable(nn.Module):
    """Learned vectors of the distance between two tokens, which the attention of all layers reads.

    Distances near zero have a row each; farther ones share rows by the logarithm of the distance.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        parts = config.parts
        self.buckets, self.span = parts.relative_buckets, parts.relative_span or config.max_length
        size, width = self.shape(config)
        self.weight = nn.Parameter(torch.empty(size, width))
        norm = nn.LayerNorm(width, eps=config.norm_epsilon)
        self.norm = norm if parts.relative_norm else nn.Identity()

    def shape(self, config: BertConfig) -> tuple[int, int]:
        """(rows, width) of the table."""
        raise NotImplementedError

    def forward(self) -> Tensor:
        """The table, normalized where the family normalizes it."""
        rows: Tensor = self.norm(self.weight)
        return rows

    def row(self, distance: Tensor) -> Tensor:
        """The row of each distance, query minus key; the same shape."""
        raise NotImplementedError

    def rows(self, longest: int) -> Tensor:
        """The row of each distance from 1 - longest to longest - 1."""
        return self.row(torch.arange(1 - longest, longest, device=self.weight.device))


class BucketTable(DistanceTable):
    """T5's and MPNet's: a number for each head; half of the rows are for tokens before, half for tokens after."""

    def shape(self, config: BertConfig) -> tuple[int, int]:
        """(rows, width) of the table."""
        return self.buckets, config.heads

    def row(self, distance: Tensor) -> Tensor:
        """The row of each distance."""
        half = self.buckets // 2
        exact = half // 2
        size = distance.abs()
        shares = torch.log(size.float().clamp(min=1) / exact) / math.log(self.span / exact)
        far = (exact + (shares * (half - exact)).long()).clamp(max=half - 1)
        return torch.where(size < exact, size, far) + half * (distance < 0)


class EmbeddingTable(DistanceTable):
    """DeBERTa's: an embedding as wide as the model; rows count from the farthest token after to the farthest before."""

    @property
    def side(self) -> int:
        """Rows on each side of distance 0."""
        return self.buckets or self.span

    @property
    def exact(self) -> int:
        """Up to this distance, each has a row of its own."""
        return self.buckets // 2 if self.buckets else self.span

    def shape(self, config: BertConfig) -> tuple[int, int]:
        """(rows, width) of the table."""
        return 2 * self.side, config.width

    def used(self, longest: int) -> slice:
        """The rows that sequences up to `longest` need: few if they are short."""
        short = isinstance(longest, int) and longest - 1 <= self.exact  # not an int while a graph is traced
        reach = longest - 1 if short else self.side
        return slice(self.side - reach, self.side + reach + 1)

    def row(self, distance: Tensor) -> Tensor:
        """The row of each distance."""
        if self.buckets:
            exact, size = self.exact, distance.abs()
            last = torch.tensor((self.span - 1) / exact, device=distance.device)  # as they round, because of the ceil
            shares = torch.log(size.clamp(min=exact) / exact) / torch.log(last)
            far = exact + torch.ceil(shares * (exact - 1)).long()
            distance = torch.where(size <= exact, distance, far * distance.sign())
        return (distance + self.side).clamp(0, 2 * self.side - 1)


DISTANCE_TABLES: dict[str, type[DistanceTable]] = {"table": BucketTable, "disentangled": EmbeddingTable}


class NoPositions(NoTable):
    """No table: positions enter in attention (rotary), or not at all."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()


POSITIONS: dict[str, type[nn.Module]] = {
    "learned": LearnedPositions,
    "offset": OffsetPositions,
    "sinusoidal": SinusoidalPositions,
    "sinusoidal_halves": SinusoidalHalves,
    "rotary": NoPositions,
    "none": NoPositions,
}


class Embeddings(nn.Module):
    """Word, segment and position vectors, summed and normalized; then projected to the encoder's width."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.table_width
        # Not initialized here: `new_model` or a checkpoint does, and normal_ on the meta device imports torch._dynamo.
        self.word = nn.Embedding(config.vocab_size, width, _weight=torch.empty(config.vocab_size, width))
        two_streams = config.parts.two_streams  # XLNet's segments are no part of the embeddings
        self.segment = Segments(config) if config.segments and not two_streams else NoTable()
        # XLNet's vector of a token that is to be predicted; frozen, because only objective plm trains it.
        self.query = nn.Parameter(torch.empty(width), requires_grad=False) if two_streams else None
        self.mask_id: int | None = None  # with `query`: the token that it stands for
        self.position = pick(POSITIONS, config.parts.position, "position")(config)
        self.scale = math.sqrt(width) if config.parts.embedding_scale else 1.0
        norm = nn.LayerNorm(width, eps=config.norm_epsilon, bias=config.parts.bias)
        self.norm = norm if config.parts.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(0.0 if config.recurrent else config.dropout)  # recurrent layers have their own
        # Both directions of a recurrent encoder start from the same vectors.
        self.copies, self.word_dropout = config.directions, config.parts.word_dropout
        self.widen = nn.Linear(width, config.width) if config.embedding_width else nn.Identity()
        table = DISTANCE_TABLES.get(config.parts.relative)
        self.distance = None if table is None else table(config)

    def sum(self, batch: Batch, ids: Tensor | None = None) -> Tensor:
        """T E before the norm: the sum of the three tables' rows."""
        ids = batch.ids if ids is None else ids
        words: Tensor = self.word(ids)
        if self.query is not None and self.mask_id is not None:
            words = torch.where((ids == self.mask_id)[:, None], self.query, words)
        if self.training and self.word_dropout:
            kept_V = F.dropout(words.new_ones(self.word.num_embeddings), self.word_dropout)
            words = words * kept_V[ids][:, None]
        if self.scale != 1:
            words = words * self.scale
        summed: Tensor = words + self.segment(batch) + self.position(batch).to(words.dtype)
        return summed

    def with_masks_unseen(self, batch: Batch) -> Batch:
        """XLNet's: no token attends to a masked one, which is marked in the segments."""
        if self.mask_id is None:
            return batch
        return batch.with_segments(torch.where(batch.ids == self.mask_id, MASKED, 0) + batch.segments)

    def forward(
        self,
        batch: Batch,
        ids: Tensor | None = None,
        ops: Operations = TORCH,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """T D: the first layer's input, in the layers' `dtype`; `ids` replace the batch's."""
        return self.from_sum(self.sum(batch, ids), ops, dtype)

    def from_sum(self, x_TE: Tensor, ops: Operations = TORCH, dtype: torch.dtype | None = None) -> Tensor:
        """T D from the sum of the tables' rows: normalized, and projected if the tables are narrower."""
        x_TE = ops.embed(x_TE, self.norm, self.dropout, self.word.weight.dtype if dtype is None else dtype)
        if isinstance(self.widen, nn.Linear):
            return ops.project(self.widen, x_TE)
        return x_TE if self.copies == 1 else torch.cat([x_TE] * self.copies, dim=-1)
