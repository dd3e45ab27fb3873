"""A model's predictions for labeled examples: their scores with intervals, and the parts of a report that show them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from bertkit.data.examples import Example
from bertkit.model.heads import HEADS
from bertkit.report.chart import ZERO_AXIS, Bar, Line, chart
from bertkit.report.page import render_page
from bertkit.tasks.metrics.classes import LabelScore, confusion_matrix
from bertkit.tasks.metrics.intervals import Interval, format_interval, score_intervals
from bertkit.tasks.row import Detail
from bertkit.tasks.shared.calibration import confidences, reliability
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.task import Dataset, Prediction, Task

MAX_ROWS = 25  # mistakes, and doubtful labels
SHOWN_ROWS = 10  # of these without a click
MAX_LABELS = 40  # in a confusion matrix
UPRIGHT_LABELS = 30  # characters of all its labels together; above longer ones, columns are labelled from bottom to top


@dataclass(frozen=True)
class Scored:
    """Labeled examples with a model's predictions and their scores."""

    task: Task
    examples: list[Example]
    predictions: Sequence[Prediction]
    scores: Mapping[str, float]
    metric: str  # that is shown first
    baseline: Mapping[str, float] = field(default_factory=dict)  # scores of one answer to everything, if there are any

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """The 95 % interval of each metric over the examples."""
        return score_intervals(self.task.scorer(self.examples, self.predictions), len(self.examples), self.scores)


def baseline_scores(task: Task, train: Dataset, data: Dataset) -> dict[str, float]:
    """The scores on `data` of the best answer to all of `train` that ignores the text; empty if the task has none."""
    constant = task.constant_outputs(train)
    if constant is None:
        return {}
    pooled, values = HEADS[task.head].pooled, np.array(constant, np.float32)
    rows = [values if pooled else np.broadcast_to(values, (len(window.ids), len(values))) for window in data.flat]
    return task.score(data.examples, task.decode(data.examples, data.flat, rows, Decision()))


def score_table(scored: Scored) -> list[tuple[str, str, str, str]]:
    """(metric, score, interval, score of the baseline), the main metric first."""
    scores = scored.scores
    order = sorted(scores, key=lambda name: name != scored.metric)
    return [
        (name, f"{scores[name]:.4g}", format_interval(scored.intervals.get(name)), _score(scored.baseline.get(name)))
        for name in order
    ]


def sections(scored: Scored) -> dict[str, object]:
    """What the template `scored.html` shows: labels, confusion matrix, calibration, the worst errors."""
    data = Dataset(scored.examples, [])
    return {
        "labels": [_label_row(*pair) for pair in scored.task.label_scores(data, scored.predictions).items()],
        "matrix": _confusion(scored),
        "upright": UPRIGHT_LABELS,
        "calibration": list(_calibration(scored)),
        "errors": _errors(scored),
        "shown_rows": SHOWN_ROWS,
    }


def evaluation_page(title: str, scored: Scored, notes: Sequence[str]) -> str:
    """The report of an evaluation as HTML."""
    return render_page(
        "evaluation.html",
        title=title,
        about=[scored.task.name, f"{len(scored.examples):,} {scored.task.row.example_unit}"],
        notes=notes,
        metric=scored.metric,
        scores=score_table(scored),
        baseline=bool(scored.baseline),
        **sections(scored),
    )


def mistakes(scored: Scored) -> Iterable[tuple[float, str, str, str, str]]:
    """(weight, text, gold, prediction, location) of each mistake."""
    for example, prediction in zip(scored.examples, scored.predictions, strict=True):
        mistake = scored.task.mistake(example, prediction)
        if mistake is not None:
            yield mistake.weight, mistake.text, mistake.truth, mistake.predicted, str(example.location)


def predicted_rows(scored: Scored) -> Iterator[dict[str, object]]:
    """For each example its location, texts and label, and the fields of the prediction."""
    for example, prediction in zip(scored.examples, scored.predictions, strict=True):
        gold = sorted(example.outcome) if isinstance(example.outcome, frozenset) else example.outcome
        inputs = {"location": str(example.location), "texts": example.texts, "gold": gold}
        yield {**inputs, **scored.task.row.cells(example, prediction, Detail())}


def _score(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.4g}"


def _label_row(label: str, score: LabelScore) -> tuple[str, ...]:
    return str(label), f"{score.precision:.3f}", f"{score.recall:.3f}", f"{score.f1:.3f}", f"{score.gold:,}"


def _labels(scored: Scored) -> tuple[list[str], list[str]]:
    """The gold labels and the most probable ones."""
    pairs = zip(scored.examples, scored.predictions, strict=True)
    answers = [answer for pair in pairs for answer in scored.task.answer_pairs(*pair, Decision())]
    return [gold for gold, _ in answers], [predicted for _, predicted in answers]


def _confusion(scored: Scored) -> list[tuple[str, list[tuple[int, str, bool]]]]:
    """(label, [(count, fraction of the row, whether correct)]); empty for tasks without classes, or with very many."""
    task = scored.task
    if not task.row.one_label_per_text or len(task.labels) > MAX_LABELS:
        return []
    rows = confusion_matrix(*_labels(scored), task.labels).tolist()
    return [
        (label, [(count, f"{count / max(sum(row), 1):.3f}", n == column) for column, count in enumerate(row)])
        for n, (label, row) in enumerate(zip(task.labels, rows, strict=True))
    ]


def _calibration(scored: Scored) -> Iterable[str]:
    """The reliability diagram: accuracy by confidence."""
    if not scored.task.row.one_label_per_text:
        return
    probabilities = np.array([list(prediction.probabilities.values()) for prediction in scored.predictions])
    gold = np.array([scored.task.label_ids[label] for label in _labels(scored)[0]])
    bars = [
        Bar(
            100 * b.low,
            100 * b.high,
            100 * b.accuracy,
            f"{b.count} at confidence {b.confidence:.2f}: {b.accuracy:.2f} correct",
        )
        for b in reliability(*confidences(probabilities, gold))
    ]
    ideal = Line("perfectly calibrated", [(0.0, 0.0), (100.0, 100.0)], "dashed")
    yield chart("Reliability", [ideal], unit="% correct", axis=ZERO_AXIS, along="confidence, %", bars=bars)


def _errors(scored: Scored) -> list[tuple[str, ...]]:
    rows = sorted(mistakes(scored), key=lambda row: -row[0])[:MAX_ROWS]
    return [(text, truth, predicted, f"{error:.3g}", place) for error, text, truth, predicted, place in rows]
