"""Every token asks (query), offers (key) and carries (value); the answer is a weighted mean of values."""

from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.model.attention_pattern import AttentionPattern, AttentionWindow, Rotation
from bertkit.model.batch import Batch
from bertkit.model.kernels import attention_weights
from bertkit.model.operations import TORCH, Operations, Output


class SelfAttention(nn.Module):
    """Multi-head self-attention; `project` gives queries, keys and values, `weights` the softmax matrices."""

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
        """H L L for each sequence: what the fused kernels never show. Slow; for looking inside."""
        q, k, _ = self.project(x_TD, batch)
        pairs = zip(batch.split(q), batch.split(k), strict=True)
        return [attention_weights(q_LHK, k_LHK, self.window) for q_LHK, k_LHK in pairs]
