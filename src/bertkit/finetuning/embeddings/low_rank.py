"""Matrices that move in few directions only, so that what they have learned can be stored in little space."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.errors import RequestError
from bertkit.train.half import FLOAT32_PARAMETERS
from bertkit.train.loop import LossModule, Sums

TABLES = tuple(part for part in FLOAT32_PARAMETERS if "norm" not in part)


class LowRank(LossModule):
    """Runs a module whose matrices are their old selves plus `up @ down` of `rank`; tables stay as they are.

    `up` starts as zero, so that the module starts as it was. Vectors (norms, biases) move freely.
    """

    def __init__(self, module: LossModule, rank: int, *, seed: int = 0) -> None:
        super().__init__()
        self.module = module
        self.weights = module.weights
        self.up, self.down = nn.ParameterDict(), nn.ParameterDict()
        draw = torch.Generator().manual_seed(seed)
        for name, parameter in module.named_parameters():
            if parameter.dim() != 2 or not parameter.requires_grad:
                continue
            parameter.requires_grad_(False)
            if any(table in name for table in TABLES):
                continue
            rows, columns = parameter.shape
            least = min(rank, rows, columns)
            start = torch.randn(least, columns, generator=draw) / math.sqrt(columns)
            self.down[_key(name)] = start.to(parameter.device)
            self.up[_key(name)] = torch.zeros(rows, least, device=parameter.device)
        if not self.up:
            raise RequestError(f"rank={rank} leaves no matrix to be tuned; unfreeze some layers")

    def forward(self, *inputs: Any) -> Sums:
        """The module's sums of each loss, with its matrices where they are now."""
        sums: Sums = torch.func.functional_call(self.module, self.moved(), inputs)
        return sums

    def moved(self) -> dict[str, Tensor]:
        """The matrices where they are now, by their names in the module."""
        known: Mapping[str, Tensor] = dict(self.module.named_parameters())
        return {_name(key): known[_name(key)] + up @ self.down[key] for key, up in self.up.items()}


def _key(name: str) -> str:
    """Names in a ParameterDict have no dots."""
    return name.replace(".", "/")


def _name(key: str) -> str:
    return key.replace("/", ".")
