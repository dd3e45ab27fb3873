"""The loss where every row has choices of its own: the tokens of a window, the answers to a question."""

from torch import Tensor


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
