"""A fine-tuning run as one HTML page: curves, scores by label, calibration, the worst errors."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertkit.finetuning.check.label_errors import LabelError
from bertkit.report.chart import ZERO_AXIS, Bar, Line, chart, smoothed
from bertkit.report.page import REPORT_FILE, render_page, save_page
from bertkit.tasks.calibration import confidences, reliability
from bertkit.tasks.decision import Decision
from bertkit.tasks.metrics.classes import LabelScore, confusion_matrix
from bertkit.tasks.task import Part, Prediction, Task
from bertkit.train.records import read_records

MAX_ROWS = 25  # of errors and doubts
MAX_LABELS = 40  # in a confusion matrix


@dataclass(frozen=True)
class Evaluated:
    """What the page is made of besides the run's folder."""

    task: Task
    dev: Part
    predictions: Sequence[Prediction]
    scores: Mapping[str, float]
    messages: Sequence[str] = ()
    doubts: Sequence[tuple[LabelError, str]] = ()  # with the text


def write_report(folder: Path, found: Evaluated) -> Path:
    """Make `report.html` in a run's folder."""
    save_page(report_page(folder, found), folder / REPORT_FILE)
    return folder / REPORT_FILE


def report_page(folder: Path, found: Evaluated) -> str:
    """The whole page as text."""
    return render_page(
        "finetuning.html",
        title=folder.absolute().name,
        task=found.task.name,
        examples=f"{len(found.dev.examples):,}",
        facts=[(f"{value:.4g}", name) for name, value in found.scores.items()],
        messages=found.messages,
        learning=list(_curves(folder)),
        labels=[
            _label_row(label, score) for label, score in found.task.label_scores(found.dev, found.predictions).items()
        ],
        matrix=_confusion(found),
        calibration=list(_calibration(found)),
        errors=_errors(found),
        doubts=[_doubt_row(error, text) for error, text in found.doubts[:MAX_ROWS]],
        settings=_settings(folder),
    )


def _curves(folder: Path) -> Iterable[str]:
    records = read_records(folder / "metrics.jsonl")
    evaluated = records.evaluated()
    for points in records.curves("loss").values():
        lines = [Line("", points, "faint"), Line("training", smoothed(points))]
        yield chart("Loss", [*lines, Line("dev", evaluated.pop("loss", []), "second")])
    for name, points in evaluated.items():
        yield chart(f"Dev {name}", [Line("", points, "second")])
    yield chart("Learning rate", [Line("", records.curve("rate"))], axis=ZERO_AXIS)


def _label_row(label: str, score: LabelScore) -> tuple[str, ...]:
    return str(label), f"{score.precision:.3f}", f"{score.recall:.3f}", f"{score.f1:.3f}", f"{score.gold:,}"


def _confusion(found: Evaluated) -> list[tuple[str, list[tuple[int, str]]]]:
    """Each label with a row of (count, share of the row); nothing for tasks without classes, or with very many."""
    task = found.task
    if not task.row.one_label_per_text or len(task.labels) > MAX_LABELS:
        return []
    pairs = zip(found.dev.examples, found.predictions, strict=True)
    answers = [answer for pair in pairs for answer in task.answers(*pair, Decision())]
    gold, predicted = ([answer[side] for answer in answers] for side in (0, 1))
    rows = confusion_matrix(gold, predicted, task.labels).tolist()
    return [
        (label, [(count, f"{count / max(sum(row), 1):.3f}") for count in row])
        for label, row in zip(task.labels, rows, strict=True)
    ]


def _calibration(found: Evaluated) -> Iterable[str]:
    """The reliability diagram: accuracy by confidence."""
    if not found.task.row.one_label_per_text:
        return
    chances = np.array([list(p.probabilities.values()) for p in found.predictions])
    bins = reliability(*confidences(chances, np.array([own[0].target for own in found.dev.windows])))
    bars = [
        Bar(
            100 * b.low,
            100 * b.high,
            100 * b.accuracy,
            f"{b.count} at confidence {b.confidence:.2f}: {b.accuracy:.2f} correct",
        )
        for b in bins
    ]
    ideal = Line("perfectly calibrated", [(0.0, 0.0), (100.0, 100.0)], "dashed")
    yield chart("Reliability", [ideal], unit="% correct", axis=ZERO_AXIS, along="confidence, %", bars=bars)


def _errors(found: Evaluated) -> list[tuple[str, ...]]:
    rows = sorted(worst_errors(found), key=lambda row: -row[0])[:MAX_ROWS]
    return [(f"{error:.3g}", *words) for error, *words in rows]


def worst_errors(found: Evaluated) -> Iterable[tuple[float, str, str, str, str]]:
    """(weight, text, truth, prediction, place) of each wrong prediction on dev."""
    for example, prediction in zip(found.dev.examples, found.predictions, strict=True):
        error = found.task.mistake(example, prediction)
        if error is not None:
            yield error.weight, error.text, error.truth, error.predicted, str(example.place)


def _doubt_row(error: LabelError, text: str) -> tuple[str, ...]:
    probabilities = f"{error.given_probability:.3f}", f"{error.suggested_probability:.3f}"
    return text, error.given, error.suggested, *probabilities


def _settings(folder: Path) -> str:
    path = folder / "run.json"
    return json.dumps(json.loads(path.read_text(encoding="utf-8")), indent=2) if path.is_file() else ""
