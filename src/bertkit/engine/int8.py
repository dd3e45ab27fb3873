"""Linear layers in int8, for CPUs.

Weights get a scale for each output, activations one for each token. Before that, columns with large activations are
divided by a factor by which the weights are multiplied (SmoothQuant): the product is the same, and both round better.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.model.operations import Activation

ROUNDING = 1.5 * 2**23  # added to a float32, it rounds it to a whole number: see `round_rows`
# Arguments of oneDNN's kernel: no bias, no output scale, float32, nothing fused.
PLAIN_OUTPUT: tuple[Any, ...] = (None, 1.0, 0, torch.float32, "none", [], "none")


@dataclass(frozen=True)
class Int8Linear:
    """(x / smooth) in uint8 @ (weight * smooth) in int8, times the token's scale and the output's scale."""

    packed: Tensor
    scale_O: Tensor
    zero_O: Tensor
    bias_O: Tensor | None
    unsmooth_I: Tensor  # 1 / smooth

    @classmethod
    def of(cls, linear: nn.Linear, largest_I: Tensor, smoothing: float) -> "Int8Linear":
        """From a torch module and the largest absolute input in each column; `smoothing` is SmoothQuant's alpha."""
        weight_OI = linear.weight.detach()
        weights_I = weight_OI.abs().amax(0).clamp(min=1e-5)
        smooth_I = largest_I.clamp(min=1e-5) ** smoothing / weights_I ** (1 - smoothing)
        smoothed_OI = weight_OI * smooth_I
        scale_O = smoothed_OI.abs().amax(1).clamp(min=1e-12) / levels()
        rounded = (smoothed_OI / scale_O[:, None]).round().to(torch.int8)
        bias_O = None if linear.bias is None else linear.bias.detach()
        return cls(
            _onednn().qlinear_prepack(rounded, None),
            scale_O,
            torch.zeros(len(scale_O), dtype=torch.int64),
            bias_O,
            1 / smooth_I,
        )

    def __call__(self, x_TI: Tensor, activation: Activation | None = None) -> Tensor:
        """T O."""
        y_TO = self._product(x_TI)
        return y_TO if activation is None else activation(y_TO)

    def add_to(self, base_TO: Tensor, x_TI: Tensor) -> Tensor:
        """T O."""
        return self._product(x_TI).add_(base_TO)

    def _product(self, x_TI: Tensor) -> Tensor:
        rounded, scale_T1 = round_rows(x_TI * self.unsmooth_I, levels())
        weights = (self.packed, self.scale_O, self.zero_O)
        y_TO: Tensor = _onednn().qlinear_pointwise(rounded, 1.0, levels() + 1, *weights, *PLAIN_OUTPUT)
        y_TO.mul_(scale_T1)
        return y_TO if self.bias_O is None else y_TO.add_(self.bias_O)


def round_rows(x_TI: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """uint8 values around the zero point `most + 1`, and each row's scale: (value - most - 1) * scale is about x.

    `x_TI` is overwritten. A float32 over 2^23 has no fraction bits: adding ROUNDING rounds to a whole number, which is
    then in the last byte. `aminmax` took 34 times as long as `amax`, `.to(torch.uint8)` seven times as long as this.
    """
    scale_T1 = torch.maximum(x_TI.amax(1, keepdim=True), -x_TI.amin(1, keepdim=True)).clamp_(min=1e-12).div_(most)
    shifted = x_TI.mul_(scale_T1.reciprocal()).add_(ROUNDING + most + 1)
    return shifted.view(torch.int32).to(torch.uint8), scale_T1


@cache
def levels() -> int:
    """The number of int8 levels of activations and weights on each side of zero.

    Without VNNI, pairs of products are added in 16 bits: 255 x 127 x 2 would overflow there, 181 x 90 x 2 does not.
    (63 levels of activations and 127 of weights fit as well, with 1.5 times the error in MiniLM's embeddings.)
    """
    return 127 if torch.cpu._is_vnni_supported() else 90


@cache
def has_int8() -> bool:
    """Whether this torch has oneDNN's int8 kernel."""
    return hasattr(_onednn(), "qlinear_pointwise")


@cache
def _onednn() -> Any:
    return torch.ops.onednn
