"""A text or a pair of texts gets a number."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.data.examples import Example, TextExample
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.tasks.rows.regress import RegressRow
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.explain import Request, Target, read_pooled, refuse_target
from bertkit.tasks.shared.length import Seen
from bertkit.tasks.shared.number_task import NumberTask
from bertkit.tasks.shared.text_task import TextTask, counting_rows, filled, shown_text
from bertkit.tasks.task import LossSettings, Mistake, Predict, Size, Task, Window


@dataclass(frozen=True)
class Rated:
    """A number."""

    value: float
    seen: Seen


@dataclass(frozen=True, kw_only=True)
class Regress(TextTask, NumberTask):
    """A number for each text."""

    row = RegressRow()

    def predicted(self, prediction: Rated) -> tuple[float]:
        """The one number."""
        return (prediction.value,)

    def target(self, example: TextExample) -> float | None:
        """The number in the model's units."""
        return None if example.label is None else self.standardized(_number(example))

    def loss_sum(self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings) -> Tensor:
        """Squared error: N 1 in."""
        pooled, targets = self.per_text(logits, windows)
        wanted = torch.tensor(targets, device=logits.device, dtype=pooled.dtype)
        return F.mse_loss(pooled.squeeze(-1), wanted, reduction="sum")

    def fixed_targets(self, windows: Sequence[Window], size: Size, weights: LossSettings) -> tuple[Tensor, ...]:
        """A number for each sequence, and whether it counts."""
        wanted = [float(window.target) for window in windows]
        return filled(wanted, size.sequences, 0.0), counting_rows(len(wanted), size)

    def distance(
        self, teacher: Task, ours: Tensor, theirs: Tensor, batch: Batch, windows: Sequence[Window], temperature: float
    ) -> Tensor:
        """Squared distance from the teacher's number, in this task's units."""
        ours, theirs = self.per_text(ours, windows)[0], self.per_text(theirs, windows)[0]
        return F.mse_loss(ours, self.in_own_units(teacher, theirs), reduction="sum")

    def decide(self, logits: np.ndarray, shown: Seen, decision: Decision) -> Rated:
        """The number, in the units of the data."""
        return Rated(float(logits[0]) * self.spread + self.center, shown)

    def mistake(self, example: Example, prediction: Rated) -> Mistake | None:
        """How far off the number is."""
        assert isinstance(example, TextExample)
        gold = _number(example)
        return Mistake(abs(prediction.value - gold), shown_text(example), f"{gold:g}", f"{prediction.value:.4g}")

    def explain(self, model: BertModel, request: Request, predict: Predict) -> Target:
        """The number, in the units of the data."""
        refuse_target(request)
        return self.number_target("the number", self.one_sequence(model, request), read_pooled(model, self.head, 0))


def _number(example: TextExample) -> float:
    if not isinstance(example.label, int | float):
        raise RequestError(f"{example.place}: the label {example.label!r} is not a number")
    return float(example.label)
