"""Training of low-rank updates of frozen matrices (LoRA), which can be stored in little space."""

import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bertkit.checkpoint.adapters import PartUpdate
from bertkit.errors import RequestError
from bertkit.model.low_rank import LowRankUpdate
from bertkit.model.model import BertModel
from bertkit.train.half import FLOAT32_PARAMETERS
from bertkit.train.loop import LossModule, Sums

EMBEDDING_TABLES = tuple(part for part in FLOAT32_PARAMETERS if "norm" not in part)
MODEL = "model."  # before a parameter of the model, in a learner


class Part(NamedTuple):
    """Rows of a matrix that have an update of their own."""

    matrix: str  # its name in the module
    number: int = 0
    among: int = 1  # so many parts of equal height

    @property
    def key(self) -> str:
        """A name without dots, which a ParameterDict does not allow."""
        return self.matrix.replace(".", "/") + (f"#{self.number}" if self.among > 1 else "")


class LowRank(LossModule):
    """A module whose matrices are frozen, plus trained updates `scale * up @ down` of `rank`.

    `up` starts at zero, so the module starts unchanged. `parts` are the matrices with updates, and how many maps are
    the rows of each; by default, all trainable matrices but the embedding tables. What else is trainable is trained.
    """

    def __init__(
        self,
        module: LossModule,
        rank: int,
        *,
        seed: int = 0,
        scale: float = 1.0,
        parts: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self.module, self.scale = module, scale
        self.weights = module.weights
        self.up, self.down = nn.ParameterDict(), nn.ParameterDict()
        counts = _freeze_matrices(module) if parts is None else parts
        self.parts = [Part(name, number, count) for name, count in counts.items() for number in range(count)]
        generator, matrices = torch.Generator().manual_seed(seed), dict(module.named_parameters())
        for part in self.parts:
            matrix = matrices[part.matrix].requires_grad_(False)
            rows, columns = len(matrix) // part.among, matrix.shape[1]
            update_rank = min(rank, rows, columns)
            down = torch.randn(update_rank, columns, generator=generator) / math.sqrt(columns)
            self.down[part.key] = down.to(matrix.device)
            self.up[part.key] = torch.zeros(rows, update_rank, device=matrix.device)
        if not self.up:
            raise RequestError(f"rank={rank} leaves no matrix to be tuned; unfreeze some layers")

    def forward(self, *inputs: Any) -> Sums:
        """The module's sums of losses with the updated matrices."""
        sums: Sums = torch.func.functional_call(self.module, self.updated_matrices(), inputs)
        return sums

    def updated_matrices(self) -> dict[str, Tensor]:
        """The matrices with their updates, by their names in the module."""
        changes: dict[str, list[Tensor]] = {}
        for part in self.parts:
            changes.setdefault(part.matrix, []).append(self.scale * (self.up[part.key] @ self.down[part.key]))
        matrices: Mapping[str, Tensor] = dict(self.module.named_parameters())
        return {name: matrices[name] + torch.cat(change) for name, change in changes.items()}

    def updates(self) -> Iterator[PartUpdate]:
        """Matrix as the module's model names it, number of the part, and its update without the scale."""
        for part in self.parts:
            update = LowRankUpdate(self.up[part.key].detach(), self.down[part.key].detach())
            yield PartUpdate(part.matrix.removeprefix(MODEL), part.number, update)

    @torch.no_grad()
    def round_to(self, dtype: torch.dtype) -> None:
        """Round what is trained to a dtype, so that it is what a file of this dtype will hold."""
        for parameter in self.parameters():
            if parameter.requires_grad:
                parameter.copy_(parameter.to(dtype))


def trained_model(learner: LossModule) -> BertModel:
    """The model of a learner with its current weights; with low-rank updates, a copy that contains them."""
    model = (learner.module if isinstance(learner, LowRank) else learner).model
    assert isinstance(model, BertModel)
    if not isinstance(learner, LowRank):
        return model
    model = deepcopy(model)
    with torch.no_grad():
        parameters = dict(model.named_parameters())
        for name, matrix in learner.updated_matrices().items():
            parameters[name.removeprefix(MODEL)].copy_(matrix)
    return model


def _freeze_matrices(module: nn.Module) -> dict[str, int]:
    """Freeze every trainable matrix; those but the embedding tables, of one part each."""
    matrices = [(name, p) for name, p in module.named_parameters() if p.dim() == 2 and p.requires_grad]
    for _, matrix in matrices:
        matrix.requires_grad_(False)
    return {name: 1 for name, _ in matrices if not any(table in name for table in EMBEDDING_TABLES)}
