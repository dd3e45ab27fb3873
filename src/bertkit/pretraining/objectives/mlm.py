"""Masked language modeling (BERT): predict the original words at the masked positions."""

from bertkit.pretraining.objectives.objective import Objective
from bertkit.train.loss import PERPLEXITY, Loss

MLM_LOSS = Loss("mlm", "masked words", shown=PERPLEXITY)


class MaskedLanguageModel(Objective):
    """The vocabulary head runs on masked positions only."""

    name = "mlm"
    kind = "tokens"
    losses = (MLM_LOSS,)
    heads = ("masked_word",)
    shares = (0.8, 0.1)

    def word_share(self, rate: float) -> float:
        """The masked positions."""
        return rate
