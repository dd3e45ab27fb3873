"""What the vocabulary's logits are used for in training: the loss of the right word, and a word drawn by chance.

Rows may be longer than the vocabulary (`size`), as `MaskedWordHead.aligned` gives them: what is behind counts nowhere.
On CUDA in half precision each is one pass (`triton_kernels.words`); the plain functions here are its twins.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.model.attention import triton_can

IGNORE = -100  # target of a slot that only fills a fixed shape


def word_losses(logits_MV: Tensor, targets_M: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """(M losses, M right or not, M logs of the sum of exp where they are known); IGNORE has loss 0 and is not right."""
    if not triton_can(logits_MV):
        return *plain_losses(logits_MV[:, :size], targets_M), None
    from bertkit.model.triton_kernels.words import word_loss

    losses, logs, right = word_loss(logits_MV, targets_M, size)
    return losses, right, logs


def plain_losses(logits_MV: Tensor, targets_M: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy in float32, and whether no other class beats the right one."""
    losses = F.cross_entropy(logits_MV.float(), targets_M, ignore_index=IGNORE, reduction="none")
    own = logits_MV.detach().gather(-1, targets_M.clamp(min=0)[:, None]).squeeze(-1)
    return losses, (own >= logits_MV.detach().amax(dim=-1)) & (targets_M != IGNORE)


def sampled_words(logits_MV: Tensor, logs_M: Tensor | None, size: int) -> Tensor:
    """M: one id from each row's softmax, by one random number for a row and the running sum of its probabilities.

    Gumbel's noise would take a random number for each of 30,000 logits.
    """
    places = torch.rand(len(logits_MV), device=logits_MV.device)
    if logs_M is None or not triton_can(logits_MV):
        return plain_sample(logits_MV[:, :size], places)
    from bertkit.model.triton_kernels.words import word_sample

    ids: Tensor = word_sample(logits_MV, logs_M, places, size)
    return ids


def plain_sample(logits_MV: Tensor, places_M: Tensor) -> Tensor:
    """The first id whose running sum passes the row's place in [0, 1)."""
    sums = logits_MV.float().softmax(dim=-1).cumsum(dim=-1)
    found = (sums <= places_M[:, None] * sums[:, -1:]).sum(dim=-1)
    # Rounding may lead behind the last id that has any weight: then that one is meant.
    return torch.minimum(found, (sums < sums[:, -1:]).sum(dim=-1))
