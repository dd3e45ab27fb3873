"""A text or a pair of texts gets one of several labels."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.data.examples import Example, TextExample
from bertkit.model.batch import Batch
from bertkit.tasks.metrics.classes import LabelScore, precision_recall_f1
from bertkit.tasks.metrics.table import class_scores
from bertkit.tasks.rows.classify import ClassifyRow
from bertkit.tasks.shared.calibration import confidences
from bertkit.tasks.shared.decision import Decision, Fitted, fit_abstain
from bertkit.tasks.shared.labels import balanced_weights, labels_of
from bertkit.tasks.shared.length import Seen
from bertkit.tasks.shared.losses import divergence
from bertkit.tasks.shared.text_task import LabelTask, filled, label_number, likeliest, shown_text
from bertkit.tasks.task import LossSettings, Mistake, Part, Rows, Size, Task, Window


@dataclass(frozen=True)
class Classified:
    """One label, and how likely each was; no label where the model abstains."""

    label: str | None
    probability: float  # of the likeliest label
    probabilities: Mapping[str, float]
    seen: Seen


@dataclass(frozen=True, kw_only=True)
class Classify(LabelTask):
    """Exactly one of several labels: softmax."""

    row = ClassifyRow()

    @property
    def metrics(self) -> tuple[str, ...]:
        """`f1` is the second label's, for two labels only."""
        return tuple(name for name in self.row.metrics.names if name != "f1" or len(self.labels) == 2)

    def target(self, example: TextExample) -> int | None:
        """The label's number."""
        return None if example.label is None else label_number(self.label_numbers, str(example.label), example)

    def loss_sum(self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings) -> Tensor:
        """Cross entropy: N labels in."""
        pooled, targets = self.per_text(logits, windows)
        wanted = torch.tensor(targets, device=logits.device)
        losses = F.cross_entropy(pooled, wanted, reduction="none", label_smoothing=weights.label_smoothing)
        if weights.class_weights is not None:
            losses = losses * logits.new_tensor(weights.class_weights)[wanted]
        return losses.sum()

    def fixed_targets(self, windows: Sequence[Window], size: Size, weights: LossSettings) -> tuple[Tensor, ...]:
        """A label and its weight for each sequence."""
        wanted = [window.target for window in windows]
        balance = weights.class_weights
        shares = [balance[number] if balance else 1.0 for number in wanted]
        return filled(wanted, size.sequences, 0), filled(shares, size.sequences, 0.0)

    def fixed_loss(self, logits: Tensor, batch: Batch, targets: Sequence[Tensor], smoothing: float) -> Tensor:
        """Cross entropy times weight."""
        wanted, shares = targets
        return (F.cross_entropy(logits, wanted, reduction="none", label_smoothing=smoothing) * shares).sum()

    def distance(
        self, teacher: Task, ours: Tensor, theirs: Tensor, batch: Batch, windows: Sequence[Window], temperature: float
    ) -> Tensor:
        """Divergence between the labels' probabilities of each text."""
        return divergence(self.per_text(ours, windows)[0], self.per_text(theirs, windows)[0], temperature)

    def decide(self, logits: np.ndarray, shown: Seen, decision: Decision) -> Classified:
        """The likeliest label."""
        chances = decision.class_probabilities(logits)
        best = int(chances.argmax())
        label = self.labels[best] if decision.is_sure(float(chances[best])) else None
        return Classified(label, float(chances[best]), dict(zip(self.labels, chances.tolist(), strict=True)), shown)

    def score(self, examples: Sequence[Example], predictions: Sequence[Classified]) -> dict[str, float]:
        """Accuracy, F1s, Matthews; the likeliest label counts, whether the model abstains or not."""
        return class_scores(*_gold_and_predicted(examples, predictions), self.labels)

    def calibration_table(self, dev: Part, outputs: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Logits of texts, and the numbers of their labels."""
        return self.text_logits(dev, outputs), np.array([own[0].target for own in dev.windows])

    def fit_decision(self, dev: Part, outputs: Rows, abstain: float | None = None) -> Fitted:
        """The temperature, and on request the probability from which on answers are correct often enough."""
        fitted, table = super().fit_decision(dev, outputs), self.calibration_table(dev, outputs)
        return fitted if abstain is None else _with_abstain(fitted, *table, abstain)

    def class_weights(self, counts: Mapping[str, int], examples: int) -> tuple[float, ...]:
        """All labels together weigh the same."""
        return balanced_weights(counts, self.labels)

    def prior(self, train: Part, weights: LossSettings) -> tuple[float, ...]:
        """The logarithm of each label's share."""
        counts, rows = labels_of(train.examples), len(train.examples)
        balance = weights.class_weights or (1.0,) * len(self.labels)
        shares = [weight * counts.get(label, 0) for label, weight in zip(self.labels, balance, strict=True)]
        smooth = weights.label_smoothing / len(shares)
        shares = [share / sum(shares) * (1 - weights.label_smoothing) + smooth for share in shares]
        return tuple(math.log(max(share, 0.5 / rows)) for share in shares)

    def answers(self, example: Example, prediction: Classified, decision: Decision) -> list[tuple[str, str]]:
        """The label and the likeliest one."""
        assert isinstance(example, TextExample)
        return [(str(example.label), likeliest(prediction.probabilities))]

    def mistake(self, example: Example, prediction: Classified) -> Mistake | None:
        """How much likelier the wrong label was."""
        assert isinstance(example, TextExample)
        predicted = likeliest(prediction.probabilities)
        if predicted == example.label:
            return None
        weight = prediction.probability - prediction.probabilities.get(str(example.label), 0.0)
        return Mistake(weight, shown_text(example), str(example.label), predicted)

    def label_scores(self, dev: Part, predictions: Sequence[Classified]) -> dict[str, LabelScore]:
        """Of every label."""
        found = precision_recall_f1(*_gold_and_predicted(dev.examples, predictions), self.labels)
        return {str(label): scores for label, scores in found.items()}


def _gold_and_predicted(examples: Sequence[Example], predictions: Sequence[Classified]) -> tuple[list[str], list[str]]:
    gold = [str(example.label) for example in examples if isinstance(example, TextExample)]
    return gold, [likeliest(prediction.probabilities) for prediction in predictions]


def _with_abstain(fitted: Fitted, logits: np.ndarray, gold: np.ndarray, abstain: float) -> Fitted:
    decision = fitted.decision
    sure = fit_abstain(*confidences(decision.class_probabilities(logits), gold), abstain)
    if sure is None:
        note = f"no sureness makes {abstain:.1%} of the answers right: all are given"
        return replace(fitted, notes=(*fitted.notes, note))
    note = f"answers are given from a probability of {sure:.3f} on, to be right {abstain:.1%} of the time"
    return replace(fitted, decision=replace(decision, abstain=sure), notes=(*fitted.notes, note))
