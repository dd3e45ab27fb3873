"""One vector for each sequence, out of the vectors of its tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.settings import pick


@dataclass(frozen=True, kw_only=True)
class EmbedSettings:
    """How a text becomes one vector."""

    pooling: str = "mean"  # cls, first, last, mean, max, mean-max, none
    layers: tuple[int, ...] = (-1,)  # concatenated; -1 is the last, 0 the embeddings
    normalize: bool = False  # to length 1
    prefix: str = ""  # put before every text, as some sentence models ask for

    def __post_init__(self) -> None:
        right = isinstance(self.pooling, str) and isinstance(self.prefix, str) and isinstance(self.normalize, bool)
        if not right or not all(isinstance(layer, int) for layer in self.layers):
            raise RequestError(f"embedding settings of the wrong kind: {self}")


def first(x_TD: Tensor, batch: Batch) -> Tensor:
    """N D: the first token's vector, [CLS]."""
    return batch.first(x_TD)


def last(x_TD: Tensor, batch: Batch) -> Tensor:
    """N D: the last token's vector, [SEP]."""
    return x_TD[batch.offsets[1:].long() - 1]


def mean(x_TD: Tensor, batch: Batch) -> Tensor:
    """N D: the mean over all tokens, [CLS] and [SEP] among them."""
    return _reduce(x_TD, batch, "mean")


def maximum(x_TD: Tensor, batch: Batch) -> Tensor:
    """N D: the largest value of each column."""
    return _reduce(x_TD, batch, "max")


def mean_max(x_TD: Tensor, batch: Batch) -> Tensor:
    """N 2D: mean and maximum, side by side."""
    return torch.cat((mean(x_TD, batch), maximum(x_TD, batch)), dim=-1)


Pooling = Literal["cls", "first", "last", "mean", "max", "mean-max"]
POOLINGS: dict[Pooling, Callable[[Tensor, Batch], Tensor]] = {
    "cls": first,
    "first": first,
    "last": last,
    "mean": mean,
    "max": maximum,
    "mean-max": mean_max,
}

NAMES: dict[str, Pooling] = {name: name for name in POOLINGS}


def pool(x_TD: Tensor, batch: Batch, how: str) -> Tensor:
    """N D (or N 2D): each sequence pooled as `how` says."""
    return POOLINGS[pick(NAMES, how, "pooling")](x_TD, batch)


def attentive(x_TD: Tensor, scores_T: Tensor, batch: Batch) -> Tensor:
    """N D: each sequence's mean of vectors, weighted by the softmax of its tokens' scores."""
    weights_NL = batch.pad(scores_T.float(), fill=float("-inf")).softmax(dim=1)
    return _reduce(batch.unpad(weights_NL)[:, None] * x_TD.float(), batch, "sum").to(x_TD.dtype)


def _reduce(x_TD: Tensor, batch: Batch, how: str) -> Tensor:
    """In float32: a mean of 512 bfloat16 numbers, added up as bfloat16, would be a third off."""
    if len(batch.lengths) == 1 and not batch.fixed and how == "mean":  # a query's: half the time of what follows
        return x_TD.float().mean(dim=0, keepdim=True).to(x_TD.dtype)
    # Unsafe: lengths are not checked once more, for which a GPU would be waited for.
    return torch.segment_reduce(x_TD.float(), how, lengths=batch.offsets.diff(), unsafe=True).to(x_TD.dtype)
