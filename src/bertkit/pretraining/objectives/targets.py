"""Targets of a batch, and losses as sums and counts: they are divided once, over everything in a step."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from bertkit.model.heads import MaskedWordHead
from bertkit.model.model import BertModel
from bertkit.model.word_loss import IGNORE, plain_losses, word_losses


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


Sum = tuple[Tensor, Tensor, Tensor]  # sum of losses, number of targets, number correct: scalar tensors
Sums = dict[str, Sum]


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
