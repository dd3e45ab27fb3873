"""The targets of a batch, and losses as sums and counts, which are divided once per step."""

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
    """The targets of a batch; tensors of fixed shape may contain entries to ignore."""

    chosen: Tensor  # M: positions in the packed batch
    words: Tensor  # M: the original ids there, or IGNORE
    pairs: Tensor  # N: next-sentence or sentence-order labels, or IGNORE; empty without pairs

    @property
    def form(self) -> tuple[object, ...]:
        """The shapes, which must be equal to replay a recorded step."""
        return tuple(tensor.shape for tensor in self.tensors)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors."""
        return (self.chosen, self.words, self.pairs)

    def refilled(self, tensors: Sequence[Tensor]) -> "Targets":
        """Targets with other tensors of the same shapes."""
        return Targets(*tensors)


@dataclass(frozen=True, eq=False)
class LossInputs:
    """The inputs of a loss, from one forward pass."""

    model: BertModel
    own: nn.Module | None  # parameters that only this loss has
    hidden_TD: Tensor
    batch: Batch
    targets: Targets


Sum = tuple[Tensor, Tensor, Tensor]  # sum of losses, number of targets, number correct: scalar tensors
Sums = dict[str, Sum]


class PretrainingModule(LossModule):
    """Models with the losses of a recipe's objectives: maps a batch and its targets to the sums of each loss."""

    models: Mapping[str, BertModel]  # by the name of their folder in a checkpoint
    evaluation: Mapping[str, bool] = MappingProxyType({})  # keyword arguments of forward in an evaluation

    def own_tensors(self) -> dict[str, Tensor]:
        """The tensors that belong to no model, but only to a loss."""
        models = {id(tensor) for model in self.models.values() for tensor in model.state_dict(keep_vars=True).values()}
        return {name: tensor for name, tensor in self.state_dict(keep_vars=True).items() if id(tensor) not in models}

    def load_own_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the tensors of `own_tensors`; all must be there with their shapes."""
        for name, tensor in self.own_tensors().items():
            if name not in tensors or tensors[name].shape != tensor.shape:
                raise RequestError(f"{name} is missing or of another shape")
            tensor.data.copy_(tensors[name])


def class_sums(logits: Tensor, targets: Tensor) -> Sum:
    """Sum of cross-entropies, number of targets and number correct, without IGNORE. N C and N -> scalars."""
    losses, correct = plain_losses(logits, targets)
    return losses.sum(), (targets != IGNORE).sum(), correct.sum()


def word_sums(model: BertModel, hidden_TD: Tensor, targets: Targets) -> Sum:
    """The sums of the words at the target positions; the vocabulary head runs only there."""
    head: MaskedWordHead = model.heads["masked_word"]  # type: ignore[assignment]
    return logit_sums(head.aligned(hidden_TD[targets.chosen]), targets.words, model.config.vocab_size)


def logit_sums(logits_MV: Tensor, words_M: Tensor, vocab_size: int) -> Sum:
    """The sums from logits over the vocabulary, whose rows may be padded beyond it."""
    losses, correct, _ = word_losses(logits_MV, words_M, vocab_size)
    return losses.sum(), (words_M != IGNORE).sum(), correct.sum()
