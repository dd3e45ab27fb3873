"""A text or a pair of texts gets a label (classify), any number of labels (multilabel), or a number (regress)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.data.examples import Example, TextExample
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.tasks.decision import Decision
from bertkit.tasks.length import LengthPolicy, Seen, check_policy, refuse_too_long, seen, sequences, take
from bertkit.tasks.metrics.table import class_scores, multilabel_scores, number_scores
from bertkit.tasks.task import LossSettings, Window, by_example
from bertkit.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Classified:
    """One label, and how likely each was; no label where the model would rather not say."""

    label: str | None
    probability: float  # of the likeliest label
    probabilities: Mapping[str, float]
    seen: Seen


@dataclass(frozen=True)
class Labelled:
    """Every label whose probability is over its threshold."""

    labels: tuple[str, ...]
    probabilities: Mapping[str, float]
    seen: Seen


@dataclass(frozen=True)
class Rated:
    """A number."""

    value: float
    seen: Seen


@dataclass(frozen=True, kw_only=True)
class TextTask:
    """What the three tasks share: a text or a pair goes through the model in one sequence, or in windows."""

    tokenizer: Tokenizer
    limit: int  # tokens in a sequence
    length: LengthPolicy = LengthPolicy()  # noqa: RUF009 - frozen
    labels: tuple[str, ...] = ()
    head = "classify"
    name = "classify"

    def __post_init__(self) -> None:
        check_policy(self.name, self.length, self.limit)

    @property
    def joins_windows(self) -> bool:
        """Whether a text's windows are joined to one vector before the head."""
        return self.length.kind == "hierarchical"

    def windows(self, example: Example, number: int) -> list[Window]:
        """One sequence, or one for each window of a long text."""
        assert isinstance(example, TextExample)
        encoding = self.tokenizer.encode(example.text, example.pair)
        chosen = sequences(encoding, self.limit, self.length)
        refuse_too_long(example.place, len(encoding), len(chosen), self.limit, "split it, or use length=head-tail")
        target, shown = self.target(example), seen(encoding, chosen)
        return [Window(*take(encoding, places), number, target, shown) for places in chosen]

    def targets(self, windows: Sequence[Window]) -> int:
        """One answer for each text."""
        return len({window.example for window in windows})

    def target(self, example: TextExample) -> Any:
        """What the loss asks for; None when unlabelled."""
        raise NotImplementedError

    def per_text(self, logits_NK: Tensor, windows: Sequence[Window]) -> tuple[Tensor, list[Any]]:
        """Each text's logits, pooled over its windows, and its target."""
        counts, targets = [], []
        for _, run in groupby(windows, key=lambda window: window.example):
            own = list(run)
            counts.append(len(own))
            targets.append(own[0].target)
        if len(counts) == len(windows):
            return logits_NK, targets
        lengths = torch.tensor(counts, device=logits_NK.device)
        return torch.segment_reduce(logits_NK, self.length.pool, lengths=lengths), targets

    def pooled(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """The twin of `per_text` for one text, on arrays."""
        stacked = np.stack(rows).astype(np.float64)
        pooled: np.ndarray = stacked.max(axis=0) if self.length.pool == "max" else stacked.mean(axis=0)
        return pooled


@dataclass(frozen=True, kw_only=True)
class Classify(TextTask):
    """Exactly one of several labels: softmax."""

    main = "accuracy"

    @property
    def outputs(self) -> int:
        """A number for each label."""
        return len(self.labels)

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {label: number for number, label in enumerate(self.labels)}

    def target(self, example: TextExample) -> int | None:
        """The label's number."""
        return None if example.label is None else _known(self._numbers, str(example.label), example)

    def loss(
        self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings
    ) -> tuple[Tensor, Tensor]:
        """Cross entropy: N labels in."""
        pooled, targets = self.per_text(logits, windows)
        wanted = torch.tensor(targets, device=logits.device)
        losses = F.cross_entropy(pooled, wanted, reduction="none", label_smoothing=weights.label_smoothing)
        if weights.class_weights is not None:
            losses = losses * logits.new_tensor(weights.class_weights)[wanted]
        return losses.sum(), torch.tensor(len(targets), device=logits.device)

    def decode(
        self, examples: Sequence[Example], windows: Sequence[Window], outputs: Sequence[np.ndarray], decision: Decision
    ) -> list[Classified]:
        """The likeliest label of each text."""
        return [
            self._decode_one(self.pooled(rows), own[0].detail, decision)
            for _, own, rows in by_example(examples, windows, outputs)
        ]

    def _decode_one(self, logits: np.ndarray, shown: Seen, decision: Decision) -> Classified:
        chances = decision.class_probabilities(logits)
        best = int(chances.argmax())
        label = self.labels[best] if decision.is_sure(float(chances[best])) else None
        return Classified(label, float(chances[best]), dict(zip(self.labels, chances.tolist(), strict=True)), shown)

    def score(self, examples: Sequence[Example], predictions: Sequence[Classified]) -> dict[str, float]:
        """Accuracy, F1s, Matthews; the likeliest label counts, whether it would be said or not."""
        gold = [str(example.label) for example in examples if isinstance(example, TextExample)]
        said = [max(p.probabilities, key=p.probabilities.__getitem__) for p in predictions]
        return class_scores(gold, said, self.labels)


@dataclass(frozen=True, kw_only=True)
class Multilabel(TextTask):
    """Any number of labels, each by itself: sigmoid."""

    main = "macro_f1"
    name = "multilabel"

    @property
    def outputs(self) -> int:
        """A number for each label."""
        return len(self.labels)

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {label: number for number, label in enumerate(self.labels)}

    def target(self, example: TextExample) -> tuple[int, ...] | None:
        """The numbers of the labels."""
        if example.label is None:
            return None
        assert isinstance(example.label, tuple)
        return tuple(_known(self._numbers, label, example) for label in example.label)

    def loss(
        self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings
    ) -> tuple[Tensor, Tensor]:
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
        return losses.mean(dim=1).sum(), torch.tensor(len(targets), device=logits.device)

    def decode(
        self, examples: Sequence[Example], windows: Sequence[Window], outputs: Sequence[np.ndarray], decision: Decision
    ) -> list[Labelled]:
        """Every label over its threshold."""
        return [
            self._decode_one(self.pooled(rows), own[0].detail, decision)
            for _, own, rows in by_example(examples, windows, outputs)
        ]

    def _decode_one(self, logits: np.ndarray, shown: Seen, decision: Decision) -> Labelled:
        chances = decision.label_probabilities(logits)
        said = decision.says_yes(chances, self.labels)
        chosen = tuple(label for label, yes in zip(self.labels, said, strict=True) if yes)
        return Labelled(chosen, dict(zip(self.labels, chances.tolist(), strict=True)), shown)

    def score(self, examples: Sequence[Example], predictions: Sequence[Labelled]) -> dict[str, float]:
        """F1s over labels, exact matches, mean average precision."""
        gold = self.matrix([example.label for example in examples if isinstance(example, TextExample)])
        chances = np.array([list(prediction.probabilities.values()) for prediction in predictions])
        return multilabel_scores(gold, self.matrix([p.labels for p in predictions]), chances)

    def matrix(self, rows: Sequence[Any]) -> np.ndarray:
        """[texts, labels] of yes and no."""
        found = np.zeros((len(rows), len(self.labels)), dtype=bool)
        for row, labels in enumerate(rows):
            found[row, [self._numbers[label] for label in labels or ()]] = True
        return found


@dataclass(frozen=True, kw_only=True)
class Regress(TextTask):
    """A number. The model learns it in units of `spread` around `center`, so that any scale is learned as well."""

    center: float = 0.0
    spread: float = 1.0
    main = "spearman"
    name = "regress"
    outputs = 1

    def target(self, example: TextExample) -> float | None:
        """The number in the model's units."""
        return None if example.label is None else (float(_number(example)) - self.center) / self.spread

    def loss(
        self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings
    ) -> tuple[Tensor, Tensor]:
        """Squared error: N 1 in."""
        pooled, targets = self.per_text(logits, windows)
        wanted = torch.tensor(targets, device=logits.device, dtype=pooled.dtype)
        return F.mse_loss(pooled.squeeze(-1), wanted, reduction="sum"), torch.tensor(len(targets), device=logits.device)

    def decode(
        self, examples: Sequence[Example], windows: Sequence[Window], outputs: Sequence[np.ndarray], decision: Decision
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


def balanced_weights(counts: Mapping[str, int], labels: Sequence[str]) -> tuple[float, ...]:
    """A weight for each label so that all together weigh the same; 1 on average over the data.

    >>> balanced_weights({"no": 3, "yes": 1}, ["no", "yes"])
    (0.6666666666666666, 2.0)
    """
    total = sum(counts.values())
    return tuple(total / (len(labels) * max(counts.get(label, 0), 1)) for label in labels)


def _known(numbers: Mapping[str, int], label: str, example: TextExample) -> int:
    if label not in numbers:
        shown = ", ".join(list(numbers)[:20])
        raise RequestError(
            f"{example.place}: the label '{label}' is not among those of the training data ({shown}); "
            "correct it, or add examples of it to the training data"
        )
    return numbers[label]


def _number(example: TextExample) -> float:
    if not isinstance(example.label, int | float):
        raise RequestError(f"{example.place}: the label {example.label!r} is not a number")
    return float(example.label)
