"""What each task is scored by: gold first, prediction second, floats from 0 to 1 or -1 to 1 out."""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.tasks.metrics.classes import (
    AVERAGES,
    Labels,
    LabelScore,
    accuracy,
    averaged_f1,
    f1_of,
    label_f1,
    matthews,
    mean_average_precision,
    precision_recall_f1,
)
from bertkit.tasks.metrics.correlation import Numbers, check_lengths, finite, pearson, spearman
from bertkit.tasks.metrics.spans import span_scores

_ERRORS = frozenset({"mean_squared_error", "mean_absolute_error", "loss"})


def is_better(metric: str, new: float, old: float) -> bool:
    """Whether `new` beats `old`: more is better, but for errors and the loss; not-a-number beats nothing."""
    return math.isfinite(new) and (not math.isfinite(old) or (new < old if metric in _ERRORS else new > old))


def class_scores(gold: Labels, predicted: Labels, labels: Sequence[Hashable]) -> dict[str, float]:
    """Every metric of `classify`, macro over the labels seen; `f1` is the second label's, for two labels only."""
    scores = precision_recall_f1(gold, predicted).values()
    found = {"accuracy": accuracy(gold, predicted), "matthews": matthews(gold, predicted)}
    found |= {f"{average}_f1": averaged_f1(scores, average) for average in ("macro", "weighted")}
    return found | ({"f1": f1_of(gold, predicted, labels[1])} if len(labels) == 2 else {})


def multilabel_scores(
    gold: NDArray[Any], predicted: NDArray[Any], probabilities: NDArray[Any] | None = None
) -> dict[str, float]:
    """Every metric of `multilabel`, from matrices [examples, labels]; the last with probabilities only."""
    scores = precision_recall_f1(gold, predicted).values()
    found = {f"{average}_f1": averaged_f1(scores, average) for average in AVERAGES}
    found["accuracy"] = accuracy(gold, predicted)
    if probabilities is not None:
        found["mean_average_precision"] = mean_average_precision(gold, probabilities)
    return found


def number_scores(gold: Numbers, predicted: Numbers) -> dict[str, float]:
    """Every metric of `regress`."""
    check_lengths(gold, predicted)
    off = finite(gold) - finite(predicted)
    return {
        "pearson": pearson(gold, predicted),
        "spearman": spearman(gold, predicted),
        "mean_squared_error": float(np.mean(off**2)),
        "mean_absolute_error": float(np.mean(np.abs(off))),
    }


def tag_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str | None = None
) -> dict[str, float]:
    """Every metric of `tag`: `accuracy` counts words; spans by CoNLL's reading, unless the scheme is plain."""
    words = [[tag for tags in side for tag in tags] for side in (gold, predicted)]
    found = {"accuracy": accuracy(*words)}
    if scheme == "plain":
        return found | {"macro_f1": label_f1(*words)}
    scores = span_scores(gold, predicted)
    total = sum(scores.values(), LabelScore(0, 0, 0))
    macro = averaged_f1(scores.values(), "macro")
    return found | {"f1": total.f1, "precision": total.precision, "recall": total.recall, "macro_f1": macro}


def choice_scores(gold: Sequence[int], predicted: Sequence[int]) -> dict[str, float]:
    """Every metric of `choose`."""
    return {"accuracy": accuracy(gold, predicted)}
