"""Masked language modeling (BERT): predict the original words at the masked positions."""

from typing import TYPE_CHECKING

from bertkit.pretraining.objectives.objective import Objective
from bertkit.train.loss import PERPLEXITY, Loss

if TYPE_CHECKING:
    from bertkit.pretraining.objectives.targets import LossInputs, Sum

MASKED_WORDS = Loss("mlm", "masked words", shown=PERPLEXITY)


class MaskedLanguageModel(Objective):
    """The vocabulary head runs on masked positions only."""

    name = "mlm"
    kind = "tokens"
    losses = (MASKED_WORDS,)
    heads = ("masked_word",)
    shares = (0.8, 0.1)

    def word_share(self, rate: float) -> float:
        """At the masked positions."""
        return rate

    def loss(self, given: "LossInputs") -> "Sum":
        """Cross-entropy of the original words."""
        from bertkit.pretraining.objectives.targets import word_sums

        return word_sums(given.model, given.hidden_TD, given.targets)
