"""A layer's residual and its norm for CUDA in Triton, in one pass over memory. For answers only: it has no gradient.

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
    place = row * WIDTH + column
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(base + place, mask=inside, other=0.0).to(tl.float32)
    apart = tl.where(inside, value - tl.sum(value, 0) / WIDTH, 0.0)
    normed = apart * tl.rsqrt(tl.sum(apart * apart, 0) / WIDTH + epsilon)
    normed = normed * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    normed += tl.load(shift + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, normed.to(out.dtype.element_ty), mask=inside)


def add_norm(
    x_TD: Tensor, bias_D: Tensor, base_TD: Tensor, weight_D: Tensor, shift_D: Tensor, epsilon: float
) -> Tensor:
    """norm(base + (x + bias)) of contiguous T D, added up in float32."""
    out, width = torch.empty_like(x_TD), x_TD.shape[1]
    block = triton.next_power_of_2(width)
    tensors, warps = (x_TD, bias_D, base_TD, weight_D, shift_D, out), max(1, min(8, block // 256))
    _add_norm[(len(x_TD),)](*tensors, epsilon, WIDTH=width, BLOCK=block, num_warps=warps)
    return out
