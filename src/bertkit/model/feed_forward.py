"""The same two linear maps at every token, with an activation function between them."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.model.operations import TORCH, Activation, Operations, Output
from bertkit.settings import pick

ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class FeedForward(nn.Module):
    """Up to `inner`, activation, down: BERT's with GELU, the Transformer's with ReLU."""

    widths_up = 1  # how many times `inner` the first map gives

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, self.widths_up * config.inner, bias=config.parts.bias)
        self.activation = pick(ACTIVATIONS, config.parts.activation, "activation")
        self.down = nn.Linear(config.inner, config.width, bias=config.parts.bias)

    def forward(self, x_TD: Tensor, ops: Operations = TORCH) -> Output:
        """T D."""
        return ops.output(self.down, ops.activate(self.up, self.activation, x_TD))


class GatedFeedForward(FeedForward):
    """ModernBERT's: one half of `up`, through the activation function, gates the other."""

    widths_up = 2

    def forward(self, x_TD: Tensor, ops: Operations = TORCH) -> Output:
        """T D."""
        return ops.output(self.down, ops.gate(self.up, self.activation, x_TD))


FEED_FORWARDS: dict[str, type[FeedForward]] = {"plain": FeedForward, "gated": GatedFeedForward}
