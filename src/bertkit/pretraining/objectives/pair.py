"""The base class of objectives on pairs of texts: a head on [CLS] and its loss."""

from typing import TYPE_CHECKING

from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.objectives.objective import Objective
from bertkit.train.loss import Loss

if TYPE_CHECKING:
    from bertkit.pretraining.objectives.targets import LossInputs, Sum


class PairObjective(Objective):
    """Binary classification of pairs of texts; label 0 is the order of the document."""

    kind = "pair"
    losses = (Loss("pair", "sentence pairs", shown=("right", "{:.1%}")),)
    heads = ("next_sentence",)

    def counts(self, examples: Examples) -> dict[str, int]:
        """One label per sequence."""
        return {loss.name: len(examples.lengths) for loss in self.losses}

    def loss(self, inputs: "LossInputs") -> "Sum":
        """Cross-entropy of the pair's label."""
        from bertkit.pretraining.objectives.targets import class_sums

        return class_sums(inputs.model.read(self.heads[0], inputs.hidden_TD, inputs.batch), inputs.targets.pairs)
