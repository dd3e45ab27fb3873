"""Linear maps in 8-bit integers, for CPUs.

Weights get a scale for each output, activations one for each token. Before that, columns in which activations are
large hand some of their size to the weights (SmoothQuant's idea): the product is the same, and both are easier to
round.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.model.operations import Activation

ROUNDING = 1.5 * 2**23
# What a map gives: no bias, no scale, float32, nothing fused.
PLAIN_OUTPUT: tuple[Any, ...] = (None, 1.0, 0, torch.float32, "none", [], "none")


@dataclass(frozen=True)
class Int8Map:
    """(x / smooth) in u8 @ (w * smooth) in s8, scaled back: a token's scale times an output's."""

    packed: Tensor
    scale_O: Tensor
    zero_O: Tensor
    bias_O: Tensor | None
    unsmooth_I: Tensor  # 1 / smooth

    @classmethod
    def of(cls, linear: nn.Linear, largest_I: Tensor, smoothing: float) -> "Int8Map":
        """From a torch module and the largest activation that was seen in each column."""
        weight_OI = linear.weight.detach()
        weights_I = weight_OI.abs().amax(0).clamp(min=1e-5)
        smooth_I = largest_I.clamp(min=1e-5) ** smoothing / weights_I ** (1 - smoothing)
        smoothed_OI = weight_OI * smooth_I
        scale_O = smoothed_OI.abs().amax(1).clamp(min=1e-12) / 127
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

    def onto(self, x_TI: Tensor, base_TO: Tensor) -> Tensor:
        """T O."""
        return self._product(x_TI).add_(base_TO)

    def _product(self, x_TI: Tensor) -> Tensor:
        rounded, scale_T1 = round_rows(x_TI * self.unsmooth_I, levels())
        weights = (self.packed, self.scale_O, self.zero_O)
        y_TO: Tensor = _onednn().qlinear_pointwise(rounded, 1.0, levels() + 1, *weights, *PLAIN_OUTPUT)
        y_TO.mul_(scale_T1)
        return y_TO if self.bias_O is None else y_TO.add_(self.bias_O)


def round_rows(x_TI: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """u8 numbers around `most + 1`, and the scale of each row: (u8 - most - 1) * scale is x, nearly. Uses `x_TI` up.

    Beyond 2^23 a float32 has no places after the point: adding ROUNDING rounds, and leaves the whole number in the last
    byte. Of torch's own ways, `aminmax` took 34 times as long as `amax`, and float32 to uint8 seven times this.
    """
    scale_T1 = torch.maximum(x_TI.amax(1, keepdim=True), -x_TI.amin(1, keepdim=True)).clamp_(min=1e-12).div_(most)
    shifted = x_TI.mul_(scale_T1.reciprocal()).add_(ROUNDING + most + 1)
    return shifted.view(torch.int32).to(torch.uint8), scale_T1


@cache
def levels() -> int:
    """How many steps an activation has on each side of zero.

    Without VNNI, products are summed in pairs as 16-bit numbers: 255 x 127 x 2 would not fit there, 127 x 127 x 2 does.
    """
    return 127 if torch.cpu._is_vnni_supported() else 63


@cache
def has_int8() -> bool:
    """Whether this torch has the kernel."""
    return hasattr(_onednn(), "qlinear_pointwise")


@cache
def _onednn() -> Any:
    return torch.ops.onednn
