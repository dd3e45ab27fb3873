"""bfloat16 where it is safe: layers and heads compute in it, embeddings, losses and the weights themselves do not."""

from typing import Any

import torch
from torch import nn

from bertkit.train.loop import Sums

# Rows of frequent words collect thousands of gradients: they add up in float32.
KEPT_WHOLE = ("embeddings.word.", "embeddings.segment.", "embeddings.position.", "embeddings.norm.")


class HalfPrecision(nn.Module):
    """Runs a module with bfloat16 copies of its float32 weights, made anew each time; gradients arrive in float32.

    Autocast would keep the norms' outputs, and with them the whole residual stream, in float32: twice the traffic.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Sums:
        """The module's sums of each loss."""
        halves = {
            name: parameter if any(part in name for part in KEPT_WHOLE) else parameter.to(torch.bfloat16)
            for name, parameter in self.module.named_parameters()
        }
        sums: Sums = torch.func.functional_call(self.module, halves, inputs)
        return sums
