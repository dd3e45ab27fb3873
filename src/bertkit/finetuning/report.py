"""The report of a fine-tuning run, an HTML page: scores, curves, calibration, the worst mistakes."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.checkpoint.bundled import BUNDLED, model_name
from bertkit.finetuning.check.label_errors import LabelError
from bertkit.finetuning.prepare import Prepared
from bertkit.finetuning.result import DecidedDev, FineTuned
from bertkit.finetuning.run_state import SETTINGS
from bertkit.report.chart import ZERO_AXIS, Bar, Line, chart, curves, smoothed
from bertkit.report.page import REPORT_FILE, render_page, save_page
from bertkit.tasks.metrics.classes import LabelScore, confusion_matrix
from bertkit.tasks.metrics.intervals import Interval, score_intervals
from bertkit.tasks.shared.calibration import confidences, reliability
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.task import Dataset, HeadOutputs, Prediction, Task
from bertkit.train.records import Records, number, read_records
from bertkit.train.report import evaluation_table, format_duration

if TYPE_CHECKING:
    from bertkit.finetuning.explore.features import Doubts  # imports scikit-learn

MAX_ROWS = 25  # mistakes, and doubtful labels
SHOWN_ROWS = 10  # of these without a click
MAX_LABELS = 40  # in a confusion matrix


@dataclass(frozen=True)
class Evaluated:
    """The content of the page besides the files in the run's folder."""

    prepared: Prepared
    result: FineTuned
    decided: DecidedDev
    doubts: "Doubts | None" = None  # labels that are probably wrong

    @property
    def task(self) -> Task:
        """The task."""
        return self.prepared.task

    @property
    def dev(self) -> Dataset:
        """The data that the scores are of."""
        return self.prepared.dev

    @cached_property
    def predictions(self) -> list[Prediction]:
        """The saved model's prediction for each dev example."""
        return self._decoded(self.decided.outputs, self.decided.decision)

    @cached_property
    def baseline(self) -> Mapping[str, float]:
        """The scores of the best answer that ignores the text; empty if the task has none."""
        constant = self.task.constant_outputs(self.prepared.train)
        if constant is None:
            return {}
        rows = [np.broadcast_to(np.array(constant, np.float32), row.shape) for row in self.decided.outputs]
        return self.task.score(self.dev.examples, self._decoded(rows, Decision()))

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """The 95 % interval of each metric over the dev examples; none for generated texts, which take too long."""
        examples, predictions = self.dev.examples, self.predictions
        if self.task.row.generates:
            return {}

        def score(chosen: Sequence[int]) -> dict[str, float]:
            return self.task.score([examples[n] for n in chosen], [predictions[n] for n in chosen])

        return score_intervals(score, len(examples), self.result.scores)

    def _decoded(self, outputs: HeadOutputs, decision: Decision) -> list[Prediction]:
        return self.task.decode(self.dev.examples, self.dev.flat, outputs, decision)


def write_report(folder: Path, content: Evaluated) -> Path:
    """Write `report.html` to a run's folder."""
    save_page(report_page(folder, content), folder / REPORT_FILE)
    return folder / REPORT_FILE


def report_page(folder: Path, content: Evaluated) -> str:
    """The page as HTML."""
    run, records = _run(folder), read_records(folder / "metrics.jsonl")
    result, task, doubts = content.result, content.task, content.doubts
    start = run.get("from")
    title = f"{task.name}: {BUNDLED if start is None else model_name(Path(start))}"
    return render_page(
        "finetuning.html",
        title=title + (f" on {Path(str(run['train'])).name}" if run.get("train") else ""),
        about=list(_about(folder, run, content, records)),
        collapsed=result.collapsed,
        metric=result.metric,
        scores=_score_rows(content),
        baseline=bool(content.baseline),
        notes=result.notes,
        learning=list(_curves(records, result.metric)),
        evaluations=evaluation_table(records, best=result.best_step),
        labels=[_label_row(*pair) for pair in task.label_scores(content.dev, content.predictions).items()],
        matrix=_confusion(content),
        calibration=list(_calibration(content)),
        errors=_errors(content),
        doubts=[_doubt_row(error, text) for error, text in doubts.found[:MAX_ROWS]] if doubts else [],
        checked=f"{doubts.checked if doubts else 0:,}",
        shown_rows=SHOWN_ROWS,
        settings=json.dumps(run, indent=2) if run else "",
    )


def _about(folder: Path, run: Mapping[str, Any], content: Evaluated, records: Records) -> Iterable[str]:
    """What was trained on what, how long, and where it is."""
    result, prepared = content.result, content.prepared
    held_out = run.get("dev") in (None, "None")
    dev = "held-out examples" if held_out else f"examples of {Path(str(run['dev'])).name}"
    yield f"{len(prepared.train.examples):,} training examples"
    yield f"scores on {len(prepared.dev.examples):,} {dev}"
    seconds = number(records.training[-1].get("seconds")) if records.training else math.nan
    yield f"{result.steps:,} steps" + (f" in {format_duration(seconds)}" if math.isfinite(seconds) else "")
    yield f"weights of step {result.best_step:,}"
    yield f"folder {folder.absolute().name}"


def _score_rows(content: Evaluated) -> list[tuple[str, str, str, str]]:
    """(metric, score, interval, score of a constant answer), the watched metric first."""
    scores, watched = content.result.scores, content.result.metric
    order = sorted(scores, key=lambda name: name != watched)
    return [
        (name, f"{scores[name]:.4g}", _interval(content, name), _score(content.baseline.get(name))) for name in order
    ]


def _interval(content: Evaluated, name: str) -> str:
    low, high = content.intervals.get(name, (math.nan, math.nan))
    bounds = "–".join(f"{bound:.3f}" if abs(bound) < 10 else f"{bound:.4g}" for bound in (low, high))
    return bounds.replace("-", "−") if math.isfinite(low) else "–"


def _score(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.4g}"


def _curves(records: Records, metric: str) -> Iterable[str]:
    """The losses, the watched metric, and the learning rate; lines of one or two points say nothing."""
    evaluated = records.evaluated()
    for points in records.curves("loss").values():
        lines = [Line("", points, "faint"), Line("training", smoothed(points))]
        yield from curves("Loss", [*lines, Line("dev", evaluated.get("loss", []), "second")])
    if metric in evaluated and metric != "loss":
        yield from curves(f"{metric} on dev", [Line("", evaluated[metric], "second")])
    yield from curves("Learning rate", [Line("", records.curve("rate"))], axis=ZERO_AXIS)


def _label_row(label: str, score: LabelScore) -> tuple[str, ...]:
    return str(label), f"{score.precision:.3f}", f"{score.recall:.3f}", f"{score.f1:.3f}", f"{score.gold:,}"


def _confusion(content: Evaluated) -> list[tuple[str, list[tuple[int, str, bool]]]]:
    """(label, [(count, fraction of the row, whether correct)]); empty for tasks without classes, or with very many."""
    task = content.task
    if not task.row.one_label_per_text or len(task.labels) > MAX_LABELS:
        return []
    pairs = zip(content.dev.examples, content.predictions, strict=True)
    answers = [answer for pair in pairs for answer in task.answer_pairs(*pair, Decision())]
    gold, predicted = ([answer[side] for answer in answers] for side in (0, 1))
    rows = confusion_matrix(gold, predicted, task.labels).tolist()
    return [
        (label, [(count, f"{count / max(sum(row), 1):.3f}", n == column) for column, count in enumerate(row)])
        for n, (label, row) in enumerate(zip(task.labels, rows, strict=True))
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
    return [(text, truth, predicted, f"{error:.3g}", place) for error, text, truth, predicted, place in rows]


def mistakes(content: Evaluated) -> Iterable[tuple[float, str, str, str, str]]:
    """(weight, text, gold, prediction, location) of each mistake on dev."""
    for example, prediction in zip(content.dev.examples, content.predictions, strict=True):
        mistake = content.task.mistake(example, prediction)
        if mistake is not None:
            yield mistake.weight, mistake.text, mistake.truth, mistake.predicted, str(example.location)


def _doubt_row(error: LabelError, text: str) -> tuple[str, ...]:
    probabilities = f"{error.given_probability:.3f}", f"{error.suggested_probability:.3f}"
    return text, error.given, error.suggested, *probabilities


def _run(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
