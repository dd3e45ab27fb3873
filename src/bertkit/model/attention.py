"""Attention: which tokens each token sees, rotary positions, and five kernels for the weighted mean of the values.

All kernels take and return packed tensors (T H K) and agree to rounding; `tests/model/test_kernels.py` compares them.
`eager` is the formula of the paper; the others are faster.
"""

import math
from dataclasses import dataclass
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.model.batch import Batch


@dataclass(frozen=True)
class AttentionWindow:
    """Which tokens a token sees: all of its sequence, those at most `radius` positions away, or only earlier ones."""

    radius: int | None = None
    causal: bool = False

    def mask(self, length: int, device: torch.device) -> Tensor | None:
        """L L bool, True where the row's token sees the column's; None if every token sees all."""
        radius = length if self.radius is None else self.radius
        if radius >= length - 1 and not self.causal:
            return None
        positions = torch.arange(length, device=device)
        distance = positions[None, :] - positions[:, None]
        return (distance.abs() <= radius) & (distance <= (0 if self.causal else length))


@dataclass(frozen=True)
class Rotation:
    """Rotary positions: each pair of dimensions is rotated by an angle that grows with the token's position."""

    theta: float

    def __call__(self, qkv_T3HK: Tensor, positions_T: Tensor) -> Tensor:
        """T 3 H K with queries and keys rotated: dimension i together with dimension i + K/2."""
        half = qkv_T3HK.shape[-1] // 2
        exponents = torch.arange(half, device=qkv_T3HK.device, dtype=torch.float32) / half
        angles = positions_T[:, None, None, None].float() * (1.0 / self.theta**exponents)
        cos, sin = angles.cos(), angles.sin()
        first, second = qkv_T3HK[:, :2].float().chunk(2, dim=-1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(qkv_T3HK.dtype)
        return torch.cat((rotated, qkv_T3HK[:, 2:]), dim=1)


@dataclass(frozen=True)
class AttentionPattern:
    """What the operation `attend` needs besides queries, keys and values."""

    heads: int
    window: AttentionWindow
    rotation: Rotation | None = None  # None: positions were added to the embeddings

    def split(self, qkv_TX: Tensor, batch: Batch) -> Tensor:
        """T 3D -> T 3 H K: queries, keys and values by head; queries and keys rotated where the family rotates."""
        qkv_T3HK = qkv_TX.view(qkv_TX.shape[0], 3, self.heads, -1)
        return qkv_T3HK if self.rotation is None else self.rotation(qkv_T3HK, batch.positions)


HAS_TRITON = find_spec("triton") is not None  # it comes with torch for CUDA on Linux, not on all systems


def attention_weights(q_LHK: Tensor, k_LHK: Tensor, window: AttentionWindow) -> Tensor:
    """H L L: softmax(q . k / sqrt(K)) of one sequence. Fused kernels do not return these."""
    scores = torch.einsum("qhk,shk->hqs", q_LHK, k_LHK) / math.sqrt(q_LHK.shape[-1])
    mask_LL = window.mask(len(q_LHK), q_LHK.device)
    if mask_LL is not None:
        scores = scores.masked_fill(~mask_LL, float("-inf"))
    return scores.softmax(dim=-1)


def eager(q: Tensor, k: Tensor, v: Tensor, batch: Batch, window: AttentionWindow, dropout: float = 0.0) -> Tensor:
    """The formula, sequence by sequence: weights @ values. Slow; all others are tested against it."""
    mixed = []
    for q_LHK, k_LHK, v_LHK in zip(*map(batch.split, (q, k, v)), strict=True):
        weights = F.dropout(attention_weights(q_LHK, k_LHK, window), dropout)
        mixed.append(torch.einsum("hqs,shk->qhk", weights, v_LHK))
    return torch.cat(mixed)


def grouped(q: Tensor, k: Tensor, v: Tensor, batch: Batch, window: AttentionWindow, dropout: float = 0.0) -> Tensor:
    """One fused call for each run of neighboring sequences of equal length, which need no padding."""
    return _grouped(torch.stack((q, k, v), dim=1), batch, window, dropout)


def padded(q: Tensor, k: Tensor, v: Tensor, batch: Batch, window: AttentionWindow, dropout: float = 0.0) -> Tensor:
    """One fused call over the padded view. No row is fully masked: a query of padding sees the first token."""
    return _padded(torch.stack((q, k, v), dim=1), batch, window, dropout)


def varlen(q: Tensor, k: Tensor, v: Tensor, batch: Batch, window: AttentionWindow, dropout: float = 0.0) -> Tensor:
    """Torch's variable-length flash attention: CUDA, half precision, no dropout."""
    from torch.nn.attention.varlen import varlen_attn

    radius = -1 if window.radius is None else window.radius
    sides = (radius, 0 if window.causal else radius)
    offsets, longest = batch.offsets, batch.longest
    mixed = varlen_attn(q, k, v, offsets, offsets, longest, longest, window_size=sides)
    assert isinstance(mixed, Tensor)  # a pair only if auxiliary output is requested
    return mixed


def fused(q: Tensor, k: Tensor, v: Tensor, batch: Batch, window: AttentionWindow, dropout: float = 0.0) -> Tensor:
    """A CUDA kernel in Triton (`triton_kernels.attention`): half precision; without gradients float32, too."""
    return _fused(torch.stack((q, k, v), dim=1), batch, window, dropout)


KERNELS = {"eager": eager, "grouped": grouped, "padded": padded, "varlen": varlen, "fused": fused}


def attend(qkv_T3HK: Tensor, batch: Batch, window: AttentionWindow, dropout: float = 0.0) -> Tensor:
    """T 3 H K -> T H K, by the fastest kernel for these tensors."""
    if not qkv_T3HK.is_cuda:
        return (_padded if batch.fixed else _grouped)(qkv_T3HK, batch, window, dropout)
    if fused_supports(qkv_T3HK):
        return _fused(qkv_T3HK, batch, window, dropout)
    if not dropout and varlen_supports(qkv_T3HK):
        q, k, v = qkv_T3HK.unbind(dim=1)
        return varlen(q, k, v, batch, window)
    # One call instead of one for each length, unless most of it would be padding (and its N L L mask large).
    if batch.fixed or 0 < batch.padding < 0.5:
        return _padded(qkv_T3HK, batch, window, dropout)
    return _grouped(qkv_T3HK, batch, window, dropout)


def bias_gelu(x_TF: Tensor, bias_F: Tensor) -> Tensor:
    """gelu(x + bias) in one kernel; backward, one kernel also sums the bias's gradient. Twin: F.gelu(x + bias)."""
    from bertkit.model.triton_kernels.gelu import bias_gelu as kernel

    activated: Tensor = kernel(x_TF, bias_F)
    return activated


def triton_supports(x: Tensor) -> bool:
    """Whether bertkit's Triton kernels compute this tensor: half precision on CUDA."""
    return HAS_TRITON and _half_on_cuda(x)


def triton_supports_inference(x: Tensor) -> bool:
    """Whether they compute it without gradients: then in float32, too."""
    return (
        HAS_TRITON
        and x.is_cuda
        and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and not torch.is_grad_enabled()
    )


def fused_supports(qkv_T3HK: Tensor) -> bool:
    """Whether `fused` computes these: heads of 16, 32, 64 or 128 dimensions."""
    return qkv_T3HK.shape[-1] in (16, 32, 64, 128) and (
        triton_supports(qkv_T3HK) or triton_supports_inference(qkv_T3HK)
    )


def varlen_supports(x: Tensor) -> bool:
    """Whether `varlen` computes these: half precision, heads of a multiple of 8 dimensions up to 256."""
    return _half_on_cuda(x) and x.shape[-1] % 8 == 0 and x.shape[-1] <= 256


def takes_packed(qkv_T3HK: Tensor) -> bool:
    """Whether a GPU kernel computes these without padding, so that it can be recorded for any mix of lengths."""
    return fused_supports(qkv_T3HK) or varlen_supports(qkv_T3HK)


def _half_on_cuda(x: Tensor) -> bool:
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16)


def _grouped(qkv_T3HK: Tensor, batch: Batch, window: AttentionWindow, dropout: float) -> Tensor:
    """With few Python operations for each run: on a CPU most runs are one short text, and threads share the GIL."""
    runs, mixed = batch.runs, []
    sizes = [count * length for count, length in runs]
    parts = (qkv_T3HK,) if len(runs) == 1 else qkv_T3HK.split_with_sizes(sizes)
    for (count, length), part in zip(runs, parts, strict=True):
        q_NHLK, k_NHLK, v_NHLK = part.view(count, length, *part.shape[1:]).permute(2, 0, 3, 1, 4).unbind()
        mask_LL = window.mask(length, part.device)
        out = F.scaled_dot_product_attention(q_NHLK, k_NHLK, v_NHLK, attn_mask=mask_LL, dropout_p=dropout)
        mixed.append(out.transpose(1, 2).flatten(0, 1))
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _padded(qkv_T3HK: Tensor, batch: Batch, window: AttentionWindow, dropout: float) -> Tensor:
    q_NHLK, k_NHLK, v_NHLK = batch.pad(qkv_T3HK).permute(2, 0, 3, 1, 4).unbind(0)
    window_LL, mask_N1LL = window.mask(batch.longest, qkv_T3HK.device), batch.pairs
    if window_LL is not None:
        mask_N1LL = mask_N1LL & (window_LL | ~batch.mask[:, None, :, None])
    out = F.scaled_dot_product_attention(q_NHLK, k_NHLK, v_NHLK, attn_mask=mask_N1LL, dropout_p=dropout)
    return batch.unpad(out.transpose(1, 2))


def _fused(qkv_T3HK: Tensor, batch: Batch, window: AttentionWindow, dropout: float) -> Tensor:
    from bertkit.model.triton_kernels.attention import attention

    offsets, radius = batch.offsets, -1 if window.radius is None else window.radius
    seeds = torch.randint(1 << 31, (1,), device=offsets.device) if dropout else offsets  # not read without dropout
    qkv = qkv_T3HK.contiguous()
    mixed: Tensor = attention(qkv, offsets, seeds, batch.longest, radius, window.causal, dropout)[0]
    return mixed
