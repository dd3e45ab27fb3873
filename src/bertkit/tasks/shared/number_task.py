"""What the tasks with numbers share: a head with one output, learned in units of `spread` around `center`."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from bertkit.data.examples import Example
from bertkit.model.batch import Batch
from bertkit.tasks.metrics.table import number_scores
from bertkit.tasks.shared.calibration import guesses_numbers
from bertkit.tasks.shared.explain import ExplainedTokens, Read, Target
from bertkit.tasks.task import Part, Prediction, Rows, Task


@dataclass(frozen=True, kw_only=True)
class NumberTask(Task):
    """The tasks whose targets are numbers; they are standardized, so that any scale is learned equally well."""

    center: float = 0.0
    spread: float = 1.0
    outputs = 1

    def predicted(self, prediction: Prediction) -> Sequence[float]:
        """The numbers of a prediction, in the order of its example's."""
        raise NotImplementedError

    def standardized(self, number: float) -> float:
        """A number of the data in the model's units."""
        return (number - self.center) / self.spread

    def fixed_loss(self, logits: Tensor, batch: Batch, targets: Sequence[Tensor], smoothing: float) -> Tensor:
        """Squared error times weight: 0 for what has no target."""
        wanted, weights = targets
        return ((logits.squeeze(-1) - wanted).square() * weights).sum()

    def in_own_units(self, teacher: Task, theirs: Tensor) -> Tensor:
        """A teacher's outputs in this task's units."""
        assert isinstance(teacher, NumberTask)
        return (theirs * teacher.spread + teacher.center - self.center) / self.spread

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Correlations and errors."""
        return number_scores(*self._gold_and_predicted(examples, predictions))

    def guessing(
        self, dev: Part, outputs: Rows, loss: float | None, predictions: Sequence[Prediction], least: float
    ) -> str | None:
        """By the correlation with the true numbers."""
        return guesses_numbers(*self._gold_and_predicted(dev.examples, predictions))

    def number_target(self, name: str, tokens: ExplainedTokens, read: Read) -> Target:
        """A number as an attribution explains it, in the units of the data."""
        return Target(name, "units", tokens, lambda *given: read(*given) * self.spread + self.center)

    def _gold_and_predicted(
        self, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> tuple[list[float], list[float]]:
        gold = [number for example in examples for number in example.numbers]
        return gold, [number for prediction in predictions for number in self.predicted(prediction)]
