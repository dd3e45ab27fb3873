"""A recurrent layer: one cell, or one for each direction, with the same dropout mask at every step of a sequence."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.model.batch import Batch
from bertkit.model.embeddings import DistanceTable
from bertkit.model.operations import TORCH, Operations, Source
from bertkit.model.recurrent.cell import AttendingCell, Cell


class RecurrentLayer(nn.Module):
    """A cell that reads from left to right, and if the model is not causal, one that reads from right to left.

    Each direction has its own half of the vectors in all layers, as in ELMo: no half ever sees the other one's side. A
    decoder's layer (`cross`) attends to the encoder's output.
    """

    def __init__(
        self, config: BertConfig, index: int, distance: DistanceTable | None = None, *, cross: bool = False
    ) -> None:
        super().__init__()
        width = config.width // config.directions
        plain = (Cell(config, width, width, backward=number > 0) for number in range(config.directions))
        self.cells = nn.ModuleList([AttendingCell(config)] if cross else plain)
        self.dropout = config.dropout
        self.drops_input, self.skips = index == 0, config.parts.skip and index > 0

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the layer computes in."""
        weight: Tensor = next(iter(self.cells)).rnn.weight_hh_l0  # type: ignore[assignment, union-attr]
        return weight.dtype

    def forward(self, x_TD: Tensor, batch: Batch, ops: Operations = TORCH, source: Source | None = None) -> Tensor:
        """T D -> T D; `source` is what a decoder's layer attends to."""
        inputs_TD = self._drop(x_TD, batch) if self.drops_input else x_TD
        halves = inputs_TD.chunk(len(self.cells), dim=-1)
        read = [ops.recur(cell, half, batch, source) for cell, half in zip(self.cells, halves, strict=True)]
        read_TD = torch.cat(read, dim=-1) if len(read) > 1 else read[0]
        if self.skips:
            read_TD = x_TD + read_TD
        return self._drop(read_TD, batch)

    def _drop(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """Variational dropout (Gal 2016): one mask for all tokens of a sequence."""
        if not self.training or not self.dropout:
            return x_TD
        rows_T = torch.div(batch.cells, batch.longest, rounding_mode="floor")
        mask_ND = F.dropout(x_TD.new_ones(len(batch.offsets) - 1, x_TD.shape[-1]), self.dropout)
        return x_TD * mask_ND[rows_T]
