"""One layer: self-attention, then feed-forward, each added to its input. The norm is after (post-norm) or before.

Layers do no arithmetic of their own: they call the operations of an engine (`operations.py`).
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.model.attention import AttentionPattern, AttentionWindow, Rotation, attention_weights
from bertkit.model.batch import Batch
from bertkit.model.operations import TORCH, Activation, Operations, Output
from bertkit.settings import pick


class SelfAttention(nn.Module):
    """Multi-head self-attention; `project` returns queries, keys and values, `weights` the softmax matrices."""

    def __init__(self, config: BertConfig, index: int) -> None:
        super().__init__()
        parts = config.parts
        local = parts.window is not None and index % parts.global_every != 0
        radius = parts.window // 2 if local and parts.window is not None else None
        self.heads = config.heads
        self.window = AttentionWindow(radius, parts.causal)
        rotation = Rotation(parts.local_theta if local else parts.theta) if parts.position == "rotary" else None
        self.pattern = AttentionPattern(config.heads, self.window, rotation)
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=parts.bias)
        self.out = nn.Linear(config.width, config.width, bias=parts.bias)
        self.dropout = config.attention_dropout

    def forward(self, x_TD: Tensor, batch: Batch, ops: Operations = TORCH) -> Output:
        """T D."""
        dropout = self.dropout if self.training else 0.0
        mixed_TD = ops.attend(ops.project(self.qkv, x_TD), batch, self.pattern, dropout)
        return ops.output(self.out, mixed_TD)

    def project(self, x_TD: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, T H K each; queries and keys rotated where the family rotates."""
        q, k, v = self.pattern.split(self.qkv(x_TD), batch).unbind(dim=1)
        return q, k, v

    def weights(self, x_TD: Tensor, batch: Batch) -> list[Tensor]:
        """H L L for each sequence, which fused kernels do not return. Slow; for looking inside."""
        q, k, _ = self.project(x_TD, batch)
        pairs = zip(batch.split(q), batch.split(k), strict=True)
        return [attention_weights(q_LHK, k_LHK, self.window) for q_LHK, k_LHK in pairs]


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

    def __init__(self, config: BertConfig, index: int) -> None:
        super().__init__()
        self.attention = SelfAttention(config, index)
        self.attention_norm = _norm(config)
        self.feed_forward = pick(FEED_FORWARDS, config.parts.feed_forward, "feed_forward")(config)
        self.feed_forward_norm = _norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def attention_input(self, x_TD: Tensor) -> Tensor:
        """The input of this layer's attention: the layer's input itself."""
        return x_TD

    def forward(self, x_TD: Tensor, batch: Batch, ops: Operations = TORCH) -> Tensor:
        """T D -> T D."""
        dropout = self.dropout
        x_TD = ops.add_norm(x_TD, self.attention(x_TD, batch, ops), dropout, self.attention_norm)
        return ops.add_norm(x_TD, self.feed_forward(x_TD, ops), dropout, self.feed_forward_norm)


class PreNormLayer(nn.Module):
    """ModernBERT's order: x + dropout(sublayer(norm(x))); the first layer's attention follows the embeddings' norm."""

    def __init__(self, config: BertConfig, index: int) -> None:
        super().__init__()
        self.attention_norm = _norm(config) if index else nn.Identity()
        self.attention = SelfAttention(config, index)
        self.feed_forward_norm = _norm(config)
        self.feed_forward = pick(FEED_FORWARDS, config.parts.feed_forward, "feed_forward")(config)
        self.dropout = nn.Dropout(config.dropout)

    def attention_input(self, x_TD: Tensor) -> Tensor:
        """The input of this layer's attention: the layer's input, normalized."""
        normalized: Tensor = self.attention_norm(x_TD)
        return normalized

    def forward(self, x_TD: Tensor, batch: Batch, ops: Operations = TORCH) -> Tensor:
        """T D -> T D."""
        dropout = self.dropout
        x_TD = ops.add(x_TD, self.attention(ops.norm(self.attention_norm, x_TD), batch, ops), dropout)
        return ops.add(x_TD, self.feed_forward(ops.norm(self.feed_forward_norm, x_TD), ops), dropout)


LAYERS: dict[str, type[PostNormLayer] | type[PreNormLayer]] = {"post": PostNormLayer, "pre": PreNormLayer}


def is_plain(layer: nn.Module) -> bool:
    """Whether this is BERT's layer: post-norm, plain attention and feed-forward, biases everywhere."""
    if not isinstance(layer, PostNormLayer) or type(layer.feed_forward) is not FeedForward:
        return False
    if type(layer.attention) is not SelfAttention:
        return False
    attention, feed_forward = layer.attention, layer.feed_forward
    linears = (attention.qkv, attention.out, feed_forward.up, feed_forward.down)
    return all(linear.bias is not None for linear in linears)


def _norm(config: BertConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.width, eps=config.norm_epsilon, bias=config.parts.bias)
