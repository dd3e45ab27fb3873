"""Low-rank updates of weight matrices (LoRA), which can be stored in little space."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.errors import RequestError
from bertkit.train.half import FLOAT32_PARAMETERS
from bertkit.train.loop import LossModule, Sums

EMBEDDING_TABLES = tuple(part for part in FLOAT32_PARAMETERS if "norm" not in part)


class LowRank(LossModule):
    """A module whose matrices are frozen, plus trained updates `up @ down` of `rank`.

    `up` starts at zero, so the module starts unchanged. Embedding tables are frozen; norms and biases are trained.
    """

    def __init__(self, module: LossModule, rank: int, *, seed: int = 0) -> None:
        super().__init__()
        self.module = module
        self.weights = module.weights
        self.up, self.down = nn.ParameterDict(), nn.ParameterDict()
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in module.named_parameters():
            if parameter.dim() != 2 or not parameter.requires_grad:
                continue
            parameter.requires_grad_(False)
            if any(table in name for table in EMBEDDING_TABLES):
                continue
            rows, columns = parameter.shape
            update_rank = min(rank, rows, columns)
            down = torch.randn(update_rank, columns, generator=generator) / math.sqrt(columns)
            self.down[_key(name)] = down.to(parameter.device)
            self.up[_key(name)] = torch.zeros(rows, update_rank, device=parameter.device)
        if not self.up:
            raise RequestError(f"rank={rank} leaves no matrix to be tuned; unfreeze some layers")

    def forward(self, *inputs: Any) -> Sums:
        """The module's sums of losses with the updated matrices."""
        sums: Sums = torch.func.functional_call(self.module, self.updated_matrices(), inputs)
        return sums

    def updated_matrices(self) -> dict[str, Tensor]:
        """The matrices with their updates, by their names in the module."""
        matrices: Mapping[str, Tensor] = dict(self.module.named_parameters())
        return {_name(key): matrices[_name(key)] + up @ self.down[key] for key, up in self.up.items()}


def _key(name: str) -> str:
    """A parameter name without dots, which a ParameterDict does not allow."""
    return name.replace(".", "/")


def _name(key: str) -> str:
    return key.replace("/", ".")
