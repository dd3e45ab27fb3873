"""Regression: a number for a text or a pair of texts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

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
from bertkit.tasks.shared.text_task import TextTask, display_text, pad_to, sequence_weights
from bertkit.tasks.task import FixedSize, LossSettings, Mistake, Predict, Task, Window


@dataclass(frozen=True)
class Rated:
    """The number predicted for a text."""

    value: float
    seen: Seen = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Regress(TextTask, NumberTask):
    """A number for each text."""

    row = RegressRow()

    def predicted_numbers(self, prediction: Rated) -> tuple[float]:
        """The one number."""
        return (prediction.value,)

    def target(self, example: TextExample) -> float | None:
        """The standardized number."""
        return None if example.label is None else self.standardize(_number(example))

    def loss_sum(self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings) -> Tensor:
        """Sum of squared errors; logits are N 1."""
        pooled, targets = self.pool_windows(logits, windows)
        gold = torch.tensor(targets, device=logits.device, dtype=pooled.dtype)
        return F.mse_loss(pooled.squeeze(-1), gold, reduction="sum")

    def fixed_targets(self, windows: Sequence[Window], size: FixedSize, weights: LossSettings) -> tuple[Tensor, ...]:
        """The number and the weight of each sequence."""
        gold = [float(window.target) for window in windows]
        return pad_to(size.sequences, gold), sequence_weights(len(gold), size)

    def distillation_loss(
        self, teacher: Task, logits: Tensor, target: Tensor, batch: Batch, windows: Sequence[Window], temperature: float
    ) -> Tensor:
        """Sum of the squared distances from the teacher's numbers, standardized by this task."""
        student, target = (self.pool_windows(values, windows)[0] for values in (logits, target))
        return F.mse_loss(student, self.restandardize(teacher, target), reduction="sum")

    def decide(self, logits: np.ndarray, seen: Seen, decision: Decision) -> Rated:
        """The number in the units of the data."""
        return Rated(float(logits[0]) * self.spread + self.center, seen)

    def mistake(self, example: Example, prediction: Rated) -> Mistake | None:
        """The error of the number, weighted by its size."""
        assert isinstance(example, TextExample)
        gold = _number(example)
        return Mistake(abs(prediction.value - gold), display_text(example), f"{gold:g}", f"{prediction.value:.4g}")

    def explain(self, model: BertModel, request: Request, predict: Predict) -> Target:
        """The number in the units of the data."""
        refuse_target(request)
        return self.number_target("the number", self.explained_tokens(model, request), read_pooled(model, self.head, 0))


def _number(example: TextExample) -> float:
    if not isinstance(example.label, int | float):
        raise RequestError(f"{example.location}: the label {example.label!r} is not a number")
    return float(example.label)
