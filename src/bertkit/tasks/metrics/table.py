"""All metrics of each kind of task as a dictionary of floats; gold comes first, predictions second."""

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

# what a metric says, in a few words
MEANINGS = {
    "accuracy": "share of correct answers",
    "matthews": "Matthews correlation: 1 perfect, 0 guessing",
    "micro_f1": "F1 over all labels together",
    "macro_f1": "mean F1 of the labels",
    "weighted_f1": "mean F1 of the labels, by their frequency",
    "f1": "harmonic mean of precision and recall",
    "precision": "share of what is predicted that is correct",
    "recall": "share of what is there that is found",
    "mean_average_precision": "mean area under the precision-recall curves",
    "pearson": "linear correlation: 1 perfect, 0 guessing",
    "spearman": "correlation of ranks: 1 perfect, 0 guessing",
    "mean_squared_error": "lower is better",
    "mean_absolute_error": "lower is better",
    "exact_match": "share of texts that are equal to the true ones",
    "answerable_f1": "F1 of the questions that have an answer",
    "answerable_exact_match": "exact match of the questions that have an answer",
    "unanswerable_accuracy": "share of the questions without an answer that are left unanswered",
    "token_f1": "F1 of the words of a text",
    "bleu": "runs of words shared with the target, 0 to 100",
    "chrf": "runs of characters shared with the target, 0 to 100",
    "ndcg@10": "discounted relevance of the first 10, of the best possible",
    "mrr@10": "mean of 1 / rank of the first relevant text, if among the first 10",
    "map": "mean average precision over all ranks",
    "recall@10": "share of the relevant texts among the first 10",
    "recall@100": "share of the relevant texts among the first 100",
    "loss": "what training minimizes; lower is better",
}
_LOWER_IS_BETTER = frozenset({"mean_squared_error", "mean_absolute_error", "loss"})


def is_better(metric: str, new: float, old: float) -> bool:
    """Whether `new` is better than `old`: higher, or lower for errors and the loss. NaN is never better."""
    return math.isfinite(new) and (not math.isfinite(old) or (new < old if metric in _LOWER_IS_BETTER else new > old))


def class_scores(gold: Labels, predicted: Labels, labels: Sequence[Hashable]) -> dict[str, float]:
    """Every metric of `classify`; `f1` is that of the second label and is there only for two labels."""
    scores = precision_recall_f1(gold, predicted).values()
    metrics = {"accuracy": accuracy(gold, predicted), "matthews": matthews(gold, predicted)}
    metrics |= {f"{average}_f1": averaged_f1(scores, average) for average in ("macro", "weighted")}
    return metrics | ({"f1": f1_of(gold, predicted, labels[1])} if len(labels) == 2 else {})


def multilabel_scores(
    gold: NDArray[Any], predicted: NDArray[Any], probabilities: NDArray[Any] | None = None
) -> dict[str, float]:
    """Every metric of `multilabel`, from matrices [examples, labels]; mean average precision needs probabilities."""
    scores = precision_recall_f1(gold, predicted).values()
    metrics = {f"{average}_f1": averaged_f1(scores, average) for average in AVERAGES}
    metrics["accuracy"] = accuracy(gold, predicted)
    if probabilities is not None:
        metrics["mean_average_precision"] = mean_average_precision(gold, probabilities)
    return metrics


def number_scores(gold: Numbers, predicted: Numbers) -> dict[str, float]:
    """Every metric of `regress`."""
    check_lengths(gold, predicted)
    errors = finite(gold) - finite(predicted)
    return {
        "pearson": pearson(gold, predicted),
        "spearman": spearman(gold, predicted),
        "mean_squared_error": float(np.mean(errors**2)),
        "mean_absolute_error": float(np.mean(np.abs(errors))),
    }


def tag_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str | None = None
) -> dict[str, float]:
    """Every metric of `tag`: accuracy over words, the others over spans, or over words if the scheme is plain."""
    words = [[tag for tags in side for tag in tags] for side in (gold, predicted)]
    metrics = {"accuracy": accuracy(*words)}
    if scheme == "plain":
        return metrics | {"macro_f1": label_f1(*words)}
    scores = span_scores(gold, predicted)
    total = sum(scores.values(), LabelScore(0, 0, 0))
    macro = averaged_f1(scores.values(), "macro")
    return metrics | {"f1": total.f1, "precision": total.precision, "recall": total.recall, "macro_f1": macro}


def choice_scores(gold: Sequence[int], predicted: Sequence[int]) -> dict[str, float]:
    """Every metric of `choose`."""
    return {"accuracy": accuracy(gold, predicted)}
