"""Token ids to vectors: word + segment + position, normalized, and projected if the tables are narrower."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.model.batch import Batch
from bertkit.model.operations import TORCH, Operations
from bertkit.settings import pick


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


def sinusoid(positions_T: Tensor, width: int) -> Tensor:
    """T D: columns 2i and 2i+1 are sin and cos of position / 10000^(2i/D)."""
    rates = 10_000.0 ** (-torch.arange(0, width, 2, device=positions_T.device, dtype=torch.float64) / width)
    angles = positions_T[:, None].double() * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[:, :width].float()


class NoPositions(NoTable):
    """No table: positions enter in attention (rotary), or not at all."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()


POSITIONS: dict[str, type[nn.Module]] = {
    "learned": LearnedPositions,
    "offset": OffsetPositions,
    "sinusoidal": SinusoidalPositions,
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
        self.segment = Segments(config) if config.segments else NoTable()
        self.position = pick(POSITIONS, config.parts.position, "position")(config)
        self.norm = nn.LayerNorm(width, eps=config.norm_epsilon, bias=config.parts.bias)
        self.dropout = nn.Dropout(config.dropout)
        self.widen = nn.Linear(width, config.width) if config.embedding_width else nn.Identity()

    def sum(self, batch: Batch, ids: Tensor | None = None) -> Tensor:
        """T E before the norm: the sum of the three tables' rows."""
        words: Tensor = self.word(batch.ids if ids is None else ids)
        summed: Tensor = words + self.segment(batch) + self.position(batch).to(words.dtype)
        return summed

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
        x_TE = ops.embed(x_TE, self.norm, self.dropout, self.norm.weight.dtype if dtype is None else dtype)
        return ops.project(self.widen, x_TE) if isinstance(self.widen, nn.Linear) else x_TE
