"""What vectors learn from: each other within a batch, a teacher's vectors, or scores of pairs.

Texts are packed with the first ones of all pairs before the second ones; their vectors have length 1. A loss is a sum
over the rows that it asks about, so that the parts of a step can be added up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.finetuning.learner import ONE_LOSS, TASK
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.model.pooling import pool
from bertkit.train.loop import LossModule, Sums

LOWEST = -1e4  # of what is not to be compared: no probability is left, and no infinity is subtracted from another


@dataclass(frozen=True)
class Asked:
    """What is asked about a batch of texts."""

    rows: int  # pairs, or texts where there are no pairs
    names: Tensor  # T: a number for each text, equal for equal texts
    wanted: Tensor | None = None  # scores of pairs from 0 to 1, or a teacher's vectors, a row for each text


def contrast(vectors_TD: Tensor, asked: Asked, heat: float) -> tuple[Tensor, Tensor]:
    """(loss, right): each text finds its partner among the partners of all, from both sides.

    InfoNCE: cross-entropy over cosines divided by `heat`. A text that occurs twice is not its own wrong answer, nor
    are its other partners, nor is its own copy in the place of another pair's partner.
    """
    first_ND, second_ND = vectors_TD.chunk(2)
    first, second = asked.names.chunk(2)
    alone = torch.eye(len(first), dtype=torch.bool, device=first.device)
    same = ((first[:, None] == first) | (second[:, None] == second) | (first[:, None] == second)) & ~alone
    scores_NN = (first_ND @ second_ND.T / heat).masked_fill(same, LOWEST)
    answers = torch.arange(len(first), device=first.device)
    loss = sum(F.cross_entropy(each, answers, reduction="sum") for each in (scores_NN, scores_NN.T))
    assert isinstance(loss, Tensor)
    return loss / 2, (scores_NN.argmax(dim=1) == answers).sum()


def follow(vectors_TD: Tensor, asked: Asked, heat: float) -> tuple[Tensor, Tensor]:
    """(loss, 0): to each text, the others should be as near as a teacher has them.

    Kullback and Leibler's divergence between both softmaxes of cosines divided by `heat`, of a text to all others.
    """
    assert asked.wanted is not None
    ours, theirs = (_nearness(each, asked, heat) for each in (vectors_TD, F.normalize(asked.wanted.float(), dim=-1)))
    loss = F.kl_div(ours, theirs, reduction="sum", log_target=True)
    return loss * asked.rows / len(vectors_TD), loss.new_zeros(())


def rate(vectors_TD: Tensor, asked: Asked, heat: float) -> tuple[Tensor, Tensor]:
    """(loss, 0): the squared distance of each pair's cosine from its score."""
    assert asked.wanted is not None
    first_ND, second_ND = vectors_TD.chunk(2)
    return F.mse_loss((first_ND * second_ND).sum(dim=1), asked.wanted, reduction="sum"), vectors_TD.new_zeros(())


LOSSES: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "twins": contrast,
    "pairs": contrast,
    "scores": rate,
    "teacher": follow,
}


class VectorLearner(LossModule):
    """A model and a loss on its texts' vectors: the mean over tokens, of length 1."""

    weights = ONE_LOSS

    def __init__(self, model: BertModel, objective: str, heat: float) -> None:
        super().__init__()
        self.model = model
        self.loss = partial(LOSSES[objective], heat=heat)

    def forward(self, batch: Batch, asked: Asked) -> Sums:
        """(sum, count, right) of the loss."""
        vectors_TD = F.normalize(pool(self.model(batch).float(), batch, "mean"), dim=-1)
        loss, right = self.loss(vectors_TD, asked)
        return {TASK: (loss, loss.new_full((), asked.rows), right)}


def _nearness(vectors_TD: Tensor, asked: Asked, heat: float) -> Tensor:
    """T T: log-probabilities over the other texts; a text is not compared with itself, wherever it stands again."""
    same = asked.names[:, None] == asked.names
    return (vectors_TD @ vectors_TD.T / heat).masked_fill(same, LOWEST).log_softmax(dim=1)
