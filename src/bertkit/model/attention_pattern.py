"""What an attention layer looks at: how many heads, which tokens each token may see, and rotary positions."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bertkit.model.batch import Batch


@dataclass(frozen=True)
class AttentionWindow:
    """What a token may see: everything in its sequence, at most `radius` positions away, or only backwards."""

    radius: int | None = None
    causal: bool = False

    def mask(self, length: int, device: torch.device) -> Tensor | None:
        """L L bool, True where the row's token sees the column's; None when it sees everything."""
        radius = length if self.radius is None else self.radius
        if radius >= length - 1 and not self.causal:
            return None
        place = torch.arange(length, device=device)
        ahead = place[None, :] - place[:, None]
        return (ahead.abs() <= radius) & (ahead <= (0 if self.causal else length))


@dataclass(frozen=True)
class Rotation:
    """Rotary positions: each pair of dimensions turns by an angle that grows with the token's position."""

    theta: float

    def __call__(self, qkv_T3HK: Tensor, positions_T: Tensor) -> Tensor:
        """T 3 H K with queries and keys rotated: dimension i together with dimension i + K/2."""
        half = qkv_T3HK.shape[-1] // 2
        exponents = torch.arange(half, device=qkv_T3HK.device, dtype=torch.float32) / half
        angles = positions_T[:, None, None, None].float() * (1.0 / self.theta**exponents)
        cos, sin = angles.cos(), angles.sin()
        one, two = qkv_T3HK[:, :2].float().chunk(2, dim=-1)
        turned = torch.cat((one * cos - two * sin, two * cos + one * sin), dim=-1).to(qkv_T3HK.dtype)
        return torch.cat((turned, qkv_T3HK[:, 2:]), dim=1)


@dataclass(frozen=True)
class AttentionPattern:
    """All that attention needs besides queries, keys and values; the operation `attend` reads it."""

    heads: int
    window: AttentionWindow
    rotation: Rotation | None = None  # None: positions were added to the embeddings

    def split(self, qkv_TX: Tensor, batch: Batch) -> Tensor:
        """T 3D -> T 3 H K: queries, keys and values by head; queries and keys rotated where the family rotates."""
        qkv_T3HK = qkv_TX.view(qkv_TX.shape[0], 3, self.heads, -1)
        return qkv_T3HK if self.rotation is None else self.rotation(qkv_T3HK, batch.positions)
