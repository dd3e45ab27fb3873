"""Classification: one of several labels for a text or a pair of texts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.data.examples import Example, TextExample
from bertkit.model.batch import Batch
from bertkit.report.tables import html_table
from bertkit.tasks.metrics.classes import LabelScore, precision_recall_f1
from bertkit.tasks.metrics.table import class_scores
from bertkit.tasks.rows.classify import ClassifyRow
from bertkit.tasks.shared.calibration import confidences
from bertkit.tasks.shared.decision import Decision, FittedDecision, fit_abstain
from bertkit.tasks.shared.labels import balanced_weights, count_labels
from bertkit.tasks.shared.length import Seen
from bertkit.tasks.shared.losses import divergence, weighted_cross_entropy
from bertkit.tasks.shared.text_task import LabelTask, display_text, label_id, likeliest, pad_to
from bertkit.tasks.task import Dataset, FixedSize, HeadOutputs, LossSettings, Mistake, Task, Window


@dataclass(frozen=True)
class Classified:
    """The label and the probability of every label; None as label if the model abstains."""

    label: str | None
    probability: float  # of the most probable label
    probabilities: Mapping[str, float]
    seen: Seen = field(repr=False)

    def _repr_html_(self) -> str:
        ranked = sorted(self.probabilities.items(), key=lambda item: -item[1])
        return html_table(("label", "probability"), ranked)


@dataclass(frozen=True, kw_only=True)
class Classify(LabelTask):
    """Exactly one of several labels, by softmax."""

    row = ClassifyRow()

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those of the row; `f1`, that of the second label, only if there are two labels."""
        return tuple(name for name in self.row.metrics.names if name != "f1" or len(self.labels) == 2)

    def target(self, example: TextExample) -> int | None:
        """The label id."""
        return None if example.label is None else label_id(self.label_ids, str(example.label), example)

    def loss_sum(self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings) -> Tensor:
        """Sum of the cross-entropies of the texts; logits are N labels."""
        pooled, targets = self.pool_windows(logits, windows)
        gold = torch.tensor(targets, device=logits.device)
        losses = F.cross_entropy(pooled, gold, reduction="none", label_smoothing=weights.label_smoothing)
        if weights.class_weights is not None:
            losses = losses * logits.new_tensor(weights.class_weights)[gold]
        return losses.sum()

    def fixed_targets(self, windows: Sequence[Window], size: FixedSize, weights: LossSettings) -> tuple[Tensor, ...]:
        """The label id and the weight of each sequence."""
        gold = [window.target for window in windows]
        class_weights = weights.class_weights or (1.0,) * len(self.labels)
        return pad_to(size.sequences, gold), pad_to(size.sequences, [class_weights[label] for label in gold])

    def fixed_loss(self, logits: Tensor, batch: Batch, targets: Sequence[Tensor], smoothing: float) -> Tensor:
        """Sum of cross-entropies times weights."""
        return weighted_cross_entropy(logits, targets, smoothing)

    def distillation_loss(
        self, teacher: Task, logits: Tensor, target: Tensor, batch: Batch, windows: Sequence[Window], temperature: float
    ) -> Tensor:
        """Sum of the divergences between the label probabilities of each text."""
        student, target = (self.pool_windows(values, windows)[0] for values in (logits, target))
        return divergence(student, target, temperature)

    def decide(self, logits: np.ndarray, seen: Seen, decision: Decision) -> Classified:
        """The most probable label."""
        probabilities = dict(zip(self.labels, decision.class_probabilities(logits).tolist(), strict=True))
        best = likeliest(probabilities)
        label = best if decision.is_confident(probabilities[best]) else None
        return Classified(label, probabilities[best], probabilities, seen)

    def score(self, examples: Sequence[Example], predictions: Sequence[Classified]) -> dict[str, float]:
        """Accuracy, F1s, Matthews correlation of the most probable labels, also where the model abstains."""
        return class_scores(*_gold_and_predicted(examples, predictions), self.labels)

    def calibration_table(self, dev: Dataset, outputs: HeadOutputs) -> tuple[np.ndarray, np.ndarray]:
        """(logits, label ids) of the texts."""
        return self.text_logits(dev, outputs), np.array([windows[0].target for windows in dev.windows])

    def fit_decision(self, dev: Dataset, outputs: HeadOutputs, abstain: float | None = None) -> FittedDecision:
        """The temperature and, if `abstain` is given, the lowest probability with that accuracy."""
        fitted, table = super().fit_decision(dev, outputs), self.calibration_table(dev, outputs)
        return fitted if abstain is None else _with_abstain(fitted, *table, abstain)

    def class_weights(self, counts: Mapping[str, int], examples: int) -> tuple[float, ...]:
        """Weights inverse to the counts of the labels."""
        return balanced_weights(counts, self.labels)

    def prior_bias(self, train: Dataset, weights: LossSettings) -> tuple[float, ...]:
        """The logarithm of each label's weighted and smoothed frequency."""
        counts, rows = count_labels(train.examples), len(train.examples)
        class_weights = weights.class_weights or (1.0,) * len(self.labels)
        mass = [weight * counts.get(label, 0) for label, weight in zip(self.labels, class_weights, strict=True)]
        smoothing = weights.label_smoothing
        frequencies = [value / sum(mass) * (1 - smoothing) + smoothing / len(mass) for value in mass]
        return tuple(math.log(max(frequency, 0.5 / rows)) for frequency in frequencies)

    def answer_pairs(self, example: Example, prediction: Classified, decision: Decision) -> list[tuple[str, str]]:
        """The gold label and the most probable one."""
        assert isinstance(example, TextExample)
        return [(str(example.label), likeliest(prediction.probabilities))]

    def mistake(self, example: Example, prediction: Classified) -> Mistake | None:
        """A wrong label, weighted by how much more probable it is than the correct one."""
        assert isinstance(example, TextExample)
        predicted = likeliest(prediction.probabilities)
        if predicted == example.label:
            return None
        weight = prediction.probability - prediction.probabilities.get(str(example.label), 0.0)
        return Mistake(weight, display_text(example), str(example.label), predicted)

    def label_scores(self, dev: Dataset, predictions: Sequence[Classified]) -> dict[str, LabelScore]:
        """Precision and recall of every label."""
        scores = precision_recall_f1(*_gold_and_predicted(dev.examples, predictions), self.labels)
        return {str(label): score for label, score in scores.items()}


def _gold_and_predicted(examples: Sequence[Example], predictions: Sequence[Classified]) -> tuple[list[str], list[str]]:
    gold = [str(example.label) for example in examples if isinstance(example, TextExample)]
    return gold, [likeliest(prediction.probabilities) for prediction in predictions]


def _with_abstain(fitted: FittedDecision, logits: np.ndarray, gold: np.ndarray, accuracy: float) -> FittedDecision:
    decision = fitted.decision
    threshold = fit_abstain(*confidences(decision.class_probabilities(logits), gold), accuracy)
    if threshold is None:
        note = f"no probability threshold reaches an accuracy of {accuracy:.1%} on dev: every text gets a label"
    else:
        note = f"labels are given from a probability of {threshold:.3f} on, for an accuracy of {accuracy:.1%} on dev"
    return replace(fitted, decision=replace(decision, abstain=threshold), notes=(*fitted.notes, note))
