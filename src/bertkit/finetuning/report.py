"""The report of a fine-tuning run, an HTML page: scores, curves, calibration, the worst mistakes."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.checkpoint.bundled import BUNDLED, model_name
from bertkit.finetuning.check.label_errors import LabelError
from bertkit.finetuning.prepare import Prepared
from bertkit.finetuning.result import DecidedDev, FineTuned
from bertkit.finetuning.run_state import SETTINGS
from bertkit.finetuning.scored import MAX_ROWS, Scored, baseline_scores, score_table, sections
from bertkit.report.chart import ZERO_AXIS, Line, curves, smoothed
from bertkit.report.page import REPORT_FILE, render_page, save_page
from bertkit.tasks.task import Task
from bertkit.train.records import Records, number, read_records
from bertkit.train.report import evaluation_table, format_duration

if TYPE_CHECKING:
    from bertkit.finetuning.explore.features import Doubts  # imports scikit-learn


@dataclass(frozen=True)
class Evaluated:
    """The content of the page besides the files in the run's folder."""

    prepared: Prepared
    result: FineTuned
    decided: DecidedDev
    doubts: "Doubts | None" = None  # labels that are probably wrong
    test: Scored | None = None

    @property
    def task(self) -> Task:
        """The task."""
        return self.prepared.task

    @cached_property
    def dev(self) -> Scored:
        """The saved model's predictions for the dev examples."""
        task, dev, result = self.task, self.prepared.dev, self.result
        predictions = task.decode(dev.examples, dev.flat, self.decided.outputs, self.decided.decision)
        baseline = baseline_scores(task, self.prepared.train, dev)
        return Scored(task, dev.examples, predictions, result.scores, result.metric, baseline)


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
        scores=score_table(content.dev),
        baseline=bool(content.dev.baseline),
        test=score_table(content.test) if content.test else [],
        optimistic=result.chosen_on_dev,
        notes=result.notes,
        learning=list(_curves(records, result.metric)),
        evaluations=evaluation_table(records, best=result.best_step),
        **sections(content.dev),
        doubts=[_doubt_row(error, text) for error, text in doubts.found[:MAX_ROWS]] if doubts else [],
        checked=f"{doubts.checked if doubts else 0:,}",
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
    if content.test:
        yield f"tested on {len(content.test.examples):,} examples"
    yield f"{result.steps:,} steps" + (f" in {format_duration(seconds)}" if math.isfinite(seconds) else "")
    if not result.finished:
        yield "stopped before its end"
    yield f"weights of step {result.best_step:,}"
    yield f"folder {folder.absolute().name}"


def _curves(records: Records, metric: str) -> Iterable[str]:
    """The losses, the watched metric, and the learning rate; lines of one or two points say nothing."""
    evaluated = records.evaluated()
    for points in records.curves("loss").values():
        lines = [Line("", points, "faint"), Line("training", smoothed(points))]
        yield from curves("Loss", [*lines, Line("dev", evaluated.get("loss", []), "second")])
    if metric in evaluated and metric != "loss":
        yield from curves(f"{metric} on dev", [Line("", evaluated[metric], "second")])
    yield from curves("Learning rate", [Line("", records.curve("rate"))], axis=ZERO_AXIS)


def _doubt_row(error: LabelError, text: str) -> tuple[str, ...]:
    probabilities = f"{error.given_probability:.3f}", f"{error.suggested_probability:.3f}"
    return text, error.given, error.suggested, *probabilities


def _run(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
