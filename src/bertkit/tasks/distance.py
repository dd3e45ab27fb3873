"""Divergence between a student's and a teacher's probabilities, for distillation."""

import torch.nn.functional as F
from torch import Tensor

LOWEST = -1e4  # for what is not offered: a probability of 0 without 0 times infinity


def divergence(logits: Tensor, theirs: Tensor, temperature: float) -> Tensor:
    """Sum of Kullback-Leibler divergences over rows of exclusive labels; times T^2, as Hinton has it."""
    ours, wanted = ((each / temperature).log_softmax(-1) for each in (logits, theirs))
    return F.kl_div(ours, wanted, reduction="sum", log_target=True) * temperature**2
