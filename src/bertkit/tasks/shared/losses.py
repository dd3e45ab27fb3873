"""Losses that several tasks share: cross-entropy over a varying number of choices, and distillation."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

MASKED_LOGIT = -1e4  # of padding: a probability of 0, without 0 * infinity in a divergence


def choice_loss(logits_NC: Tensor, target_N: Tensor, smoothing: float = 0.0) -> Tensor:
    """Sum of cross-entropies over rows in which padded choices are -inf; smoothing is over the real choices."""
    return choice_losses(logits_NC, target_N, smoothing).sum()


def choice_losses(logits_NC: Tensor, target_N: Tensor, smoothing: float = 0.0) -> Tensor:
    """As `choice_loss`, for each row: N."""
    log_probabilities = logits_NC.log_softmax(dim=-1)
    losses = -log_probabilities.gather(1, target_N[:, None]).squeeze(1)
    if not smoothing:
        return losses
    is_choice = logits_NC.isfinite()
    uniform = -(log_probabilities.masked_fill(~is_choice, 0).sum(dim=-1) / is_choice.sum(dim=-1))
    return (1 - smoothing) * losses + smoothing * uniform


def weighted_cross_entropy(logits: Tensor, targets: Sequence[Tensor], smoothing: float) -> Tensor:
    """Sum of the cross-entropies of rows; `targets` are their label ids and weights."""
    gold, row_weights = targets
    return (F.cross_entropy(logits, gold, reduction="none", label_smoothing=smoothing) * row_weights).sum()


def divergence(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """Sum of the KL divergences of rows of exclusive labels, times temperature^2 (Hinton et al. 2015)."""
    student, teacher = ((rows / temperature).log_softmax(-1) for rows in (logits, teacher_logits))
    return F.kl_div(student, teacher, reduction="sum", log_target=True) * temperature**2
