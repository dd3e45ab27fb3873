"""A text or a pair of texts gets a number."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.data.examples import Example, TextExample
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.tasks.calibration import guesses_numbers
from bertkit.tasks.decision import Decision
from bertkit.tasks.explain import Request, Target, read_pooled, refuse_target
from bertkit.tasks.length import Seen
from bertkit.tasks.metrics.table import number_scores
from bertkit.tasks.rows.regress import RegressRow
from bertkit.tasks.task import LossSettings, Mistake, Part, Predict, Rows, Size, Task, Window, by_example
from bertkit.tasks.texts import TextTask, counting_rows, filled, shown_text


@dataclass(frozen=True)
class Rated:
    """A number."""

    value: float
    seen: Seen


@dataclass(frozen=True, kw_only=True)
class Regress(TextTask):
    """A number. The model learns it in units of `spread` around `center`, so that any scale is learned as well."""

    center: float = 0.0
    spread: float = 1.0
    row = RegressRow()
    outputs = 1

    def target(self, example: TextExample) -> float | None:
        """The number in the model's units."""
        return None if example.label is None else (_number(example) - self.center) / self.spread

    def loss(
        self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings
    ) -> tuple[Tensor, Tensor]:
        """Squared error: N 1 in."""
        pooled, targets = self.per_text(logits, windows)
        wanted = torch.tensor(targets, device=logits.device, dtype=pooled.dtype)
        return F.mse_loss(pooled.squeeze(-1), wanted, reduction="sum"), torch.tensor(len(targets), device=logits.device)

    def fixed_targets(self, windows: Sequence[Window], size: Size, weights: LossSettings) -> tuple[Tensor, ...]:
        """A number for each sequence, and whether it counts."""
        wanted = [float(window.target) for window in windows]
        return filled(wanted, size.sequences, 0.0), counting_rows(len(wanted), size)

    def fixed_loss(self, logits: Tensor, batch: Batch, targets: Sequence[Tensor], smoothing: float) -> Tensor:
        """Squared error of the sequences that count."""
        wanted, shares = targets
        return ((logits.squeeze(-1) - wanted).square() * shares).sum()

    def distance(
        self, teacher: Task, ours: Tensor, theirs: Tensor, batch: Batch, windows: Sequence[Window], temperature: float
    ) -> Tensor:
        """Squared distance from the teacher's number, in this task's units."""
        assert isinstance(teacher, Regress)
        ours, theirs = self.per_text(ours, windows)[0], self.per_text(theirs, windows)[0]
        wanted = (theirs * teacher.spread + teacher.center - self.center) / self.spread
        return F.mse_loss(ours, wanted, reduction="sum")

    def decode(
        self, examples: Sequence[Example], windows: Sequence[Window], outputs: Rows, decision: Decision
    ) -> list[Rated]:
        """Each text's number, in the units of the data."""
        return [
            Rated(float(self.pooled(rows)[0]) * self.spread + self.center, own[0].detail)
            for _, own, rows in by_example(examples, windows, outputs)
        ]

    def score(self, examples: Sequence[Example], predictions: Sequence[Rated]) -> dict[str, float]:
        """Correlations and errors."""
        gold = [_number(example) for example in examples if isinstance(example, TextExample)]
        return number_scores(gold, [prediction.value for prediction in predictions])

    def guessing(
        self, dev: Part, outputs: Rows, loss: float | None, predictions: Sequence[Rated], least: float
    ) -> str | None:
        """By the correlation with the true numbers."""
        gold = [_number(example) for example in dev.examples if isinstance(example, TextExample)]
        return guesses_numbers(gold, [prediction.value for prediction in predictions])

    def mistake(self, example: Example, prediction: Rated) -> Mistake | None:
        """How far off the number is."""
        assert isinstance(example, TextExample)
        gold = _number(example)
        return Mistake(abs(prediction.value - gold), shown_text(example), f"{gold:g}", f"{prediction.value:.4g}")

    def explain(self, model: BertModel, request: Request, predict: Predict) -> Target:
        """The number, in the units of the data."""
        refuse_target(request)
        tokens, read = self.one_sequence(model, request), read_pooled(model, self.head, 0)
        return Target("the number", "units", tokens, lambda *given: read(*given) * self.spread + self.center)


def _number(example: TextExample) -> float:
    if not isinstance(example.label, int | float):
        raise RequestError(f"{example.place}: the label {example.label!r} is not a number")
    return float(example.label)
