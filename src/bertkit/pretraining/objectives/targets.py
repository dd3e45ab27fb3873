"""Targets of a batch, and losses as sums and counts: they are divided once, over everything in a step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor, nn

from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.heads import MaskedWordHead
from bertkit.model.model import BertModel
from bertkit.model.word_loss import IGNORE, plain_losses, word_losses
from bertkit.train.loop import LossModule


@dataclass(frozen=True)
class Targets:
    """What a batch of examples asks for; tensors of fixed shape may hold slots to ignore."""

    chosen: Tensor  # M: positions in the packed batch
    words: Tensor  # M: the original ids there, or IGNORE
    pairs: Tensor  # N: next-sentence or sentence-order labels, or IGNORE; empty without pairs

    @property
    def form(self) -> tuple[object, ...]:
        """What two batches' targets must share to be asked by one recorded step."""
        return tuple(tensor.shape for tensor in self.tensors)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All there is."""
        return (self.chosen, self.words, self.pairs)

    def refilled(self, tensors: Sequence[Tensor]) -> "Targets":
        """The same form around other tensors."""
        return Targets(*tensors)


@dataclass(frozen=True, eq=False)
class LossInputs:
    """One forward pass: what a loss reads."""

    model: BertModel
    own: nn.Module | None  # parameters that only this loss has
    hidden_TD: Tensor
    batch: Batch
    targets: Targets


Sum = tuple[Tensor, Tensor, Tensor]  # sum of losses, number of targets, number correct: scalar tensors
Sums = dict[str, Sum]


class PretrainingModule(LossModule):
    """Models with the losses of a recipe's objectives: a batch and its targets in, the sums of each loss out."""

    models: Mapping[str, BertModel]  # by the name they are saved under
    evaluation: Mapping[str, bool] = MappingProxyType({})  # keyword arguments of an evaluation's forward

    def own_tensors(self) -> dict[str, Tensor]:
        """The tensors that are in none of the models: what only a loss needs."""
        inside = {id(tensor) for model in self.models.values() for tensor in model.state_dict(keep_vars=True).values()}
        return {name: own for name, own in self.state_dict(keep_vars=True).items() if id(own) not in inside}

    def load_own_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `own_tensors` gave; every tensor must be there in its shape."""
        for name, own in self.own_tensors().items():
            if name not in tensors or tensors[name].shape != own.shape:
                raise RequestError(f"{name} is missing or of another shape")
            own.data.copy_(tensors[name])


def class_sums(logits: Tensor, targets: Tensor) -> Sum:
    """Cross-entropy as sum and count, and how many are correct; IGNORE counts nowhere. N C and N -> scalars."""
    losses, correct = plain_losses(logits, targets)
    return losses.sum(), (targets != IGNORE).sum(), correct.sum()


def word_sums(model: BertModel, hidden_TD: Tensor, targets: Targets) -> Sum:
    """The same for the words at the target positions; the vocabulary head runs there only."""
    head: MaskedWordHead = model.heads["masked_word"]  # type: ignore[assignment]
    return logit_sums(head.aligned(hidden_TD[targets.chosen]), targets.words, model.config.vocab_size)


def logit_sums(logits_MV: Tensor, words_M: Tensor, vocab_size: int) -> Sum:
    """The same for logits over the vocabulary, whose rows may be longer than it."""
    losses, correct, _ = word_losses(logits_MV, words_M, vocab_size)
    return losses.sum(), (words_M != IGNORE).sum(), correct.sum()
