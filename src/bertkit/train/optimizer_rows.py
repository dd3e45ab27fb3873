"""The table of optimizers and their settings; importable without torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bertkit.errors import RequestError
from bertkit.settings import pick

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Settings of the optimizer; the learning rate of each step comes from the schedule."""

    name: str = "adamw"  # a row of OPTIMIZERS
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    muon_scale: float = 10.0  # factor on the learning rate for Muon's parameters
    fused: bool = False  # on the CPU too: 8 x as fast for 22 M parameters; differs in the last digits

    def __post_init__(self) -> None:
        pick(OPTIMIZERS, self.name, "optimizer")
        if not 0 <= self.weight_decay < math.inf:
            raise RequestError(f"weight_decay={self.weight_decay} must be 0 or more, and finite")
        if not 0 < self.muon_scale < math.inf:
            raise RequestError(f"muon_scale={self.muon_scale} must be over 0, and finite")


class OptimizerRow:
    """A row: AdamW for every parameter except those that the row `takes` for another optimizer."""

    def takes(self, name: str, parameter: "nn.Parameter") -> bool:
        """Whether the row's own optimizer updates a parameter."""
        return False

    def build(self, groups: list[dict[str, Any]], settings: OptimizerSettings) -> "tuple[Optimizer, float]":
        """The row's own optimizer, and its factor on the learning rate."""
        raise NotImplementedError


class MuonRow(OptimizerRow):
    """Muon for the layers' matrices; AdamW for embeddings, heads and vectors. Reads `muon_scale`."""

    def takes(self, name: str, parameter: "nn.Parameter") -> bool:
        """Matrices of the layers."""
        return parameter.dim() == 2 and ".layers." in name

    def build(self, groups: list[dict[str, Any]], settings: OptimizerSettings) -> "tuple[Optimizer, float]":
        """Muon, with the factor `muon_scale`."""
        from bertkit.train.muon import Muon

        return Muon(groups, weight_decay=settings.weight_decay), settings.muon_scale


OPTIMIZERS: Mapping[str, OptimizerRow] = MappingProxyType({"adamw": OptimizerRow(), "muon": MuonRow()})
