"""Low-rank updates of linear maps (LoRA, Hu 2021), as a model computes with them: `W + up @ down`.

Training them is `train/low_rank.py`, their files are `checkpoint/adapters.py`, and `engine/adapters.py` adds them to a
trunk that many adapters share. The slow twin of the latter is `merge`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertkit.model.model import BertModel


@dataclass(frozen=True, eq=False)
class LowRankUpdate:
    """What is added to a matrix of O rows and I columns."""

    up: Tensor  # O R, times the scale
    down: Tensor  # R I

    @property
    def matrix(self) -> Tensor:
        """O I."""
        return self.up @ self.down

    def __call__(self, x_TI: Tensor) -> Tensor:
        """T O: what the linear map gives more than without the update."""
        return (x_TI @ self.down.T) @ self.up.T


Updates = Mapping[str, LowRankUpdate]  # name of a matrix in the model -> its update


def stacked(parts: Sequence[LowRankUpdate]) -> LowRankUpdate:
    """The update of a matrix whose rows are several maps: queries, keys and values, each with an update of its own."""
    if len(parts) == 1:
        return parts[0]
    down = torch.cat([part.down for part in parts])
    up, row, column = down.new_zeros(sum(len(part.up) for part in parts), len(down)), 0, 0
    for part in parts:  # blocks on the diagonal
        height, width = part.up.shape
        up[row : row + height, column : column + width] = part.up
        row, column = row + height, column + width
    return LowRankUpdate(up, down)


def merge(model: BertModel, updates: Updates) -> BertModel:
    """Add the updates to the model's own matrices; returns the model."""
    for name, update in updates.items():
        owner, _, leaf = name.rpartition(".")
        matrix = model.get_parameter(name)
        # A new tensor: the old one may be a part of a mapped file.
        merged = torch.nn.Parameter(matrix.detach() + update.matrix.to(matrix), requires_grad=matrix.requires_grad)
        setattr(model.get_submodule(owner), leaf, merged)
    return model
