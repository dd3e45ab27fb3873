"""One layer: self-attention, then feed-forward, each added to its input. The norm is after (post-norm) or before.

A decoder's layer attends to the encoder's output between the two (cross-attention). Layers do no arithmetic of their
own: they call the operations of an engine (`operations.py`).
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.model.attention import AttentionPattern, AttentionWindow, Rotation
from bertkit.model.batch import Batch
from bertkit.model.embeddings import DistanceTable
from bertkit.model.operations import TORCH, Activation, Operations, Output, Source
from bertkit.settings import pick

if TYPE_CHECKING:
    from bertkit.model.relative import RelativePositions


class SelfAttention(nn.Module):
    """Multi-head self-attention; `project` returns queries, keys and values, `weights` the softmax matrices.

    `distance` is the table of relative positions, if the family has one for all layers.
    """

    def __init__(self, config: BertConfig, index: int, distance: DistanceTable | None = None) -> None:
        super().__init__()
        parts = config.parts
        bias = parts.bias and parts.attention_bias
        local = parts.window is not None and index % parts.global_every != 0
        radius = parts.window // 2 if local and parts.window is not None else None
        self.heads = config.heads
        self.window = AttentionWindow(radius, parts.causal)
        rotation = Rotation(parts.local_theta if local else parts.theta) if parts.position == "rotary" else None
        self.pattern = AttentionPattern(config.heads, self.window, rotation)
        self.relative: RelativePositions | None = None
        if config.parts.relative != "none":
            from bertkit.model.relative import relative_positions

            self.relative = relative_positions(config, distance)
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=bias)
        self.out = nn.Linear(config.width, config.width, bias=bias)
        self.dropout = config.attention_dropout

    def forward(self, x_TD: Tensor, batch: Batch, ops: Operations = TORCH) -> Output:
        """T D."""
        dropout = self.dropout if self.training else 0.0
        mixed_TD = ops.attend(ops.project(self.qkv, x_TD), batch, self.pattern_of(batch), dropout)
        return ops.output(self.out, mixed_TD)

    def pattern_of(self, batch: Batch) -> AttentionPattern:
        """The pattern, with the bias of relative positions for sequences of these lengths."""
        if self.relative is None:
            return self.pattern
        return replace(self.pattern, bias=self.relative(self.qkv, batch.longest))

    def project(self, x_TD: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, T H K each; queries and keys rotated where the family rotates."""
        q, k, v = self.pattern.split(self.qkv(x_TD), batch).unbind(dim=1)
        return q, k, v

    def weights(self, x_TD: Tensor, batch: Batch) -> list[Tensor]:
        """H L L for each sequence, which fused kernels do not return. Slow; for looking inside."""
        q, k, _ = self.project(x_TD, batch)
        pattern, sequences = self.pattern_of(batch), map(batch.split, (q, k, batch.segments))
        return [pattern.weights(*sequence) for sequence in zip(*sequences, strict=True)]


class CrossAttention(nn.Module):
    """Multi-head attention whose keys and values come from another sequence: the encoder's output."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query = nn.Linear(config.width, config.width, bias=config.parts.bias)
        self.key_value = nn.Linear(config.width, 2 * config.width, bias=config.parts.bias)
        self.out = nn.Linear(config.width, config.width, bias=config.parts.bias)
        self.dropout = config.attention_dropout

    def forward(self, x_TD: Tensor, batch: Batch, source: Source, ops: Operations = TORCH) -> Output:
        """T D."""
        dropout = self.dropout if self.training else 0.0
        query_TD, key_value_SX = ops.project(self.query, x_TD), ops.project_source(self.key_value, source)
        mixed_TD = ops.attend_source(query_TD, key_value_SX, batch, source.batch, self.heads, dropout)
        return ops.output(self.out, mixed_TD)


ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class FeedForward(nn.Module):
    """Linear to `inner`, activation, linear back: BERT's with GELU, the Transformer's with ReLU."""

    widths_up = 1  # outputs of the first linear layer, in multiples of `inner`

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, self.widths_up * config.inner, bias=config.parts.bias)
        self.activation = pick(ACTIVATIONS, config.parts.activation, "activation")
        self.down = nn.Linear(config.inner, config.width, bias=config.parts.bias)

    def forward(self, x_TD: Tensor, ops: Operations = TORCH) -> Output:
        """T D."""
        return ops.output(self.down, ops.activate(self.up, self.activation, x_TD))


class GatedFeedForward(FeedForward):
    """ModernBERT's: the activation of one half of `up` is multiplied by the other half."""

    widths_up = 2

    def forward(self, x_TD: Tensor, ops: Operations = TORCH) -> Output:
        """T D."""
        return ops.output(self.down, ops.gate(self.up, self.activation, x_TD))


FEED_FORWARDS: dict[str, type[FeedForward]] = {"plain": FeedForward, "gated": GatedFeedForward}


class PostNormLayer(nn.Module):
    """BERT's order: norm(x + dropout(sublayer(x)))."""

    def __init__(
        self, config: BertConfig, index: int, distance: DistanceTable | None = None, *, cross: bool = False
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(config, index, distance)
        self.attention_norm = _norm(config)
        self.cross_attention = CrossAttention(config) if cross else None
        self.cross_attention_norm = _norm(config) if cross else None
        self.feed_forward = pick(FEED_FORWARDS, config.parts.feed_forward, "feed_forward")(config)
        self.feed_forward_norm = _norm(config)
        self.dropout = nn.Dropout(config.dropout)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the layer computes in."""
        return self.attention.out.weight.dtype

    def attention_input(self, x_TD: Tensor) -> Tensor:
        """The input of this layer's attention: the layer's input itself."""
        return x_TD

    def forward(self, x_TD: Tensor, batch: Batch, ops: Operations = TORCH, source: Source | None = None) -> Tensor:
        """T D -> T D; `source` is what a decoder's layer attends to."""
        dropout = self.dropout
        x_TD = ops.add_norm(x_TD, self.attention(x_TD, batch, ops), dropout, self.attention_norm)
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            crossed = self.cross_attention(x_TD, batch, source, ops)
            x_TD = ops.add_norm(x_TD, crossed, dropout, self.cross_attention_norm)
        return ops.add_norm(x_TD, self.feed_forward(x_TD, ops), dropout, self.feed_forward_norm)


class PreNormLayer(nn.Module):
    """GPT-2's and ModernBERT's order: x + dropout(sublayer(norm(x))).

    Where the embeddings have a norm, the first layer's attention has none.
    """

    def __init__(
        self, config: BertConfig, index: int, distance: DistanceTable | None = None, *, cross: bool = False
    ) -> None:
        super().__init__()
        self.attention_norm = _norm(config) if index or not config.parts.embedding_norm else nn.Identity()
        self.attention = SelfAttention(config, index, distance)
        self.cross_attention_norm = _norm(config) if cross else None
        self.cross_attention = CrossAttention(config) if cross else None
        self.feed_forward_norm = _norm(config)
        self.feed_forward = pick(FEED_FORWARDS, config.parts.feed_forward, "feed_forward")(config)
        self.dropout = nn.Dropout(config.dropout)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the layer computes in."""
        return self.attention.out.weight.dtype

    def attention_input(self, x_TD: Tensor) -> Tensor:
        """The input of this layer's attention: the layer's input, normalized."""
        normalized: Tensor = self.attention_norm(x_TD)
        return normalized

    def forward(self, x_TD: Tensor, batch: Batch, ops: Operations = TORCH, source: Source | None = None) -> Tensor:
        """T D -> T D; `source` is what a decoder's layer attends to."""
        dropout = self.dropout
        x_TD = ops.add(x_TD, self.attention(ops.norm(self.attention_norm, x_TD), batch, ops), dropout)
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            crossed = self.cross_attention(ops.norm(self.cross_attention_norm, x_TD), batch, source, ops)
            x_TD = ops.add(x_TD, crossed, dropout)
        return ops.add(x_TD, self.feed_forward(ops.norm(self.feed_forward_norm, x_TD), ops), dropout)


AttentionLayer = PostNormLayer | PreNormLayer
LAYERS: dict[str, type[PostNormLayer] | type[PreNormLayer]] = {"post": PostNormLayer, "pre": PreNormLayer}


def is_plain(layer: nn.Module) -> bool:
    """Whether this is BERT's layer: post-norm, plain attention and feed-forward, biases everywhere."""
    if not isinstance(layer, PostNormLayer) or type(layer.feed_forward) is not FeedForward:
        return False
    if type(layer.attention) is not SelfAttention:
        return False
    linears = [module for module in layer.modules() if isinstance(module, nn.Linear)]
    return all(linear.bias is not None for linear in linears)


def _norm(config: BertConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.width, eps=config.norm_epsilon, bias=config.parts.bias)
