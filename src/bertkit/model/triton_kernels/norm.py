"""Bias, residual and LayerNorm for CUDA in one Triton kernel. For inference only: it has no gradient.

Imported only on CUDA; the twin is F.layer_norm(base + (x + bias), ...).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_norm(x, bias, base, weight, shift, out, epsilon, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < WIDTH
    index = row * WIDTH + column
    value = tl.load(x + index, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(base + index, mask=inside, other=0.0).to(tl.float32)
    centered = tl.where(inside, value - tl.sum(value, 0) / WIDTH, 0.0)
    normed = centered * tl.rsqrt(tl.sum(centered * centered, 0) / WIDTH + epsilon)
    normed = normed * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    normed += tl.load(shift + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + index, normed.to(out.dtype.element_ty), mask=inside)


def add_norm(
    x_TD: Tensor, bias_D: Tensor, base_TD: Tensor, weight_D: Tensor, shift_D: Tensor, epsilon: float
) -> Tensor:
    """norm(base + (x + bias)) of contiguous T D, computed in float32."""
    out, width = torch.empty_like(x_TD), x_TD.shape[1]
    block = triton.next_power_of_2(width)
    tensors, warps = (x_TD, bias_D, base_TD, weight_D, shift_D, out), max(1, min(8, block // 256))
    _add_norm[(len(x_TD),)](*tensors, epsilon, WIDTH=width, BLOCK=block, num_warps=warps)
    return out
