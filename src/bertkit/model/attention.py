"""Attention: which tokens each token sees, rotary positions, and five kernels for the weighted mean of the values.

All kernels take and return packed tensors (T H K) and agree to rounding; `tests/model/test_kernels.py` compares them.
`eager` is the formula of the paper; the others are faster.
"""

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol

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


CLS_SEGMENT = 2  # of XLNet's [CLS]


@dataclass(frozen=True)
class Places:
    """Where the tokens of N sequences of equal length are: what a bias depends on besides queries and keys."""

    positions: Tensor  # L, or N L where padding may be anywhere
    segments: Tensor  # N L

    @property
    def distance(self) -> Tensor:
        """L L or N L L: the position of the row's token minus that of the column's."""
        return self.positions[..., :, None] - self.positions[..., None, :]

    def with_cls_last(self) -> "Places":
        """The first token, [CLS], after all others and in a segment of its own, as XLNet has it."""
        is_first, end = self.positions == 0, self.positions.amax(dim=-1, keepdim=True) + 1
        return Places(torch.where(is_first, end, self.positions), self.segments.masked_fill(is_first, CLS_SEGMENT))


class ScoreBias(Protocol):
    """What is added to the scores of queries and keys before the softmax, such as relative positions."""

    @property
    def scale(self) -> float:
        """The factor of q . k; without a bias it is 1 / sqrt(K)."""

    @property
    def by_length(self) -> bool:
        """Whether it depends on where a sequence ends: then positions are N L, with 0 for padding."""

    def __call__(self, q_NHLK: Tensor, k_NHLK: Tensor, places: Places) -> Tensor:
        """N H L L, or 1 H L L if it is the same for all sequences."""


@dataclass(frozen=True)
class AttentionPattern:
    """What the operation `attend` needs besides queries, keys and values."""

    heads: int
    window: AttentionWindow
    rotation: Rotation | None = None  # None: positions were added to the embeddings
    bias: ScoreBias | None = None  # of the scores; None: softmax(q . k / sqrt(K))

    def split(self, qkv_TX: Tensor, batch: Batch) -> Tensor:
        """T 3D -> T 3 H K: queries, keys and values by head; queries and keys rotated where the family rotates."""
        qkv_T3HK = qkv_TX.view(qkv_TX.shape[0], 3, self.heads, -1)
        return qkv_T3HK if self.rotation is None else self.rotation(qkv_T3HK, batch.positions)

    def weights(self, q_LHK: Tensor, k_LHK: Tensor, segments_L: Tensor) -> Tensor:
        """H L L: the softmax matrices of one sequence, which fused kernels do not return."""
        return attention_weights(q_LHK, k_LHK, self.window, self.bias, segments_L)


HAS_TRITON = find_spec("triton") is not None  # it comes with torch for CUDA on Linux, not on all systems


def attention_weights(
    q_LHK: Tensor,
    k_LHK: Tensor,
    window: AttentionWindow,
    bias: ScoreBias | None = None,
    segments_L: Tensor | None = None,
) -> Tensor:
    """H L L: softmax(q . k / sqrt(K)) of one sequence, or softmax(scale * q . k + bias(q, k)) with a bias."""
    scale = 1 / math.sqrt(q_LHK.shape[-1]) if bias is None else bias.scale
    scores = torch.einsum("qhk,shk->hqs", q_LHK, k_LHK) * scale
    if bias is not None:
        assert segments_L is not None  # the caller has them with the batch
        scores = scores + _bias_of(bias, q_LHK.transpose(0, 1)[None], k_LHK.transpose(0, 1)[None], segments_L[None])[0]
    mask_LL = window.mask(len(q_LHK), q_LHK.device)
    if mask_LL is not None:
        scores = scores.masked_fill(~mask_LL, float("-inf"))
    return scores.softmax(dim=-1)


def eager(
    qkv_T3HK: Tensor, batch: Batch, window: AttentionWindow, dropout: float = 0.0, bias: ScoreBias | None = None
) -> Tensor:
    """The formula, sequence by sequence: weights @ values. Slow; all others are tested against it."""
    mixed = []
    for qkv_L3HK, segments_L in zip(batch.split(qkv_T3HK), batch.split(batch.segments), strict=True):
        q_LHK, k_LHK, v_LHK = qkv_L3HK.unbind(dim=1)
        weights = F.dropout(attention_weights(q_LHK, k_LHK, window, bias, segments_L), dropout)
        mixed.append(torch.einsum("hqs,shk->qhk", weights, v_LHK))
    return torch.cat(mixed)


def grouped(
    qkv_T3HK: Tensor, batch: Batch, window: AttentionWindow, dropout: float = 0.0, bias: ScoreBias | None = None
) -> Tensor:
    """One fused call for each run of neighboring sequences of equal length, which need no padding.

    With few Python operations for each run: on a CPU most runs are one short text, and threads share the GIL.
    """
    runs, mixed = batch.runs, []
    sizes = [count * length for count, length in runs]
    parts = (qkv_T3HK,) if len(runs) == 1 else qkv_T3HK.split_with_sizes(sizes)
    segments = iter(()) if bias is None else iter(batch.segments.split_with_sizes(sizes))
    for (count, length), part in zip(runs, parts, strict=True):
        q_NHLK, k_NHLK, v_NHLK = part.view(count, length, *part.shape[1:]).permute(2, 0, 3, 1, 4).unbind()
        mask, scale = window.mask(length, part.device), None
        if bias is not None:
            scores = _bias_of(bias, q_NHLK, k_NHLK, next(segments).view(count, length))
            mask, scale = scores if mask is None else scores.masked_fill(~mask, float("-inf")), bias.scale
        out = F.scaled_dot_product_attention(q_NHLK, k_NHLK, v_NHLK, attn_mask=mask, dropout_p=dropout, scale=scale)
        mixed.append(out.transpose(1, 2).flatten(0, 1))
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def padded(
    qkv_T3HK: Tensor,
    batch: Batch,
    window: AttentionWindow,
    dropout: float = 0.0,
    bias: ScoreBias | None = None,
    seen_T: Tensor | None = None,
) -> Tensor:
    """One fused call over the padded view. No row is fully masked: a query of padding sees the first token.

    `seen_T`: the tokens that others see; the first of each sequence must be one of them.
    """
    q_NHLK, k_NHLK, v_NHLK = batch.pad(qkv_T3HK).permute(2, 0, 3, 1, 4).unbind(0)
    window_LL, mask, scale = window.mask(batch.longest, qkv_T3HK.device), batch.pairs, None
    if seen_T is not None:
        mask = mask & batch.pad(seen_T)[:, None, None]
    if window_LL is not None:
        mask = mask & (window_LL | ~batch.mask[:, None, :, None])
    if bias is not None:
        positions = batch.pad(batch.positions) if bias.by_length else None
        scores = _bias_of(bias, q_NHLK, k_NHLK, batch.pad(batch.segments), positions)
        mask, scale = scores.masked_fill(~mask, float("-inf")), bias.scale
    return batch.unpad(_padded_product(q_NHLK, k_NHLK, v_NHLK, mask, dropout, scale).transpose(1, 2))


def varlen(qkv_T3HK: Tensor, batch: Batch, window: AttentionWindow) -> Tensor:
    """Torch's variable-length flash attention: CUDA, half precision, no dropout, no bias."""
    from torch.nn.attention.varlen import varlen_attn

    radius = -1 if window.radius is None else window.radius
    sides = (radius, 0 if window.causal else radius)
    offsets, longest = batch.offsets, batch.longest
    q, k, v = qkv_T3HK.unbind(dim=1)
    mixed = varlen_attn(q, k, v, offsets, offsets, longest, longest, window_size=sides)
    assert isinstance(mixed, Tensor)  # a pair only if auxiliary output is requested
    return mixed


def fused(qkv_T3HK: Tensor, batch: Batch, window: AttentionWindow, dropout: float = 0.0) -> Tensor:
    """A CUDA kernel in Triton (`triton_kernels.attention`): half precision; without gradients float32, too; no bias."""
    from bertkit.model.triton_kernels.attention import attention

    offsets, radius = batch.offsets, -1 if window.radius is None else window.radius
    seeds = torch.randint(1 << 31, (1,), device=offsets.device) if dropout else offsets  # not read without dropout
    qkv = qkv_T3HK.contiguous()
    mixed: Tensor = attention(qkv, offsets, seeds, batch.longest, radius, window.causal, dropout)[0]
    return mixed


KERNELS = {"eager": eager, "grouped": grouped, "padded": padded, "varlen": varlen, "fused": fused}


def attend(
    qkv_T3HK: Tensor, batch: Batch, window: AttentionWindow, dropout: float = 0.0, bias: ScoreBias | None = None
) -> Tensor:
    """T 3 H K -> T H K, by the fastest kernel for these tensors; with a bias, by one that takes it."""
    if not qkv_T3HK.is_cuda:
        return (padded if batch.fixed else grouped)(qkv_T3HK, batch, window, dropout, bias)
    if bias is None and fused_supports(qkv_T3HK):
        return fused(qkv_T3HK, batch, window, dropout)
    if bias is None and not dropout and varlen_supports(qkv_T3HK):
        return varlen(qkv_T3HK, batch, window)
    # One call instead of one for each length, unless most of it would be padding (and its N L L mask large).
    if batch.fixed or 0 < batch.padding < 0.5:
        return padded(qkv_T3HK, batch, window, dropout, bias)
    return grouped(qkv_T3HK, batch, window, dropout, bias)


def attend_source(q_THK: Tensor, kv_S2HK: Tensor, batch: Batch, source: Batch, dropout: float = 0.0) -> Tensor:
    """Cross-attention, T H K: one fused call over the padded views. The twin is `eager_source`."""
    q_NHLK = batch.pad(q_THK).transpose(1, 2)
    k_NHSK, v_NHSK = source.pad(kv_S2HK).permute(2, 0, 3, 1, 4).unbind(0)
    seen_NS = source.mask
    if source.fixed:
        seen_NS = seen_NS | (torch.arange(source.longest, device=q_THK.device) == 0)  # no row is fully masked
    mask = None if not source.fixed and len(source.runs) == 1 else seen_NS[:, None, None]
    return batch.unpad(_padded_product(q_NHLK, k_NHSK, v_NHSK, mask, dropout).transpose(1, 2))


def source_weights(q_LHK: Tensor, k_SHK: Tensor) -> Tensor:
    """H L S: softmax(q . k / sqrt(K)) of one target sequence over one source sequence."""
    scores = torch.einsum("qhk,shk->hqs", q_LHK, k_SHK) / math.sqrt(q_LHK.shape[-1])
    return scores.softmax(dim=-1)


def eager_source(q_THK: Tensor, kv_S2HK: Tensor, batch: Batch, source: Batch, dropout: float = 0.0) -> Tensor:
    """The formula, sequence by sequence. Slow; the twin of `attend_source`."""
    mixed = []
    for q_LHK, kv in zip(batch.split(q_THK), source.split(kv_S2HK), strict=True):
        k_SHK, v_SHK = kv.unbind(dim=1)
        weights = F.dropout(source_weights(q_LHK, k_SHK), dropout)
        mixed.append(torch.einsum("hqs,shk->qhk", weights, v_SHK))
    return torch.cat(mixed)


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


def _bias_of(
    bias: ScoreBias, q_NHLK: Tensor, k_NHLK: Tensor, segments_NL: Tensor, positions: Tensor | None = None
) -> Tensor:
    """N H L L or 1 H L L: the bias for sequences whose tokens are at the positions 0 to L - 1, or at `positions`."""
    if positions is None:
        positions = torch.arange(q_NHLK.shape[2], device=q_NHLK.device)
    return bias(q_NHLK, k_NHLK, Places(positions, segments_NL))


def _padded_product(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, scale: float | None = None
) -> Tensor:
    """Torch's attention, on a GPU without cuDNN's kernel, which makes a slow plan for every new shape."""
    if not q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
