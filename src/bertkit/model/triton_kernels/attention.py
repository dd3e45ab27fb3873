"""Attention for CUDA in Triton, over packed sequences; each value is read and written once.

The backward of torch's flash attention takes three passes over a sequence, and queries, keys and values are separate,
so that their gradients have to be concatenated. Here a sequence of up to 128 tokens is one program, which keeps all
attention weights in registers; gradients are written to one T 3 H K tensor.

Imported only on CUDA, where Triton comes with torch. The slow twin is `eager` in `model/attention.py`:
`benchmarks/kernels_gpu.py` compares them on a GPU, `tests/model/test_triton.py` in Triton's interpreter.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_ONE_PROGRAM = 128  # tokens of a sequence whose backward is one program
LOG2E = math.log2(math.e)
ROW_STRIDE = tl.constexpr(1 << 15)  # over any length: weight (row, column) has number row * ROW_STRIDE + column


@triton.jit
def _masked(scores, row, column, length, RADIUS: tl.constexpr, CAUSAL: tl.constexpr):
    """Scores, -inf where the row's token does not see the column's; rows and columns broadcast in either order."""
    visible = column < length
    if CAUSAL:
        visible = visible & (column <= row)
    if RADIUS >= 0:
        visible = visible & (column <= row + RADIUS) & (row <= column + RADIUS)
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def _dropout(values, seed, row, column, dropout):
    """Dropout of weights; a weight's random number depends on its number and the head's seed, the same in each pass."""
    kept = tl.rand(seed, row * ROW_STRIDE + column, n_rounds=7) >= dropout
    return tl.where(kept, values / (1 - dropout), 0.0)


@triton.jit
def _seed(seeds, sequence, head, HEADS: tl.constexpr):
    return tl.load(seeds) + sequence * HEADS + head


@triton.jit(do_not_specialize=["tokens"])  # else it is compiled once more for multiples of 16
def _forward(
    qkv, offsets, seeds, out, sums, tokens, scale, dropout,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    RADIUS: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """One program: a block of rows of one head of one sequence, over all columns, with a running softmax."""
    sequence, head, block = tl.program_id(0), tl.program_id(2), tl.program_id(1)
    start = tl.load(offsets + sequence).to(tl.int64)
    length = tl.load(offsets + sequence + 1).to(tl.int64) - start
    row, inner = block * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    if block * ROWS < length:
        STRIDE: tl.constexpr = 3 * HEADS * WIDTH
        base = qkv + start * STRIDE + head * WIDTH
        real = (row < length)[:, None]
        q = tl.load(base + row[:, None] * STRIDE + inner[None, :], mask=real, other=0.0)
        maximum = tl.full((ROWS,), -1e30, tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        mixed = tl.zeros((ROWS, WIDTH), tl.float32)
        for first in range(0, length, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            pointers = base + column[:, None] * STRIDE + inner[None, :]
            real_columns = (column < length)[:, None]
            k = tl.load(pointers + HEADS * WIDTH, mask=real_columns, other=0.0)
            v = tl.load(pointers + 2 * HEADS * WIDTH, mask=real_columns, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            scores = _masked(scores, row[:, None], column[None, :], length, RADIUS, CAUSAL)
            peak = tl.maximum(maximum, tl.max(scores, 1))
            weights = tl.exp2(scores - peak[:, None])
            shrink = tl.exp2(maximum - peak)
            total = total * shrink + tl.sum(weights, 1)
            if DROPS:
                seed = _seed(seeds, sequence, head, HEADS)
                weights = _dropout(weights, seed, row[:, None], column[None, :], dropout)
            mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            maximum = peak
        target = out + (start + row)[:, None] * (HEADS * WIDTH) + head * WIDTH + inner[None, :]
        tl.store(target, (mixed / total[:, None]).to(out.dtype.element_ty), mask=real)
        tl.store(sums + head * tokens + start + row, maximum + tl.log2(total), mask=row < length)


@triton.jit
def _backward_whole(
    qkv, grad, out, start, length, head, seed, scale, score_scale, dropout,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    RADIUS: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Gradients of one head of one sequence; the weights are computed again and stay in registers."""
    STRIDE: tl.constexpr = 3 * HEADS * WIDTH
    row, inner = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    real = (row < length)[:, None]
    qkv_index = (start + row)[:, None] * STRIDE + head * WIDTH + inner[None, :]
    q = tl.load(qkv + qkv_index, mask=real, other=0.0)
    k = tl.load(qkv + qkv_index + HEADS * WIDTH, mask=real, other=0.0)
    v = tl.load(qkv + qkv_index + 2 * HEADS * WIDTH, mask=real, other=0.0)
    thk_index = (start + row)[:, None] * (HEADS * WIDTH) + head * WIDTH + inner[None, :]
    g = tl.load(grad + thk_index, mask=real, other=0.0)
    scores = tl.dot(q, tl.trans(k)) * scale
    scores = _masked(scores, row[:, None], row[None, :], length, RADIUS, CAUSAL)
    weights = tl.exp2(scores - tl.maximum(tl.max(scores, 1), -1e30)[:, None])
    total = tl.sum(weights, 1)
    weights = weights / tl.where(total > 0, total, 1.0)[:, None]  # a row after the end may see nothing
    mixing, change = weights, tl.dot(g, tl.trans(v))
    if DROPS:
        mixing = _dropout(weights, seed, row[:, None], row[None, :], dropout)
        change = _dropout(change, seed, row[:, None], row[None, :], dropout)
    tl.store(out + qkv_index + 2 * HEADS * WIDTH, tl.dot(tl.trans(mixing.to(q.dtype)), g).to(q.dtype), mask=real)
    change = (weights * (change - tl.sum(weights * change, 1)[:, None]) * score_scale).to(q.dtype)
    tl.store(out + qkv_index, tl.dot(change, k).to(q.dtype), mask=real)
    tl.store(out + qkv_index + HEADS * WIDTH, tl.dot(tl.trans(change), q).to(q.dtype), mask=real)


@triton.jit
def _backward_short(
    qkv, offsets, seeds, grad, out, scale, score_scale, dropout,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    RADIUS: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """One program: one head of one sequence, in a block of half the side if that is enough."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(offsets + sequence).to(tl.int64)
    length = tl.load(offsets + sequence + 1).to(tl.int64) - start
    seed = _seed(seeds, sequence, head, HEADS) if DROPS else 0
    HALF: tl.constexpr = ROWS // 2 if ROWS > 16 else ROWS
    if length > HALF:
        _backward_whole(
            qkv, grad, out, start, length, head, seed, scale, score_scale, dropout,
            HEADS, WIDTH, ROWS, RADIUS, CAUSAL, DROPS,
        )  # fmt: skip
    elif length > 0:
        _backward_whole(
            qkv, grad, out, start, length, head, seed, scale, score_scale, dropout,
            HEADS, WIDTH, HALF, RADIUS, CAUSAL, DROPS,
        )  # fmt: skip


@triton.jit
def _backward_columns(
    qkv, offsets, seeds, means, grad, sums, out, tokens, scale, score_scale, dropout,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    RADIUS: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values, over all queries that attend to them."""
    sequence, head, block = tl.program_id(0), tl.program_id(2), tl.program_id(1)
    start = tl.load(offsets + sequence).to(tl.int64)
    length = tl.load(offsets + sequence + 1).to(tl.int64) - start
    if block * COLUMNS < length:
        STRIDE: tl.constexpr = 3 * HEADS * WIDTH
        column, inner = block * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
        real_columns = (column < length)[:, None]
        qkv_index = (start + column)[:, None] * STRIDE + head * WIDTH + inner[None, :]
        k = tl.load(qkv + qkv_index + HEADS * WIDTH, mask=real_columns, other=0.0)
        v = tl.load(qkv + qkv_index + 2 * HEADS * WIDTH, mask=real_columns, other=0.0)
        grad_k = tl.zeros((COLUMNS, WIDTH), tl.float32)
        grad_v = tl.zeros((COLUMNS, WIDTH), tl.float32)
        for first in range(0, length, ROWS):
            row = first + tl.arange(0, ROWS)
            real = (row < length)[:, None]
            q = tl.load(qkv + (start + row)[:, None] * STRIDE + head * WIDTH + inner[None, :], mask=real, other=0.0)
            thk_index = (start + row)[:, None] * (HEADS * WIDTH) + head * WIDTH + inner[None, :]
            g = tl.load(grad + thk_index, mask=real, other=0.0)
            total = tl.load(sums + head * tokens + start + row, mask=row < length, other=0.0)
            mean = tl.load(means + head * tokens + start + row, mask=row < length, other=0.0)
            # Keys down, queries across: so both products read the weights in the layout of the registers.
            scores = tl.dot(k, tl.trans(q)) * scale
            scores = _masked(scores, row[None, :], column[:, None], length, RADIUS, CAUSAL)
            weights = tl.exp2(scores - total[None, :])
            mixing, change = weights, tl.dot(v, tl.trans(g))
            if DROPS:
                seed = _seed(seeds, sequence, head, HEADS)
                mixing = _dropout(weights, seed, row[None, :], column[:, None], dropout)
                change = _dropout(change, seed, row[None, :], column[:, None], dropout)
            grad_v += tl.dot(mixing.to(q.dtype), g)
            change = weights * (change - mean[None, :])
            grad_k += tl.dot(change.to(q.dtype), q)
        tl.store(out + qkv_index + HEADS * WIDTH, (grad_k * score_scale).to(k.dtype), mask=real_columns)
        tl.store(out + qkv_index + 2 * HEADS * WIDTH, grad_v.to(k.dtype), mask=real_columns)


@triton.jit
def _backward_rows(
    qkv, offsets, seeds, mixed, means, grad, sums, out, tokens, scale, score_scale, dropout,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    RADIUS: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries, over all keys that they attend to; and each row's mean, which keys need."""
    sequence, head, block = tl.program_id(0), tl.program_id(2), tl.program_id(1)
    start = tl.load(offsets + sequence).to(tl.int64)
    length = tl.load(offsets + sequence + 1).to(tl.int64) - start
    if block * ROWS < length:
        STRIDE: tl.constexpr = 3 * HEADS * WIDTH
        row, inner = block * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
        real = (row < length)[:, None]
        qkv_index = (start + row)[:, None] * STRIDE + head * WIDTH + inner[None, :]
        q = tl.load(qkv + qkv_index, mask=real, other=0.0)
        thk_index = (start + row)[:, None] * (HEADS * WIDTH) + head * WIDTH + inner[None, :]
        g = tl.load(grad + thk_index, mask=real, other=0.0)
        o = tl.load(mixed + thk_index, mask=real, other=0.0)
        total = tl.load(sums + head * tokens + start + row, mask=row < length, other=0.0)
        mean = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
        tl.store(means + head * tokens + start + row, mean, mask=row < length)
        grad_q = tl.zeros((ROWS, WIDTH), tl.float32)
        for first in range(0, length, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            real_columns = (column < length)[:, None]
            pointers = qkv + (start + column)[:, None] * STRIDE + head * WIDTH + inner[None, :]
            k = tl.load(pointers + HEADS * WIDTH, mask=real_columns, other=0.0)
            v = tl.load(pointers + 2 * HEADS * WIDTH, mask=real_columns, other=0.0)
            scores = tl.dot(q, tl.trans(k)) * scale
            scores = _masked(scores, row[:, None], column[None, :], length, RADIUS, CAUSAL)
            weights = tl.exp2(scores - total[:, None])
            change = tl.dot(g, tl.trans(v))
            if DROPS:
                seed = _seed(seeds, sequence, head, HEADS)
                change = _dropout(change, seed, row[:, None], column[None, :], dropout)
            change = weights * (change - mean[:, None])
            grad_q += tl.dot(change.to(k.dtype), k)
        tl.store(out + qkv_index, (grad_q * score_scale).to(q.dtype), mask=real)


def _constants(qkv: Tensor, radius: int, causal: bool, dropout: float) -> dict[str, Any]:
    constants = {"HEADS": qkv.shape[2], "WIDTH": qkv.shape[3], "RADIUS": radius, "CAUSAL": causal}
    return {**constants, "DROPS": dropout > 0}


def _side(longest: int, most: int) -> int:
    """The side of a block for sequences up to `longest`: a power of two from 16, which matrix units need."""
    return min(most, max(16, 1 << (longest - 1).bit_length()))


@torch.library.custom_op("bertkit::attention", mutates_args=())
def attention(
    qkv: Tensor, offsets: Tensor, seeds: Tensor, longest: int, radius: int, causal: bool, dropout: float
) -> tuple[Tensor, Tensor]:
    """T 3 H K -> (T H K, H T): each token's weighted mean of values, and log2 of the sum of its exponentials.

    `seeds` holds one number, which is read if there is dropout.
    """
    tokens, _, heads, width = qkv.shape
    # Every token is in a sequence, so that both are written completely.
    out, sums = qkv.new_empty(tokens, heads, width), qkv.new_empty(heads, tokens, dtype=torch.float32)
    exact = qkv.dtype == torch.float32  # twice the registers; products in float32, not TF32
    rows = _side(longest, 128 if longest <= MAX_ONE_PROGRAM and not exact else 64)
    _forward[(len(offsets) - 1, triton.cdiv(longest, rows), heads)](
        qkv, offsets, seeds, out, sums, tokens, LOG2E / math.sqrt(width), dropout,
        ROWS=rows, COLUMNS=_side(longest, 32 if exact else 64),
        num_warps=8 if rows == 128 else 4, num_stages=3, **_constants(qkv, radius, causal, dropout),
    )  # fmt: skip
    return out, sums


@torch.library.custom_op("bertkit::attention_backward", mutates_args=())
def attention_backward(
    qkv: Tensor, offsets: Tensor, seeds: Tensor, mixed: Tensor, sums: Tensor, grad: Tensor,
    longest: int, radius: int, causal: bool, dropout: float,
) -> Tensor:  # fmt: skip
    """T 3 H K: the gradient of queries, keys and values."""
    tokens, _, heads, width = qkv.shape
    out, constants = torch.empty_like(qkv), _constants(qkv, radius, causal, dropout)
    scale, score_scale = LOG2E / math.sqrt(width), 1 / math.sqrt(width)
    sequences = len(offsets) - 1
    if longest <= MAX_ONE_PROGRAM:
        rows = _side(longest, MAX_ONE_PROGRAM)
        _backward_short[(sequences, heads)](
            qkv, offsets, seeds, grad, out, scale, score_scale, dropout,
            ROWS=rows, num_warps=8 if rows == 128 else 4, **constants,
        )  # fmt: skip
        return out
    means, common = torch.empty_like(sums), (grad, sums, out, tokens, scale, score_scale, dropout)
    _backward_rows[(sequences, triton.cdiv(longest, 128), heads)](
        qkv, offsets, seeds, mixed, means, *common, ROWS=128, COLUMNS=64, num_warps=8, num_stages=3, **constants
    )
    _backward_columns[(sequences, triton.cdiv(longest, 64), heads)](
        qkv, offsets, seeds, means, *common, ROWS=32, COLUMNS=64, num_warps=4, num_stages=3, **constants
    )
    return out


@attention.register_fake
def _(
    qkv: Tensor, offsets: Tensor, seeds: Tensor, longest: int, radius: int, causal: bool, dropout: float
) -> tuple[Tensor, Tensor]:
    tokens, _, heads, width = qkv.shape
    return qkv.new_empty(tokens, heads, width), qkv.new_empty(heads, tokens, dtype=torch.float32)


@attention_backward.register_fake
def _(
    qkv: Tensor, offsets: Tensor, seeds: Tensor, mixed: Tensor, sums: Tensor, grad: Tensor,
    longest: int, radius: int, causal: bool, dropout: float,
) -> Tensor:  # fmt: skip
    return torch.empty_like(qkv)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, offsets, seeds, *ctx.options = inputs
    ctx.save_for_backward(qkv, offsets, seeds, *output)


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    qkv_grad = attention_backward(*ctx.saved_tensors, grad.contiguous(), *ctx.options)
    return qkv_grad, None, None, None, None, None, None


attention.register_autograd(_backward, setup_context=_save_inputs)
