"""A text or a pair of texts gets any number of labels."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.data.examples import Example, TextExample
from bertkit.model.batch import Batch
from bertkit.tasks.metrics.classes import LabelScore, precision_recall_f1
from bertkit.tasks.metrics.table import multilabel_scores
from bertkit.tasks.rows.multilabel import MultilabelRow
from bertkit.tasks.shared.decision import Decision, Fitted, fit_thresholds
from bertkit.tasks.shared.labels import labels_of
from bertkit.tasks.shared.length import Seen
from bertkit.tasks.shared.text_task import LabelTask, counting_rows, label_number, shown_text
from bertkit.tasks.task import LossSettings, Mistake, Part, Rows, Size, Task, Window

MOST_WEIGHT = 10.0  # of a rare label's yes


@dataclass(frozen=True)
class Labeled:
    """Every label whose probability is over its threshold."""

    labels: tuple[str, ...]
    probabilities: Mapping[str, float]
    seen: Seen


@dataclass(frozen=True, kw_only=True)
class Multilabel(LabelTask):
    """Any number of labels, each by itself: sigmoid."""

    row = MultilabelRow()

    def target(self, example: TextExample) -> tuple[int, ...] | None:
        """The numbers of the labels."""
        if example.label is None:
            return None
        assert isinstance(example.label, tuple)
        return tuple(label_number(self.label_numbers, label, example) for label in example.label)

    def loss_sum(self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings) -> Tensor:
        """Binary cross entropy, the mean over labels: N labels in. A class weight is that of a label's yes."""
        pooled, targets = self.per_text(logits, windows)
        wanted = torch.zeros_like(pooled)
        rows = [row for row, own in enumerate(targets) for _ in own]
        wanted[rows, [label for own in targets for label in own]] = 1.0
        smooth = weights.label_smoothing
        yes = None if weights.class_weights is None else logits.new_tensor(weights.class_weights)
        losses = F.binary_cross_entropy_with_logits(
            pooled, wanted * (1 - smooth) + smooth / 2, reduction="none", pos_weight=yes
        )
        return losses.mean(dim=1).sum()

    def fixed_targets(self, windows: Sequence[Window], size: Size, weights: LossSettings) -> tuple[Tensor, ...]:
        """Yes or no to each label for each sequence, the weight of each label's yes, and whether a sequence counts."""
        wanted = torch.zeros(size.sequences, size.outputs)
        for row, window in zip(wanted, windows, strict=False):  # the other rows fill the batch up
            row[list(window.target)] = 1.0
        yes = torch.tensor(weights.class_weights or (1.0,) * size.outputs)
        return wanted, yes, counting_rows(len(windows), size)

    def fixed_loss(self, logits: Tensor, batch: Batch, targets: Sequence[Tensor], smoothing: float) -> Tensor:
        """Binary cross entropy of the sequences that count."""
        wanted, yes, shares = targets
        smooth = wanted * (1 - smoothing) + smoothing / 2
        losses = F.binary_cross_entropy_with_logits(logits, smooth, reduction="none", pos_weight=yes)
        return (losses.mean(dim=1) * shares).sum()

    def distance(
        self, teacher: Task, ours: Tensor, theirs: Tensor, batch: Batch, windows: Sequence[Window], temperature: float
    ) -> Tensor:
        """Binary cross entropy with the teacher's probabilities; times T^2, as Hinton has it."""
        ours, wanted = (self.per_text(each, windows)[0] / temperature for each in (ours, theirs))
        both = F.binary_cross_entropy_with_logits(ours, wanted.sigmoid(), reduction="none")
        return both.mean(dim=1).sum() * temperature**2

    def decide(self, logits: np.ndarray, shown: Seen, decision: Decision) -> Labeled:
        """Every label over its threshold."""
        chances = decision.label_probabilities(logits)
        accepted = decision.accepted(chances, self.labels)
        chosen = tuple(label for label, yes in zip(self.labels, accepted, strict=True) if yes)
        return Labeled(chosen, dict(zip(self.labels, chances.tolist(), strict=True)), shown)

    def score(self, examples: Sequence[Example], predictions: Sequence[Labeled]) -> dict[str, float]:
        """F1s over labels, exact matches, mean average precision."""
        chances = np.array([list(prediction.probabilities.values()) for prediction in predictions])
        return multilabel_scores(self._gold(examples), self.matrix([p.labels for p in predictions]), chances)

    def matrix(self, rows: Sequence[Any]) -> np.ndarray:
        """[texts, labels] of yes and no."""
        found = np.zeros((len(rows), len(self.labels)), dtype=bool)
        for row, labels in enumerate(rows):
            found[row, [self.label_numbers[label] for label in labels or ()]] = True
        return found

    def _gold(self, examples: Sequence[Example]) -> np.ndarray:
        return self.matrix([example.label for example in examples if isinstance(example, TextExample)])

    def calibration_table(self, dev: Part, outputs: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Logits of texts, and yes or no to each label."""
        return self.text_logits(dev, outputs), self._gold(dev.examples)

    def fit_decision(self, dev: Part, outputs: Rows, abstain: float | None = None) -> Fitted:
        """The temperature, and a threshold for each label."""
        fitted, (logits, gold) = super().fit_decision(dev, outputs), self.calibration_table(dev, outputs)
        thresholds = fit_thresholds(fitted.decision.label_probabilities(logits), gold, self.labels)
        return replace(fitted, decision=replace(fitted.decision, thresholds=thresholds))

    def class_weights(self, counts: Mapping[str, int], examples: int) -> tuple[float, ...]:
        """A yes weighs as much as the many noes, MOST_WEIGHT times at most."""
        yes = [max(counts.get(label, 0), 1) for label in self.labels]
        return tuple(min(MOST_WEIGHT, max(examples - count, 0.5) / count) for count in yes)

    def prior(self, train: Part, weights: LossSettings) -> tuple[float, ...]:
        """The log odds of each label."""
        counts, rows = labels_of(train.examples), len(train.examples)
        balance = weights.class_weights or (1.0,) * len(self.labels)
        shares = [min(max(counts.get(label, 0), 0.5), rows - 0.5) / rows for label in self.labels]
        shares = [share * (1 - weights.label_smoothing) + weights.label_smoothing / 2 for share in shares]
        return tuple(math.log(weight * share / (1 - share)) for share, weight in zip(shares, balance, strict=True))

    def mistake(self, example: Example, prediction: Labeled) -> Mistake | None:
        """The label that was furthest off."""
        assert isinstance(example, TextExample)
        gold = example.label if isinstance(example.label, tuple) else ()
        wrong = set(prediction.labels) ^ set(gold)
        if not wrong:
            return None
        weight = max(abs(prediction.probabilities[label] - (label in gold)) for label in wrong)
        return Mistake(weight, shown_text(example), ", ".join(gold), ", ".join(prediction.labels))

    def label_scores(self, dev: Part, predictions: Sequence[Labeled]) -> dict[str, LabelScore]:
        """Of every label."""
        scores = precision_recall_f1(self._gold(dev.examples), self.matrix([p.labels for p in predictions]))
        return dict(zip(self.labels, scores.values(), strict=True))
