"""The vocabulary's softmax for CUDA in Triton: the loss, its gradient, and a sample, each in one pass over the logits.

Imported only on CUDA; `word_loss.py` has the plain twins. Rows may be longer than the vocabulary (`size`), for matrices
of an even width are multiplied quicker: what is behind it counts nowhere.
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
def _loss(logits, targets, losses, logs, right, width, size, BLOCK: tl.constexpr):
    """One program: a row; a running maximum and sum."""
    row = tl.program_id(0).to(tl.int64)
    base, most, total = logits + row * width, float("-inf"), 0.0
    for first in range(0, size, BLOCK):
        column = first + tl.arange(0, BLOCK)
        x = tl.load(base + column, mask=column < size, other=float("-inf")).to(tl.float32) * LOG2E
        peak = tl.maximum(most, tl.max(x, 0))
        total = total * tl.exp2(most - peak) + tl.sum(tl.exp2(x - peak), 0)
        most = peak
    log = (most + tl.log2(total)) * LN2
    target = tl.load(targets + row)
    own = tl.load(base + tl.maximum(target, 0)).to(tl.float32)
    tl.store(losses + row, tl.where(target < 0, 0.0, log - own))
    tl.store(logs + row, log)
    tl.store(right + row, (target >= 0) & (own * LOG2E >= most))


@triton.jit
def _loss_backward(logits, targets, logs, grad, out, width, size, BLOCK: tl.constexpr):
    """One program: a block of a row: (softmax - 1 at the target) x the row's gradient."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target = tl.load(targets + row)
    weight = tl.where(target < 0, 0.0, tl.load(grad + row))
    x = tl.load(logits + row * width + column, mask=column < size, other=float("-inf")).to(tl.float32)
    change = tl.exp2((x - tl.load(logs + row)) * LOG2E) - tl.where(column == target, 1.0, 0.0)
    tl.store(out + row * width + column, (change * weight).to(out.dtype.element_ty), mask=column < width)


@triton.jit
def _sample(logits, logs, places, ids, width, size, BLOCK: tl.constexpr):
    """One program: a row; its running sum of probabilities until it passes the row's place in [0, 1)."""
    row = tl.program_id(0).to(tl.int64)
    log, place = tl.load(logs + row), tl.load(places + row)
    first, before, found = 0, 0.0, -1
    while (first < size) & (found < 0):
        column = first + tl.arange(0, BLOCK)
        x = tl.load(logits + row * width + column, mask=column < size, other=float("-inf")).to(tl.float32)
        sums = before + tl.cumsum(tl.exp2((x - log) * LOG2E), 0)
        last = tl.max(sums, 0)
        if last > place:
            found = first + tl.sum((sums <= place).to(tl.int32), 0)
        before = last
        first += BLOCK
    tl.store(ids + row, tl.where(found < 0, size - 1, found).to(tl.int64))


@torch.library.custom_op("bertkit::word_loss", mutates_args=())
def word_loss(logits: Tensor, targets: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """(M losses, M logs of the sum of exp, M right or not) of M contiguous rows; a negative target asks for nothing."""
    (rows, width), targets = logits.shape, targets.contiguous()
    losses, logs = (logits.new_empty(rows, dtype=torch.float32) for _ in range(2))
    right = logits.new_empty(rows, dtype=torch.bool)
    _loss[(rows,)](logits, targets, losses, logs, right, width, size, BLOCK=BLOCK, num_warps=8)
    return losses, logs, right


@torch.library.custom_op("bertkit::word_loss_backward", mutates_args=())
def word_loss_backward(logits: Tensor, targets: Tensor, logs: Tensor, grad: Tensor, size: int) -> Tensor:
    """The logits' gradient, zero behind the vocabulary."""
    (rows, width), targets = logits.shape, targets.contiguous()
    out = torch.empty_like(logits)
    _loss_backward[(rows, triton.cdiv(width, BLOCK))](
        logits, targets, logs, grad, out, width, size, BLOCK=BLOCK, num_warps=8
    )
    return out


@torch.library.custom_op("bertkit::word_sample", mutates_args=())
def word_sample(logits: Tensor, logs: Tensor, places: Tensor, size: int) -> Tensor:
    """M ids, each the first whose running sum of probabilities passes its row's place."""
    ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    # A running sum in float32 may end a little under 1.
    _sample[(len(logits),)](logits, logs, places * (1 - 1e-5), ids, logits.shape[1], size, BLOCK=2048, num_warps=4)
    return ids


@word_loss.register_fake
def _(logits: Tensor, targets: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    number = logits.new_empty(len(logits), dtype=torch.float32)
    return number, torch.empty_like(number), torch.empty_like(number, dtype=torch.bool)


@word_loss_backward.register_fake
def _(logits: Tensor, targets: Tensor, logs: Tensor, grad: Tensor, size: int) -> Tensor:
    return torch.empty_like(logits)


@word_sample.register_fake
def _(logits: Tensor, logs: Tensor, places: Tensor, size: int) -> Tensor:
    return torch.empty(len(logits), dtype=torch.int64, device=logits.device)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, targets, ctx.size = inputs
    ctx.save_for_backward(logits, targets, output[1])


def _give_back(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None, None]:
    return word_loss_backward(*ctx.saved_tensors, grad.contiguous(), ctx.size), None, None


word_loss.register_autograd(_give_back, setup_context=_keep)
