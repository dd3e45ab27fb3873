"""Metrics of labels: accuracy, precision, recall, averaged F1, Matthews correlation, average precision.

They equal scikit-learn's, whose checks of its arguments take far longer than counting: a report scores 200 resamples.
Labels are one for each example, or a boolean matrix [examples, labels] if an example may have several.
A division by zero gives 0.0, not NaN, so that a metric can always be compared.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import RequestError
from bertkit.settings import pick
from bertkit.tasks.metrics.correlation import Numbers, check_lengths, finite

Labels = Sequence[Hashable] | NDArray[Any]


@dataclass(frozen=True)
class LabelScore:
    """The counts of one label; counts of several labels can be added."""

    correct: int
    predicted: int
    gold: int

    def __add__(self, other: "LabelScore") -> "LabelScore":
        return LabelScore(self.correct + other.correct, self.predicted + other.predicted, self.gold + other.gold)

    @property
    def precision(self) -> float:
        """Correct / predicted."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Correct / gold."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.correct / (self.predicted + self.gold) if self.predicted + self.gold else 0.0


def accuracy(gold: Labels, predicted: Labels) -> float:
    """The fraction of correct examples; of a matrix, of rows that are equal."""
    check_lengths(gold, predicted)
    if _is_matrix(gold):
        return float((np.asarray(gold) == np.asarray(predicted)).all(axis=1).mean())
    correct = sum(1 for truth, guess in zip(_list(gold), _list(predicted), strict=True) if truth == guess)
    return correct / len(gold)


def confusion_matrix(gold: Labels, predicted: Labels, labels: Sequence[Hashable]) -> NDArray[np.int64]:
    """Counts [gold label, predicted label]; a label that is not in `labels` is refused."""
    check_lengths(gold, predicted)
    index = {label: row for row, label in enumerate(labels)}
    unknown = [label for label in (*_list(gold), *_list(predicted)) if label not in index]
    if unknown:
        raise RequestError(f"label {unknown[0]!r} is not one of: {', '.join(map(str, labels))}")
    counts = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(counts, tuple([index[label] for label in _list(side)] for side in (gold, predicted)), 1)
    return counts


def precision_recall_f1(
    gold: Labels, predicted: Labels, labels: Sequence[Hashable] | None = None
) -> dict[Any, LabelScore]:
    """The score of each of `labels`; None: of all labels on either side, sorted, or of the columns of a matrix."""
    check_lengths(gold, predicted)
    if _is_matrix(gold):
        return _matrix_scores(np.asarray(gold, dtype=bool), np.asarray(predicted, dtype=bool), labels)
    correct, guesses, truths = _counts(gold, predicted)
    names = sorted({*guesses, *truths}) if labels is None else labels
    return {name: LabelScore(correct[name], guesses[name], truths[name]) for name in names}


def averaged_f1(scores: Iterable[LabelScore], average: str = "micro") -> float:
    """The F1 over several labels: `micro` from summed counts, `macro` the mean, `weighted` the mean by gold count."""
    return pick(AVERAGES, average, "average")(list(scores))


def label_f1(
    gold: Labels, predicted: Labels, labels: Sequence[Hashable] | None = None, *, average: str = "macro"
) -> float:
    """The F1 over all labels, by an average of AVERAGES."""
    return averaged_f1(precision_recall_f1(gold, predicted, labels).values(), average)


def f1_of(gold: Labels, predicted: Labels, label: Hashable) -> float:
    """The F1 of one label, such as the positive one of MRPC and QQP."""
    return precision_recall_f1(gold, predicted).get(label, LabelScore(0, 0, 0)).f1


def matthews(gold: Labels, predicted: Labels) -> float:
    """The Matthews correlation for any number of labels; 0.0 if one side is constant."""
    check_lengths(gold, predicted)
    correct, guesses, truths = _counts(gold, predicted)
    size, agreement = len(gold), sum(guesses[name] * truths[name] for name in guesses)
    spread = math.prod(size**2 - sum(count**2 for count in side.values()) for side in (guesses, truths))
    return (correct.total() * size - agreement) / math.sqrt(spread) if spread else 0.0


def average_precision(gold: Labels, scores: Numbers) -> float:
    """The area under the precision-recall curve, as a step function; `gold` is boolean. 0.0 without positives."""
    check_lengths(gold, scores)
    values = finite(scores)
    order = np.argsort(-values, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(values[order])), len(order) - 1)  # the last example of each score
    hits = np.asarray(gold, dtype=bool)[order].cumsum()[ends]
    return float((np.diff(hits, prepend=0) * hits / (ends + 1)).sum() / hits[-1]) if hits[-1] else 0.0


def mean_average_precision(gold: NDArray[Any], scores: NDArray[Any]) -> float:
    """The mean of `average_precision` over the columns of a matrix [examples, labels]."""
    return float(np.mean([average_precision(gold[:, n], scores[:, n]) for n in range(gold.shape[1])]))


def _is_matrix(labels: Labels) -> bool:
    return isinstance(labels, np.ndarray) and labels.ndim == 2


def _list(labels: Labels) -> list[Any]:
    return labels.tolist() if isinstance(labels, np.ndarray) else list(labels)


def _counts(gold: Labels, predicted: Labels) -> tuple[Counter[Any], Counter[Any], Counter[Any]]:
    """How often each label is correct, predicted and true."""
    truths, guesses = _list(gold), _list(predicted)
    correct = Counter(truth for truth, guess in zip(truths, guesses, strict=True) if truth == guess)
    return correct, Counter(guesses), Counter(truths)


def _matrix_scores(
    gold: NDArray[np.bool_], predicted: NDArray[np.bool_], labels: Sequence[Hashable] | None
) -> dict[Any, LabelScore]:
    names = range(gold.shape[1]) if labels is None else labels
    counts = ((gold & predicted).sum(axis=0), predicted.sum(axis=0), gold.sum(axis=0))
    return {name: LabelScore(*map(int, row)) for name, *row in zip(names, *counts, strict=True)}


def _mean(values: Sequence[float], weights: Sequence[int]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights) if sum(weights) else 0.0


AVERAGES: dict[str, Callable[[list[LabelScore]], float]] = {
    "micro": lambda scores: sum(scores, LabelScore(0, 0, 0)).f1,
    "macro": lambda scores: _mean([score.f1 for score in scores], [1] * len(scores)),
    "weighted": lambda scores: _mean([score.f1 for score in scores], [score.gold for score in scores]),
}
