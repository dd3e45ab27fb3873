"""Cross-entropy over the vocabulary, its gradient, and sampling, for CUDA: each one Triton kernel over the logits.

Imported only on CUDA; `word_loss.py` has the plain twins. Rows may be longer than the vocabulary (`size`), because
matrices of a rounded width are multiplied faster: the columns after it are ignored.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
BLOCK = 4096


@triton.jit
def _loss(logits, targets, losses, log_sums, correct, width, size, BLOCK: tl.constexpr):
    """One program: one row, by a running maximum and sum."""
    row = tl.program_id(0).to(tl.int64)
    base, maximum, total = logits + row * width, float("-inf"), 0.0
    for first in range(0, size, BLOCK):
        column = first + tl.arange(0, BLOCK)
        x = tl.load(base + column, mask=column < size, other=float("-inf")).to(tl.float32) * LOG2E
        peak = tl.maximum(maximum, tl.max(x, 0))
        total = total * tl.exp2(maximum - peak) + tl.sum(tl.exp2(x - peak), 0)
        maximum = peak
    log_sum = (maximum + tl.log2(total)) * LN2
    target = tl.load(targets + row)
    target_logit = tl.load(base + tl.maximum(target, 0)).to(tl.float32)
    tl.store(losses + row, tl.where(target < 0, 0.0, log_sum - target_logit))
    tl.store(log_sums + row, log_sum)
    tl.store(correct + row, (target >= 0) & (target_logit * LOG2E >= maximum))


@triton.jit
def _loss_backward(logits, targets, log_sums, grad, out, width, size, BLOCK: tl.constexpr):
    """One program: one block of a row: (softmax - 1 at the target) times the row's gradient."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target = tl.load(targets + row)
    weight = tl.where(target < 0, 0.0, tl.load(grad + row))
    x = tl.load(logits + row * width + column, mask=column < size, other=float("-inf")).to(tl.float32)
    change = tl.exp2((x - tl.load(log_sums + row)) * LOG2E) - tl.where(column == target, 1.0, 0.0)
    tl.store(out + row * width + column, (change * weight).to(out.dtype.element_ty), mask=column < width)


@triton.jit
def _sample(logits, log_sums, uniform, ids, width, size, BLOCK: tl.constexpr):
    """One program: one row, until its cumulative probability exceeds the row's number in [0, 1)."""
    row = tl.program_id(0).to(tl.int64)
    log_sum, threshold = tl.load(log_sums + row), tl.load(uniform + row)
    first, before, sampled = 0, 0.0, -1
    while (first < size) & (sampled < 0):
        column = first + tl.arange(0, BLOCK)
        x = tl.load(logits + row * width + column, mask=column < size, other=float("-inf")).to(tl.float32)
        sums = before + tl.cumsum(tl.exp2((x - log_sum) * LOG2E), 0)
        last = tl.max(sums, 0)
        if last > threshold:
            sampled = first + tl.sum((sums <= threshold).to(tl.int32), 0)
        before = last
        first += BLOCK
    tl.store(ids + row, tl.where(sampled < 0, size - 1, sampled).to(tl.int64))


@torch.library.custom_op("bertkit::word_loss", mutates_args=())
def word_loss(logits: Tensor, targets: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """(M losses, M log-sum-exp, M correct or not) of M contiguous rows; a negative target has loss 0."""
    (rows, width), targets = logits.shape, targets.contiguous()
    losses, log_sums = (logits.new_empty(rows, dtype=torch.float32) for _ in range(2))
    correct = logits.new_empty(rows, dtype=torch.bool)
    _loss[(rows,)](logits, targets, losses, log_sums, correct, width, size, BLOCK=BLOCK, num_warps=8)
    return losses, log_sums, correct


@torch.library.custom_op("bertkit::word_loss_backward", mutates_args=())
def word_loss_backward(logits: Tensor, targets: Tensor, log_sums: Tensor, grad: Tensor, size: int) -> Tensor:
    """M V: the logits' gradient, zero after the vocabulary."""
    (rows, width), targets = logits.shape, targets.contiguous()
    out = torch.empty_like(logits)
    _loss_backward[(rows, triton.cdiv(width, BLOCK))](
        logits, targets, log_sums, grad, out, width, size, BLOCK=BLOCK, num_warps=8
    )
    return out


@torch.library.custom_op("bertkit::word_sample", mutates_args=())
def word_sample(logits: Tensor, log_sums: Tensor, uniform: Tensor, size: int) -> Tensor:
    """M ids, each the first whose cumulative probability exceeds its row's number in [0, 1)."""
    ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    # A cumulative sum in float32 may end a little under 1.
    _sample[(len(logits),)](logits, log_sums, uniform * (1 - 1e-5), ids, logits.shape[1], size, BLOCK=2048, num_warps=4)
    return ids


@word_loss.register_fake
def _(logits: Tensor, targets: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    losses = logits.new_empty(len(logits), dtype=torch.float32)
    return losses, torch.empty_like(losses), torch.empty_like(losses, dtype=torch.bool)


@word_loss_backward.register_fake
def _(logits: Tensor, targets: Tensor, log_sums: Tensor, grad: Tensor, size: int) -> Tensor:
    return torch.empty_like(logits)


@word_sample.register_fake
def _(logits: Tensor, log_sums: Tensor, uniform: Tensor, size: int) -> Tensor:
    return torch.empty(len(logits), dtype=torch.int64, device=logits.device)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, targets, ctx.size = inputs
    ctx.save_for_backward(logits, targets, output[1])


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None, None]:
    return word_loss_backward(*ctx.saved_tensors, grad.contiguous(), ctx.size), None, None


word_loss.register_autograd(_backward, setup_context=_save_inputs)
