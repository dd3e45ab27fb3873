"""Every token asks (query), offers (key) and carries (value); the answer is a weighted mean of values."""

import torch
from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.model.batch import Batch
from bertkit.model.kernels import Sight, attend, attention_weights


class NoRotation(nn.Module):
    """Positions were added to the input already."""

    def forward(self, qkv_T3HK: Tensor, positions_T: Tensor) -> Tensor:
        """The same tensor."""
        return qkv_T3HK


class Rotation(nn.Module):
    """Rotary positions: each pair of numbers turns by an angle that grows with the token's place."""

    def __init__(self, theta: float) -> None:
        super().__init__()
        self.theta = theta

    def forward(self, qkv_T3HK: Tensor, positions_T: Tensor) -> Tensor:
        """T 3 H K with queries and keys turned: number i together with number i + K/2."""
        half = qkv_T3HK.shape[-1] // 2
        exponents = torch.arange(half, device=qkv_T3HK.device, dtype=torch.float32) / half
        angles = positions_T[:, None, None, None].float() * (1.0 / self.theta**exponents)
        cos, sin = angles.cos(), angles.sin()
        one, two = qkv_T3HK[:, :2].float().chunk(2, dim=-1)
        turned = torch.cat((one * cos - two * sin, two * cos + one * sin), dim=-1).to(qkv_T3HK.dtype)
        return torch.cat((turned, qkv_T3HK[:, 2:]), dim=1)


class SelfAttention(nn.Module):
    """Compute it (`forward`), see it (`weights`), explain it (`project`)."""

    def __init__(self, config: BertConfig, index: int) -> None:
        super().__init__()
        parts = config.parts
        local = parts.window is not None and index % parts.global_every != 0
        self.heads = config.heads
        radius = parts.window // 2 if local and parts.window is not None else None
        self.sight = Sight(radius, parts.causal)  # what a token of this layer may see
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=parts.bias)
        self.out = nn.Linear(config.width, config.width, bias=parts.bias)
        theta = parts.local_theta if local else parts.theta
        self.rotate = Rotation(theta) if parts.position == "rotary" else NoRotation()
        self.dropout = config.attention_dropout

    def projected(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """T 3 H K: queries, keys and values; queries and keys rotated where the family rotates."""
        qkv: Tensor = self.rotate(self.qkv(x_TD).unflatten(-1, (3, self.heads, -1)), batch.positions)
        return qkv

    def project(self, x_TD: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The same apart, each T H K."""
        q, k, v = self.projected(x_TD, batch).unbind(dim=1)
        return q, k, v

    def mix(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """T D: every head's weighted mean of values, side by side."""
        dropout = self.dropout if self.training else 0.0
        return attend(self.projected(x_TD, batch), batch, self.sight, dropout).flatten(1)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """T D."""
        answer: Tensor = self.out(self.mix(x_TD, batch))
        return answer

    def weights(self, x_TD: Tensor, batch: Batch) -> list[Tensor]:
        """H L L for each sequence: what the fused kernel never shows. Slow; for looking inside."""
        q, k, _ = self.project(x_TD, batch)
        pairs = zip(batch.split(q), batch.split(k), strict=True)
        return [attention_weights(q_LHK, k_LHK, self.sight) for q_LHK, k_LHK in pairs]
