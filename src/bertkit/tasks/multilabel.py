"""Multi-label classification: any number of labels for a text or a pair of texts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.data.examples import Example, TextExample
from bertkit.model.batch import Batch
from bertkit.report.tables import html_table
from bertkit.tasks.metrics.classes import LabelScore, precision_recall_f1
from bertkit.tasks.metrics.table import multilabel_scores
from bertkit.tasks.rows.multilabel import MultilabelRow
from bertkit.tasks.shared.decision import Decision, FittedDecision, fit_thresholds
from bertkit.tasks.shared.labels import count_labels
from bertkit.tasks.shared.length import Seen
from bertkit.tasks.shared.text_task import LabelTask, display_text, label_id, sequence_weights
from bertkit.tasks.task import Dataset, FixedSize, HeadOutputs, LossSettings, Mistake, Task, Window

MAX_POSITIVE_WEIGHT = 10.0  # of the positive examples of a rare label


@dataclass(frozen=True)
class Labeled:
    """The labels whose probabilities reach their thresholds, and all probabilities."""

    labels: tuple[str, ...]
    probabilities: Mapping[str, float]
    seen: Seen = field(repr=False)

    def _repr_html_(self) -> str:
        ranked = sorted(self.probabilities.items(), key=lambda item: -item[1])
        rows = [(label, probability, "yes" if label in self.labels else "") for label, probability in ranked]
        return html_table(("label", "probability", "predicted"), rows)


@dataclass(frozen=True, kw_only=True)
class Multilabel(LabelTask):
    """Any number of labels, each by a sigmoid."""

    row = MultilabelRow()

    def target(self, example: TextExample) -> tuple[int, ...] | None:
        """The label ids."""
        if example.label is None:
            return None
        assert isinstance(example.label, tuple)
        return tuple(label_id(self.label_ids, label, example) for label in example.label)

    def loss_sum(self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings) -> Tensor:
        """Sum over texts of the mean binary cross-entropy; logits are N labels. Class weights are positive weights."""
        pooled, targets = self.pool_windows(logits, windows)
        gold = torch.zeros_like(pooled)
        rows = [row for row, labels in enumerate(targets) for _ in labels]
        gold[rows, [label for labels in targets for label in labels]] = 1.0
        positive = None if weights.class_weights is None else logits.new_tensor(weights.class_weights)
        return _binary_losses(pooled, gold, positive, weights.label_smoothing).sum()

    def fixed_targets(self, windows: Sequence[Window], size: FixedSize, weights: LossSettings) -> tuple[Tensor, ...]:
        """The 0/1 targets of each sequence, the positive weight of each label, the weight of each sequence."""
        gold = torch.zeros(size.sequences, size.outputs)
        for row, window in zip(gold, windows, strict=False):  # the other rows are padding
            row[list(window.target)] = 1.0
        positive = torch.tensor(weights.class_weights or (1.0,) * size.outputs)
        return gold, positive, sequence_weights(len(windows), size)

    def fixed_loss(self, logits: Tensor, batch: Batch, targets: Sequence[Tensor], smoothing: float) -> Tensor:
        """Sum of the mean binary cross-entropies of the sequences with weight 1."""
        gold, positive, row_weights = targets
        return (_binary_losses(logits, gold, positive, smoothing) * row_weights).sum()

    def distillation_loss(
        self, teacher: Task, logits: Tensor, target: Tensor, batch: Batch, windows: Sequence[Window], temperature: float
    ) -> Tensor:
        """Binary cross-entropy with the teacher's probabilities, times temperature^2 (Hinton et al. 2015)."""
        student, target = (self.pool_windows(values, windows)[0] / temperature for values in (logits, target))
        return _binary_losses(student, target.sigmoid()).sum() * temperature**2

    def decide(self, logits: np.ndarray, seen: Seen, decision: Decision) -> Labeled:
        """The labels that reach their thresholds."""
        probabilities = decision.label_probabilities(logits)
        accepted = decision.accepted(probabilities, self.labels)
        labels = tuple(label for label, yes in zip(self.labels, accepted, strict=True) if yes)
        return Labeled(labels, dict(zip(self.labels, probabilities.tolist(), strict=True)), seen)

    def score(self, examples: Sequence[Example], predictions: Sequence[Labeled]) -> dict[str, float]:
        """F1s over labels, exact matches, mean average precision."""
        probabilities = np.array([list(prediction.probabilities.values()) for prediction in predictions])
        return multilabel_scores(self._gold(examples), self.matrix([p.labels for p in predictions]), probabilities)

    def matrix(self, rows: Sequence[Any]) -> np.ndarray:
        """Boolean [texts, labels] from the labels of each text."""
        matrix = np.zeros((len(rows), len(self.labels)), dtype=bool)
        for row, labels in enumerate(rows):
            matrix[row, [self.label_ids[label] for label in labels or ()]] = True
        return matrix

    def _gold(self, examples: Sequence[Example]) -> np.ndarray:
        return self.matrix([example.label for example in examples if isinstance(example, TextExample)])

    def calibration_table(self, dev: Dataset, outputs: HeadOutputs) -> tuple[np.ndarray, np.ndarray]:
        """(logits, boolean gold) of the texts, both [texts, labels]."""
        return self.text_logits(dev, outputs), self._gold(dev.examples)

    def fit_decision(self, dev: Dataset, outputs: HeadOutputs, abstain: float | None = None) -> FittedDecision:
        """The temperature, and a threshold for each label."""
        fitted, (logits, gold) = super().fit_decision(dev, outputs), self.calibration_table(dev, outputs)
        thresholds = fit_thresholds(fitted.decision.label_probabilities(logits), gold, self.labels)
        return replace(fitted, decision=replace(fitted.decision, thresholds=thresholds))

    def class_weights(self, counts: Mapping[str, int], examples: int) -> tuple[float, ...]:
        """The ratio of negative to positive examples of each label, at most MAX_POSITIVE_WEIGHT."""
        positive = [max(counts.get(label, 0), 1) for label in self.labels]
        return tuple(min(MAX_POSITIVE_WEIGHT, max(examples - count, 0.5) / count) for count in positive)

    def prior_bias(self, train: Dataset, weights: LossSettings) -> tuple[float, ...]:
        """The weighted and smoothed log odds of each label."""
        counts, rows, smoothing = count_labels(train.examples), len(train.examples), weights.label_smoothing
        class_weights = weights.class_weights or (1.0,) * len(self.labels)
        frequencies = [min(max(counts.get(label, 0), 0.5), rows - 0.5) / rows for label in self.labels]
        smoothed = [frequency * (1 - smoothing) + smoothing / 2 for frequency in frequencies]
        return tuple(math.log(weight * p / (1 - p)) for p, weight in zip(smoothed, class_weights, strict=True))

    def mistake(self, example: Example, prediction: Labeled) -> Mistake | None:
        """Wrong labels, weighted by the largest error of a probability."""
        assert isinstance(example, TextExample)
        gold = example.label if isinstance(example.label, tuple) else ()
        wrong = set(prediction.labels) ^ set(gold)
        if not wrong:
            return None
        weight = max(abs(prediction.probabilities[label] - (label in gold)) for label in wrong)
        return Mistake(weight, display_text(example), ", ".join(gold), ", ".join(prediction.labels))

    def label_scores(self, dev: Dataset, predictions: Sequence[Labeled]) -> dict[str, LabelScore]:
        """Precision and recall of every label."""
        scores = precision_recall_f1(self._gold(dev.examples), self.matrix([p.labels for p in predictions]))
        return dict(zip(self.labels, scores.values(), strict=True))


def _binary_losses(logits: Tensor, gold: Tensor, positive: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
    """The mean over labels of the binary cross-entropies of each text: N."""
    smoothed = gold * (1 - smoothing) + smoothing / 2
    losses = F.binary_cross_entropy_with_logits(logits, smoothed, reduction="none", pos_weight=positive)
    return losses.mean(dim=1)
