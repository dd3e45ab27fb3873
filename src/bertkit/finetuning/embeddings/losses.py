"""Losses on text vectors: contrast within a batch, a teacher's similarities, or scores of pairs.

A batch has the first texts of all pairs, then the second ones, then all negatives; vectors are normalized. A loss is a
sum over rows, so that the forward passes of a step can be added.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.finetuning.embeddings.kinds import VectorKind
from bertkit.finetuning.embeddings.settings import VectorTuning
from bertkit.finetuning.learner import ONE_LOSS, TASK
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.tasks.shared.losses import MASKED_LOGIT
from bertkit.train.loop import LossModule, Sums


@dataclass(frozen=True)
class VectorTargets:
    """The targets of a batch of texts."""

    rows: int  # number of pairs, or of texts without pairs
    names: Tensor  # T: a number for each text, the same for equal texts
    values: Tensor | None = None  # scores of pairs in [0, 1], or a teacher's vectors, a row for each text

    def sums(self, vectors_TD: Tensor, loss: "Loss") -> tuple[Tensor, Tensor, Tensor]:
        """(sum of losses, number of rows, number of correct pairs)."""
        total, correct = loss(vectors_TD, self)
        return total, total.new_full((), self.rows), correct


Loss = Callable[[Tensor, VectorTargets], tuple[Tensor, Tensor]]


class TextTargets(Protocol):
    """What a batch of texts is trained on."""

    def sums(self, vectors_TD: Tensor, loss: Loss) -> tuple[Tensor, Tensor, Tensor]:
        """(sum of losses, number of rows, number of correct pairs)."""


def dot(first_ND: Tensor, candidates_CD: Tensor) -> Tensor:
    """N C: cosines, of vectors of length 1."""
    return first_ND @ candidates_CD.T


def contrastive_loss(
    vectors_TD: Tensor,
    targets: VectorTargets,
    temperature: float,
    scores: Callable[[Tensor, Tensor], Tensor] = dot,
) -> tuple[Tensor, Tensor]:
    """(loss, number of correct pairs) of InfoNCE: cross-entropy over scores / temperature, in both directions.

    The candidates of a first text are all second texts and all negatives of the step, without those that are equal to
    it or to its partner, and without the partners of equal texts; those of a second text are all first texts, likewise.
    """
    count = targets.rows
    first_ND, candidates_CD = vectors_TD[:count], vectors_TD[count:]
    first, candidates = targets.names[:count], targets.names[count:]
    same_NC = (first[:, None] == candidates) | (candidates[:count, None] == candidates)
    same_NC[:, :count] |= first[:, None] == first
    same_NC.fill_diagonal_(False)
    logits_NC = (scores(first_ND, candidates_CD) / temperature).masked_fill(same_NC, MASKED_LOGIT)
    partners = torch.arange(count, device=first.device)
    forth, back = (F.cross_entropy(logits, partners, reduction="sum") for logits in (logits_NC, logits_NC[:, :count].T))
    return (forth + back) / 2, (logits_NC.argmax(dim=1) == partners).sum()


def matryoshka(loss: Loss, prefixes: Sequence[int]) -> Loss:
    """The mean of the loss over whole vectors and over their prefixes at length 1; (loss, correct of whole vectors)."""

    def mean_loss(vectors_TD: Tensor, targets: VectorTargets) -> tuple[Tensor, Tensor]:
        whole, correct = loss(vectors_TD, targets)
        shorter = [loss(F.normalize(vectors_TD[:, :count], dim=-1), targets)[0] for count in prefixes]
        return torch.stack([whole, *shorter]).mean(), correct

    return mean_loss


def of_kind(loss: Callable[..., tuple[Tensor, Tensor]], kind: VectorKind) -> Loss:
    """The loss with the scores of a kind of vectors, and its penalty for each row."""

    def kind_loss(rows_TX: Tensor, targets: VectorTargets) -> tuple[Tensor, Tensor]:
        total, correct = loss(rows_TX, targets, scores=kind.scores)
        return total + targets.rows * kind.penalty(rows_TX), correct

    return kind_loss


def teacher_loss(vectors_TD: Tensor, targets: VectorTargets, temperature: float) -> tuple[Tensor, Tensor]:
    """(loss, 0): KL divergence from the teacher's softmax over cosines / temperature, of each text to all others."""
    assert targets.values is not None
    teacher_TD = F.normalize(targets.values.float(), dim=-1)
    student, teacher = (_log_similarities(vectors, targets, temperature) for vectors in (vectors_TD, teacher_TD))
    loss = F.kl_div(student, teacher, reduction="sum", log_target=True)
    return loss * targets.rows / len(vectors_TD), loss.new_zeros(())


def score_loss(vectors_TD: Tensor, targets: VectorTargets, temperature: float) -> tuple[Tensor, Tensor]:
    """(loss, 0): squared differences of the cosines of pairs and their scores."""
    assert targets.values is not None
    first_ND, second_ND = vectors_TD.chunk(2)
    return F.mse_loss((first_ND * second_ND).sum(dim=1), targets.values, reduction="sum"), vectors_TD.new_zeros(())


def cosent_loss(vectors_TD: Tensor, targets: VectorTargets, temperature: float) -> tuple[Tensor, Tensor]:
    """(loss, 0) of CoSENT (Su 2022): of two pairs, the one with the higher score should have the higher cosine.

    log(1 + sum of exp((cosine of the lower pair - cosine of the higher one) / temperature)), over all such twos.
    """
    assert targets.values is not None
    first_ND, second_ND = vectors_TD.chunk(2)
    cosines_N = (first_ND * second_ND).sum(dim=1) / temperature
    higher_NN = targets.values[:, None] > targets.values
    excess_NN = (cosines_N - cosines_N[:, None]).masked_fill(~higher_NN, MASKED_LOGIT)
    loss = torch.cat([excess_NN.new_zeros(1), excess_NN.flatten()]).logsumexp(dim=0)
    return loss * targets.rows, loss.new_zeros(())


@dataclass(frozen=True)
class VectorLoss:
    """A row of LOSSES."""

    function: Callable[..., tuple[Tensor, Tensor]]  # of vectors, targets and a temperature
    compares: bool = True  # whether the loss of a row depends on the other rows of the step
    rows: str = "auto"  # the kind of rows that it is for
    counts: bool = False  # whether it counts correct pairs


LOSSES: dict[str, VectorLoss] = {
    "twins": VectorLoss(contrastive_loss, rows="twins", counts=True),
    "pairs": VectorLoss(contrastive_loss, rows="pairs", counts=True),
    "scores": VectorLoss(score_loss, rows="scores", compares=False),
    "cosent": VectorLoss(cosent_loss, rows="scores"),
    "teacher": VectorLoss(teacher_loss),
}


class VectorLearner(LossModule):
    """A model with a loss on its text vectors."""

    weights = ONE_LOSS

    def __init__(
        self,
        model: BertModel,
        objective: str,
        temperature: float | None,
        prefixes: Sequence[int] = (),
        kind: VectorKind | None = None,
    ) -> None:
        super().__init__()
        self.model, self.kind = model, VectorKind(None, VectorTuning()) if kind is None else kind
        loss = partial(LOSSES[objective].function, temperature=temperature or self.kind.temperature)
        self.loss = matryoshka(loss if self.kind.any_loss else of_kind(loss, self.kind), prefixes)

    def forward(self, batch: Batch, targets: TextTargets) -> Sums:
        """(sum of losses, number of rows, number of correct pairs)."""
        return {TASK: targets.sums(self.kind.rows(self.model, batch), self.loss)}


def _log_similarities(vectors_TD: Tensor, targets: VectorTargets, temperature: float) -> Tensor:
    """T T: log-softmax over cosines / temperature; a text is not compared with itself or an equal text."""
    same = targets.names[:, None] == targets.names
    return (vectors_TD @ vectors_TD.T / temperature).masked_fill(same, MASKED_LOGIT).log_softmax(dim=1)
