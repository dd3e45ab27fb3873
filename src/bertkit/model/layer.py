"""One layer: attention, then feed-forward, each added to its input. The norm is after (post-norm) or before.

Layers do no arithmetic of their own: they call the operations of an engine (`operations.py`).
"""

from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.model.batch import Batch
from bertkit.model.feed_forward import FEED_FORWARDS, FeedForward
from bertkit.model.operations import TORCH, Operations
from bertkit.model.self_attention import SelfAttention
from bertkit.settings import pick


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
        """What the attention of this layer reads: the layer's input as it is."""
        return x_TD

    def forward(self, x_TD: Tensor, batch: Batch, ops: Operations = TORCH) -> Tensor:
        """T D -> T D."""
        dropout = self.dropout
        x_TD = ops.add_norm(x_TD, self.attention(x_TD, batch, ops), dropout, self.attention_norm)
        return ops.add_norm(x_TD, self.feed_forward(x_TD, ops), dropout, self.feed_forward_norm)


class PreNormLayer(nn.Module):
    """ModernBERT's order: x + dropout(sublayer(norm(x))); the first layer's attention has the embeddings' norm."""

    def __init__(self, config: BertConfig, index: int) -> None:
        super().__init__()
        self.attention_norm = _norm(config) if index else nn.Identity()
        self.attention = SelfAttention(config, index)
        self.feed_forward_norm = _norm(config)
        self.feed_forward = pick(FEED_FORWARDS, config.parts.feed_forward, "feed_forward")(config)
        self.dropout = nn.Dropout(config.dropout)

    def attention_input(self, x_TD: Tensor) -> Tensor:
        """What the attention of this layer reads: the layer's input, normalized."""
        normalized: Tensor = self.attention_norm(x_TD)
        return normalized

    def forward(self, x_TD: Tensor, batch: Batch, ops: Operations = TORCH) -> Tensor:
        """T D -> T D."""
        dropout = self.dropout
        x_TD = ops.add(x_TD, self.attention(ops.norm(self.attention_norm, x_TD), batch, ops), dropout)
        return ops.add(x_TD, self.feed_forward(ops.norm(self.feed_forward_norm, x_TD), ops), dropout)


LAYERS: dict[str, type[PostNormLayer] | type[PreNormLayer]] = {"post": PostNormLayer, "pre": PreNormLayer}


def is_plain(layer: nn.Module) -> bool:
    """Whether this is BERT's own: post-norm, its attention, an ungated feed-forward, and biases everywhere."""
    if not isinstance(layer, PostNormLayer) or type(layer.feed_forward) is not FeedForward:
        return False
    if type(layer.attention) is not SelfAttention:
        return False
    attention, feed_forward = layer.attention, layer.feed_forward
    return all(each.bias is not None for each in (attention.qkv, attention.out, feed_forward.up, feed_forward.down))


def _norm(config: BertConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.width, eps=config.norm_epsilon, bias=config.parts.bias)
