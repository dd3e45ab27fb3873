"""The table of optimizers and their settings: importable without torch, which implementations load late."""

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
    """The optimizer's settings; the learning rate comes from the schedule, step by step."""

    name: str = "adamw"  # a row of OPTIMIZERS
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    muon_scale: float = 10.0  # Muon's learning rate is this many times AdamW's
    fused: bool = False  # on the CPU too: one pass over memory, 8 x as fast for 22 M parameters, other last digits

    def __post_init__(self) -> None:
        pick(OPTIMIZERS, self.name, "optimizer")
        if not 0 <= self.weight_decay < math.inf:
            raise RequestError(f"weight_decay={self.weight_decay} must be 0 or more, and finite")
        if not 0 < self.muon_scale < math.inf:
            raise RequestError(f"muon_scale={self.muon_scale} must be over 0, and finite")


class OptimizerRow:
    """AdamW for every parameter, or another optimizer for those that it `takes`."""

    def takes(self, name: str, parameter: "nn.Parameter") -> bool:
        """Whether a parameter is not AdamW's."""
        return False

    def build(self, groups: list[dict[str, Any]], settings: OptimizerSettings) -> "tuple[Optimizer, float]":
        """The other optimizer, and the multiple of the learning rate that it steps with."""
        raise NotImplementedError


class MuonRow(OptimizerRow):
    """Muon for the layers' matrices; embeddings, heads and vectors stay with AdamW. Reads `muon_scale`."""

    def takes(self, name: str, parameter: "nn.Parameter") -> bool:
        """Matrices of the layers."""
        return parameter.dim() == 2 and ".layers." in name

    def build(self, groups: list[dict[str, Any]], settings: OptimizerSettings) -> "tuple[Optimizer, float]":
        """Muon, with a learning rate of its own size."""
        from bertkit.train.muon import Muon

        return Muon(groups, weight_decay=settings.weight_decay), settings.muon_scale


OPTIMIZERS: Mapping[str, OptimizerRow] = MappingProxyType({"adamw": OptimizerRow(), "muon": MuonRow()})
