"""What objectives about pairs of texts share: the head on [CLS] and its loss."""

from typing import TYPE_CHECKING

from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.objectives.objective import Objective
from bertkit.train.loss import Loss

if TYPE_CHECKING:
    from bertkit.pretraining.objectives.targets import LossInputs, Sum


class PairObjective(Objective):
    """Two classes for each pair of texts, 0 for the text's own order."""

    kind = "pair"
    losses = (Loss("pair", "sentence pairs", shown=("right", "{:.1%}")),)
    heads = ("next_sentence",)

    def counts(self, examples: Examples) -> dict[str, int]:
        """One label for each sequence."""
        return {loss.name: len(examples.lengths) for loss in self.losses}

    def loss(self, given: "LossInputs") -> "Sum":
        """Cross-entropy of the pair's label."""
        from bertkit.pretraining.objectives.targets import class_sums

        return class_sums(given.model.read(self.heads[0], given.hidden_TD, given.batch), given.targets.pairs)
