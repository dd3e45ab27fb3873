"""Masked language modeling (BERT): predict the original words at the masked positions."""

from typing import TYPE_CHECKING

from bertkit.pretraining.objectives.objective import PERPLEXITY, Loss, Objective

if TYPE_CHECKING:
    from torch import Tensor, nn

    from bertkit.model.batch import Batch
    from bertkit.model.model import BertModel
    from bertkit.pretraining.objectives.targets import Sum, Targets

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

    def loss(
        self, model: "BertModel", own: "nn.Module | None", hidden_TD: "Tensor", batch: "Batch", targets: "Targets"
    ) -> "Sum":
        """Cross-entropy of the original words."""
        from bertkit.pretraining.objectives.targets import word_sums

        return word_sums(model, hidden_TD, targets)
