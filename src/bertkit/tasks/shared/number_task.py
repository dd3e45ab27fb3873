"""Base class of the tasks that predict numbers: one output, trained on (number - center) / spread."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from bertkit.data.examples import Example
from bertkit.model.batch import Batch
from bertkit.tasks.metrics.table import number_scores
from bertkit.tasks.shared.calibration import number_collapse
from bertkit.tasks.shared.explain import ExplainedTokens, ReadOutput, Target
from bertkit.tasks.task import Dataset, HeadOutputs, Prediction, Task


@dataclass(frozen=True, kw_only=True)
class NumberTask(Task):
    """A task with numbers as targets; they are standardized, so that their scale does not matter for training."""

    center: float = 0.0
    spread: float = 1.0
    outputs = 1

    def predicted_numbers(self, prediction: Prediction) -> Sequence[float]:
        """The numbers of a prediction, in the order of those of the example."""
        raise NotImplementedError

    def standardize(self, number: float) -> float:
        """A number of the data in standardized units."""
        return (number - self.center) / self.spread

    def fixed_loss(self, logits: Tensor, batch: Batch, targets: Sequence[Tensor], smoothing: float) -> Tensor:
        """Sum of squared errors times weights; the weight of padding is 0."""
        gold, weights = targets
        return ((logits.squeeze(-1) - gold).square() * weights).sum()

    def restandardize(self, teacher: Task, outputs: Tensor) -> Tensor:
        """A teacher's outputs, converted from its center and spread to those of this task."""
        assert isinstance(teacher, NumberTask)
        return (outputs * teacher.spread + teacher.center - self.center) / self.spread

    def constant_outputs(self, train: Dataset) -> tuple[float, ...]:
        """The mean of the training data, which is 0 in standardized units."""
        return (0.0,)

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Correlations and errors."""
        return number_scores(*self._gold_and_predicted(examples, predictions))

    def collapse_message(
        self, dev: Dataset, outputs: HeadOutputs, loss: float | None, predictions: Sequence[Prediction], min_gain: float
    ) -> str | None:
        """A message if the predictions do not correlate with the true numbers, else None."""
        return number_collapse(*self._gold_and_predicted(dev.examples, predictions))

    def number_target(self, name: str, tokens: ExplainedTokens, read: ReadOutput) -> Target:
        """A predicted number, in the units of the data, as the target of an attribution."""
        return Target(name, "units", tokens, lambda hidden, batch: read(hidden, batch) * self.spread + self.center)

    def _gold_and_predicted(
        self, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> tuple[list[float], list[float]]:
        gold = [number for example in examples for number in example.numbers]
        return gold, [number for prediction in predictions for number in self.predicted_numbers(prediction)]
