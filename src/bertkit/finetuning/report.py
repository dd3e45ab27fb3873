"""The report of a fine-tuning run, an HTML page: curves, scores by label, calibration, the worst mistakes."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertkit.finetuning.check.label_errors import LabelError
from bertkit.report.chart import ZERO_AXIS, Bar, Line, chart, smoothed
from bertkit.report.page import REPORT_FILE, render_page, save_page
from bertkit.tasks.metrics.classes import LabelScore, confusion_matrix
from bertkit.tasks.shared.calibration import confidences, reliability
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.task import Dataset, Prediction, Task
from bertkit.train.records import read_records

MAX_ROWS = 25  # mistakes, and doubtful labels
MAX_LABELS = 40  # in a confusion matrix


@dataclass(frozen=True)
class Evaluated:
    """The content of the page besides the files in the run's folder."""

    task: Task
    dev: Dataset
    predictions: Sequence[Prediction]
    scores: Mapping[str, float]
    messages: Sequence[str] = ()
    doubts: Sequence[tuple[LabelError, str]] = ()  # labels that are probably wrong, with their texts


def write_report(folder: Path, content: Evaluated) -> Path:
    """Write `report.html` to a run's folder."""
    save_page(report_page(folder, content), folder / REPORT_FILE)
    return folder / REPORT_FILE


def report_page(folder: Path, content: Evaluated) -> str:
    """The page as HTML."""
    return render_page(
        "finetuning.html",
        title=folder.absolute().name,
        task=content.task.name,
        examples=f"{len(content.dev.examples):,}",
        facts=[(f"{value:.4g}", name) for name, value in content.scores.items()],
        messages=content.messages,
        learning=list(_curves(folder)),
        labels=[
            _label_row(label, score)
            for label, score in content.task.label_scores(content.dev, content.predictions).items()
        ],
        matrix=_confusion(content),
        calibration=list(_calibration(content)),
        errors=_errors(content),
        doubts=[_doubt_row(error, text) for error, text in content.doubts[:MAX_ROWS]],
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


def _confusion(content: Evaluated) -> list[tuple[str, list[tuple[int, str]]]]:
    """(label, [(count, fraction of the row)]) for each label; empty for tasks without classes, or with very many."""
    task = content.task
    if not task.row.one_label_per_text or len(task.labels) > MAX_LABELS:
        return []
    pairs = zip(content.dev.examples, content.predictions, strict=True)
    answers = [answer for pair in pairs for answer in task.answer_pairs(*pair, Decision())]
    gold, predicted = ([answer[side] for answer in answers] for side in (0, 1))
    rows = confusion_matrix(gold, predicted, task.labels).tolist()
    return [
        (label, [(count, f"{count / max(sum(row), 1):.3f}") for count in row])
        for label, row in zip(task.labels, rows, strict=True)
    ]


def _calibration(content: Evaluated) -> Iterable[str]:
    """The reliability diagram: accuracy by confidence."""
    if not content.task.row.one_label_per_text:
        return
    probabilities = np.array([list(p.probabilities.values()) for p in content.predictions])
    bins = reliability(*confidences(probabilities, np.array([windows[0].target for windows in content.dev.windows])))
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


def _errors(content: Evaluated) -> list[tuple[str, ...]]:
    rows = sorted(mistakes(content), key=lambda row: -row[0])[:MAX_ROWS]
    return [(f"{error:.3g}", *words) for error, *words in rows]


def mistakes(content: Evaluated) -> Iterable[tuple[float, str, str, str, str]]:
    """(weight, text, gold, prediction, location) of each mistake on dev."""
    for example, prediction in zip(content.dev.examples, content.predictions, strict=True):
        mistake = content.task.mistake(example, prediction)
        if mistake is not None:
            yield mistake.weight, mistake.text, mistake.truth, mistake.predicted, str(example.location)


def _doubt_row(error: LabelError, text: str) -> tuple[str, ...]:
    probabilities = f"{error.given_probability:.3f}", f"{error.suggested_probability:.3f}"
    return text, error.given, error.suggested, *probabilities


def _settings(folder: Path) -> str:
    path = folder / "run.json"
    return json.dumps(json.loads(path.read_text(encoding="utf-8")), indent=2) if path.is_file() else ""
