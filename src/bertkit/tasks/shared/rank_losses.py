"""Losses of rankings: the scores of the texts of several queries against their relevance.

All arguments are N C: a row for each query, padded to the most texts; `real` is False at padding. A loss is one number
for each query: over its texts a sum for the losses that read each text by itself, over its pairs of texts a mean.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.tasks.shared.losses import MASKED_LOGIT


def binary_losses(scores: Tensor, relevance: Tensor, real: Tensor) -> Tensor:
    """Binary cross-entropy; relevance is a probability."""
    return (F.binary_cross_entropy_with_logits(scores, relevance, reduction="none") * real).sum(dim=1)


def squared_losses(scores: Tensor, relevance: Tensor, real: Tensor) -> Tensor:
    """Squared error."""
    return ((scores - relevance).square() * real).sum(dim=1)


def pairwise_losses(scores: Tensor, relevance: Tensor, real: Tensor) -> Tensor:
    """RankNet (Burges et al. 2005): -log of the probability that the more relevant text of a pair has more score."""
    return _mean_over(_pairs(relevance, real), F.softplus(-_differences(scores)))


def margin_losses(scores: Tensor, relevance: Tensor, real: Tensor) -> Tensor:
    """MarginMSE (Hofstätter et al. 2020): squared error of the differences; relevance are a teacher's scores."""
    return _mean_over(_pairs(relevance, real), (_differences(scores) - _differences(relevance)).square())


def listwise_losses(scores: Tensor, relevance: Tensor, real: Tensor) -> Tensor:
    """Cross-entropy of a softmax over the texts; a text's share is its relevance above that of the least relevant."""
    above = (relevance - _lowest(relevance, real)) * real
    shares = above / above.sum(dim=1, keepdim=True).clamp_min(torch.finfo(above.dtype).tiny)
    return -(shares * scores.masked_fill(~real, MASKED_LOGIT).log_softmax(dim=1)).sum(dim=1)


def lambda_losses(scores: Tensor, relevance: Tensor, real: Tensor) -> Tensor:
    """LambdaRank (Burges 2010): RankNet's, each pair weighted by what swapping it changes in nDCG."""
    gains = (relevance - _lowest(relevance, real)) * real
    ranks = scores.detach().masked_fill(~real, -torch.inf).argsort(dim=1, descending=True).argsort(dim=1)
    discounts = 1 / torch.log2(ranks + 2.0)
    places = torch.arange(scores.shape[1], device=scores.device)
    ideal = (gains.sort(dim=1, descending=True).values / torch.log2(places + 2.0)).sum(dim=1)
    weights = (_differences(gains) * _differences(discounts)).abs() / ideal.clamp_min(1e-6)[:, None, None]
    return (F.softplus(-_differences(scores)) * weights * _pairs(relevance, real)).sum(dim=(1, 2))


def _lowest(relevance: Tensor, real: Tensor) -> Tensor:
    """N 1: the relevance of the least relevant text."""
    return relevance.masked_fill(~real, torch.inf).amin(dim=1, keepdim=True).nan_to_num(posinf=0.0)


def _differences(values_NC: Tensor) -> Tensor:
    """N C C: the value of a text minus that of another."""
    return values_NC[:, :, None] - values_NC[:, None, :]


def _pairs(relevance: Tensor, real: Tensor) -> Tensor:
    """N C C: whether both are texts, and the first is more relevant."""
    return (_differences(relevance) > 0) & real[:, :, None] & real[:, None, :]


def _mean_over(pairs_NCC: Tensor, losses_NCC: Tensor) -> Tensor:
    return (losses_NCC * pairs_NCC).sum(dim=(1, 2)) / pairs_NCC.sum(dim=(1, 2)).clamp_min(1)
