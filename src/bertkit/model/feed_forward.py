"""The same two linear maps at every token, with a bend between them."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.model.kernels import bias_gelu, triton_can
from bertkit.settings import pick

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class FeedForward(nn.Module):
    """Up to `inner`, bend, down: BERT's with GELU, the Transformer's with ReLU."""

    widths_up = 1  # how many times `inner` the first map gives

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, self.widths_up * config.inner, bias=config.parts.bias)
        self.bend = pick(ACTIVATIONS, config.parts.activation, "activation")
        self.down = nn.Linear(config.inner, config.width, bias=config.parts.bias)

    def forward(self, x_TD: Tensor) -> Tensor:
        """T D."""
        out: Tensor = self.down(self.bent(x_TD))
        return out

    def bent(self, x_TD: Tensor) -> Tensor:
        """T inner: up, and bent; where there is a kernel for it, BERT's GELU takes the bias with it."""
        if self.bend is F.gelu and self.up.bias is not None and triton_can(x_TD):
            return bias_gelu(F.linear(x_TD, self.up.weight), self.up.bias)
        return self.bend(self.up(x_TD))


class GatedFeedForward(FeedForward):
    """ModernBERT's: one half of `up` is bent and gates the other."""

    widths_up = 2

    def forward(self, x_TD: Tensor) -> Tensor:
        """T D."""
        bent, gate = self.up(x_TD).chunk(2, dim=-1)
        out: Tensor = self.down(self.bend(bent) * gate)
        return out


FEED_FORWARDS: dict[str, type[FeedForward]] = {"plain": FeedForward, "gated": GatedFeedForward}
