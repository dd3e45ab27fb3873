"""bfloat16 training: layers and heads compute in bfloat16; embeddings, losses and master weights stay in float32."""

from typing import Any

import torch
from torch import nn

from bertkit.train.loop import Sums

# Rows of frequent words accumulate thousands of gradients, which must be added in float32.
FLOAT32_PARAMETERS = ("embeddings.word.", "embeddings.segment.", "embeddings.position.", "embeddings.norm.")


class HalfPrecision(nn.Module):
    """Runs a module with bfloat16 copies of its float32 weights, cast at each call; gradients are float32.

    Autocast would keep the norms' outputs, and so the whole residual stream, in float32: twice the memory traffic.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Sums:
        """The sums of each loss, from the module."""
        weights = {
            name: parameter if any(part in name for part in FLOAT32_PARAMETERS) else parameter.to(torch.bfloat16)
            for name, parameter in self.module.named_parameters()
        }
        sums: Sums = torch.func.functional_call(self.module, weights, inputs)
        return sums
