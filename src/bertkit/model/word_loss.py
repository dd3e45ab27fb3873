"""Cross-entropy and sampling over the vocabulary's logits, as training needs them.

Rows may be longer than the vocabulary (`size`), as `MaskedWordHead.aligned` returns them: the columns after it are
ignored. On CUDA in half precision each is one kernel (`triton_kernels.words`); the plain functions here are its twins.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.model.attention import triton_supports

IGNORE = -100  # target of a position that has no loss


def word_losses(logits_MV: Tensor, targets_M: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """(M losses, M correct or not, M log-sum-exp or None); a target of IGNORE has loss 0 and is not correct."""
    if not triton_supports(logits_MV):
        return *plain_losses(logits_MV[:, :size], targets_M), None
    from bertkit.model.triton_kernels.words import word_loss

    losses, log_sums, correct = word_loss(logits_MV, targets_M, size)
    return losses, correct, log_sums


def plain_losses(logits_MV: Tensor, targets_M: Tensor) -> tuple[Tensor, Tensor]:
    """(M losses, M correct or not): cross-entropy in float32, and whether no other class has a larger logit."""
    losses = F.cross_entropy(logits_MV.float(), targets_M, ignore_index=IGNORE, reduction="none")
    target_logits = logits_MV.detach().gather(-1, targets_M.clamp(min=0)[:, None]).squeeze(-1)
    return losses, (target_logits >= logits_MV.detach().amax(dim=-1)) & (targets_M != IGNORE)


def sampled_words(logits_MV: Tensor, log_sums_M: Tensor | None, size: int) -> Tensor:
    """M: one id from each row's softmax, by one uniform random number per row and the cumulative probabilities.

    Gumbel noise would need a random number for each of 30,000 logits.
    """
    uniform_M = torch.rand(len(logits_MV), device=logits_MV.device)
    if log_sums_M is None or not triton_supports(logits_MV):
        return plain_sample(logits_MV[:, :size], uniform_M)
    from bertkit.model.triton_kernels.words import word_sample

    ids: Tensor = word_sample(logits_MV, log_sums_M, uniform_M, size)
    return ids


def plain_sample(logits_MV: Tensor, uniform_M: Tensor) -> Tensor:
    """M: the first id whose cumulative probability exceeds the row's number in [0, 1)."""
    sums = logits_MV.float().softmax(dim=-1).cumsum(dim=-1)
    ids = (sums <= uniform_M[:, None] * sums[:, -1:]).sum(dim=-1)
    # Rounding may lead past the last id with a probability over 0: then that id is taken.
    return torch.minimum(ids, (sums < sums[:, -1:]).sum(dim=-1))
