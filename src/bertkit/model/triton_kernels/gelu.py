"""GELU for CUDA in Triton: the bias added before it, and the bias's gradient summed on the way back.

Torch's GELU computes the error function to float32's last bit for numbers that are rounded to bfloat16, and its bias's
gradient reads everything again. Imported only on CUDA; the twin is F.gelu(x + bias).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _bell(x):
    """(P(X < x), exp(-x^2 / 2)) of a normal X: Abramowitz and Stegun 7.1.26, off by less than 1e-7."""
    bell = tl.exp2(x * x * -0.7213475204444817)
    t = 1.0 / (1.0 + 0.2316418882663604 * tl.abs(x))
    tail = ((((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368) * t + 0.127414796) * t * bell
    return tl.where(x > 0, 1.0 - tail, tail), bell


@triton.jit
def _gelu_forward(x, bias, out, size, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < size
    value = tl.load(x + place, mask=there, other=0.0).to(tl.float32) + tl.load(bias + place % WIDTH).to(tl.float32)
    below, _ = _bell(value)
    tl.store(out + place, (value * below).to(out.dtype.element_ty), mask=there)


@triton.jit
def _gelu_backward(
    x, bias, grad, out, sums, rows, WIDTH: tl.constexpr, EACH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Gradients of a band of EACH rows, and the sum of their columns for the bias's."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    first = tl.program_id(0).to(tl.int64) * EACH
    for step in range(0, EACH, ROWS):
        row = first + step + tl.arange(0, ROWS)
        place = row[:, None] * WIDTH + column[None, :]
        there = (row < rows)[:, None] & inside[None, :]
        value = tl.load(x + place, mask=there, other=0.0).to(tl.float32) + shift[None, :]
        below, bell = _bell(value)
        change = tl.load(grad + place, mask=there, other=0.0).to(tl.float32)
        change = change * (below + value * bell * 0.3989422804014327)
        tl.store(out + place, change.to(out.dtype.element_ty), mask=there)
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
    each, columns = 512, min(512, max(16, 1 << (width - 1).bit_length()))
    grid = (triton.cdiv(rows, each), triton.cdiv(width, columns))
    out, sums = torch.empty_like(x), x.new_empty(grid[0], width, dtype=torch.float32)
    _gelu_backward[grid](x, bias, grad, out, sums, rows, WIDTH=width, EACH=each, ROWS=16, COLUMNS=columns, num_warps=8)
    return out, sums.sum(0).to(bias.dtype)


@bias_gelu.register_fake
def _(x: Tensor, bias: Tensor) -> Tensor:
    return torch.empty_like(x)


@bias_gelu_backward.register_fake
def _(x: Tensor, bias: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(bias)


def _keep_gelu(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _give_back_gelu(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor] = bias_gelu_backward(*ctx.saved_tensors, grad.contiguous())
    return gradients


bias_gelu.register_autograd(_give_back_gelu, setup_context=_keep_gelu)
