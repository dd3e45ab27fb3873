"""Losses that several tasks share: over choices of each row's own, and between a student and its teacher."""

import torch.nn.functional as F
from torch import Tensor

LOWEST = -1e4  # for what is not offered: a probability of 0 without 0 times infinity


def choice_loss(logits_NC: Tensor, target_N: Tensor, smoothing: float = 0.0) -> Tensor:
    """Sum of cross entropies over rows whose missing choices are -inf; smoothing spreads over those that exist."""
    return choice_losses(logits_NC, target_N, smoothing).sum()


def choice_losses(logits_NC: Tensor, target_N: Tensor, smoothing: float = 0.0) -> Tensor:
    """The same row by row: N."""
    logs = logits_NC.log_softmax(dim=-1)
    losses = -logs.gather(1, target_N[:, None]).squeeze(1)
    if not smoothing:
        return losses
    there = logits_NC.isfinite()
    even = -(logs.masked_fill(~there, 0).sum(dim=-1) / there.sum(dim=-1))
    return (1 - smoothing) * losses + smoothing * even


def divergence(logits: Tensor, theirs: Tensor, temperature: float) -> Tensor:
    """Sum of Kullback-Leibler divergences over rows of exclusive labels; times T^2, as Hinton has it."""
    ours, wanted = ((each / temperature).log_softmax(-1) for each in (logits, theirs))
    return F.kl_div(ours, wanted, reduction="sum", log_target=True) * temperature**2
