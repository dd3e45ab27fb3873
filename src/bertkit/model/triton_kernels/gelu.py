"""Bias and GELU for CUDA in one Triton kernel; its backward also sums the bias's gradient.

Torch's GELU computes the error function to the last bit of float32 for results that are rounded to bfloat16, and needs
another pass for the bias's gradient. Imported only on CUDA; the twin is F.gelu(x + bias).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _normal(x):
    """(P(X < x), exp(-x^2 / 2)) of a standard normal X: Abramowitz and Stegun 7.1.26, error under 1e-7."""
    density = tl.exp2(x * x * -0.7213475204444817)
    t = 1.0 / (1.0 + 0.2316418882663604 * tl.abs(x))
    tail = ((((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368) * t + 0.127414796) * t * density
    return tl.where(x > 0, 1.0 - tail, tail), density


@triton.jit
def _gelu_forward(x, bias, out, size, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    valid = index < size
    value = tl.load(x + index, mask=valid, other=0.0).to(tl.float32) + tl.load(bias + index % WIDTH).to(tl.float32)
    probability, _ = _normal(value)
    tl.store(out + index, (value * probability).to(out.dtype.element_ty), mask=valid)


@triton.jit
def _gelu_backward(
    x, bias, grad, out, sums, rows, WIDTH: tl.constexpr, BAND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Gradients of a band of BAND rows, and the sums of their columns, which add up to the bias's gradient."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    first = tl.program_id(0).to(tl.int64) * BAND
    for step in range(0, BAND, ROWS):
        row = first + step + tl.arange(0, ROWS)
        index = row[:, None] * WIDTH + column[None, :]
        valid = (row < rows)[:, None] & inside[None, :]
        value = tl.load(x + index, mask=valid, other=0.0).to(tl.float32) + shift[None, :]
        probability, density = _normal(value)
        change = tl.load(grad + index, mask=valid, other=0.0).to(tl.float32)
        change = change * (probability + value * density * 0.3989422804014327)
        tl.store(out + index, change.to(out.dtype.element_ty), mask=valid)
        total += change
    tl.store(sums + tl.program_id(0) * WIDTH + column, tl.sum(total, 0), mask=inside)


@torch.library.custom_op("bertkit::bias_gelu", mutates_args=())
def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """gelu(x + bias) of a contiguous T F."""
    out = torch.empty_like(x)
    block = 2048
    _gelu_forward[(triton.cdiv(x.numel(), block),)](x, bias, out, x.numel(), WIDTH=x.shape[1], BLOCK=block, num_warps=4)
    return out


@torch.library.custom_op("bertkit::bias_gelu_backward", mutates_args=())
def bias_gelu_backward(x: Tensor, bias: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the bias."""
    rows, width = x.shape
    band, columns = 512, min(512, max(16, 1 << (width - 1).bit_length()))
    grid = (triton.cdiv(rows, band), triton.cdiv(width, columns))
    out, sums = torch.empty_like(x), x.new_empty(grid[0], width, dtype=torch.float32)
    _gelu_backward[grid](x, bias, grad, out, sums, rows, WIDTH=width, BAND=band, ROWS=16, COLUMNS=columns, num_warps=8)
    return out, sums.sum(0).to(bias.dtype)


@bias_gelu.register_fake
def _(x: Tensor, bias: Tensor) -> Tensor:
    return torch.empty_like(x)


@bias_gelu_backward.register_fake
def _(x: Tensor, bias: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(bias)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor] = bias_gelu_backward(*ctx.saved_tensors, grad.contiguous())
    return gradients


bias_gelu.register_autograd(_backward, setup_context=_save_inputs)
