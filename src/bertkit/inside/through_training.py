"""`bertkit look --runs`: analyze every checkpoint of a run, as curves over steps.

At every checkpoint: the number of attention heads of each kind, predicted words for some sentences, and, with annotated
sentences, the accuracy of linear probes on each layer. The curves show when heads specialize, and when syntax appears.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit.errors import RequestError
from bertkit.files import whole_file
from bertkit.inside.look.heads import KIND_NAMES, catalogue
from bertkit.inside.look.reading import read
from bertkit.inside.probes.data import ProbeData, ProbeSettings, read_probe_files
from bertkit.inside.probes.labels import fit_and_predict, label_task
from bertkit.inside.probes.probe import tokenize_data
from bertkit.inside.probes.word_vectors import word_vectors
from bertkit.predict.bert import Bert, load
from bertkit.pretraining.samples import BLANK, SENTENCES, fill_samples
from bertkit.progress import ShowProgress, silent
from bertkit.report.chart import COUNT_AXIS, LINEAR_AXIS, MIN_POINTS, ZERO_AXIS, Line, Point, chart
from bertkit.report.page import JsonResult, PageResult, render_page
from bertkit.train.records import read_records
from bertkit.train.report import filled_table
from bertkit.train.runs import Run, read_progress

PROBE_SENTENCES = 1000  # to train probes on at every checkpoint; more give smoother curves


@dataclass(frozen=True)
class CheckpointView:
    """The measurements at one checkpoint."""

    step: int
    heads: dict[str, int]  # number of heads of each kind
    filled: tuple[dict[str, Any], ...]  # {"text": ..., "words": [...]}, a line of metrics.jsonl
    accuracy: tuple[float, ...] | None = None  # of a probe at the embeddings and every layer


@dataclass(frozen=True)
class TrainingHistory(PageResult, JsonResult):
    """The measurements at all checkpoints."""

    title: str
    along: str  # label of the horizontal axis: "step", or "model" for a list of models
    stages: tuple[CheckpointView, ...]
    held_out: dict[str, list[Point]] = field(default_factory=dict)  # from metrics.jsonl
    notes: tuple[str, ...] = ()

    @property
    def html(self) -> str:
        """The page as HTML."""
        return history_page(self)

    def save(self, path: Path | str) -> None:
        """Write the page, and the data as a .json file next to it."""
        path = Path(path)
        with whole_file(json_path(path)) as draft:
            draft.write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n", "utf-8", "replace")
        super().save(path)

    def __str__(self) -> str:
        return "\n".join(history_lines(self))


def json_path(page: Path) -> Path:
    """The path of the JSON file that is written next to a page."""
    if page.suffix.lower() == ".json":
        raise RequestError(f"{page}: name a page, such as {page.with_suffix('.html')}; the data is written next to it")
    return page.with_suffix(".json")


def history_lines(history: TrainingHistory) -> Iterator[str]:
    """A line for each checkpoint: its heads, and the best layer of its probes."""
    kinds = _kinds(history)
    probed = "  best layer" if history.stages[0].accuracy else ""
    yield f"{history.along:>8}  " + "  ".join(f"{KIND_NAMES[kind]:>13}" for kind in kinds) + probed
    for stage in history.stages:
        counts = "  ".join(f"{stage.heads.get(kind, 0):13}" for kind in kinds)
        best = f"{_best_layer(stage):>6}: {max(stage.accuracy):.1%}" if stage.accuracy else ""
        yield f"{stage.step:8,}  {counts}{best}"
    yield from history.notes


def _best_layer(stage: CheckpointView) -> int:
    accuracy = stage.accuracy or (0.0,)
    return max(range(len(accuracy)), key=accuracy.__getitem__)


def _kinds(history: TrainingHistory) -> list[str]:
    """The kinds of heads that occur, sorted by their number at the last checkpoint."""
    last = history.stages[-1].heads
    return sorted(
        {kind for stage in history.stages for kind in stage.heads}, key=lambda kind: (-last.get(kind, 0), kind)
    )


def history_page(history: TrainingHistory) -> str:
    """The page as HTML."""
    first, last = history.stages[0].step, history.stages[-1].step
    samples = [{"step": stage.step, "filled": list(stage.filled)} for stage in history.stages]
    return render_page(
        "through_training.html",
        title=f"{history.title}: through training",
        summary=f"{len(history.stages)} checkpoints, {history.along} {first:,} to {last:,}.",
        notes=history.notes,
        probes=list(_probe_charts(history)),
        heads=list(_head_charts(history)),
        held_out=list(_held_out_charts(history)),
        along=history.along,
        filled=filled_table(samples),
    )


def _probe_charts(history: TrainingHistory) -> Iterator[str]:
    probed = [(stage.step, stage.accuracy) for stage in history.stages if stage.accuracy]
    if not probed:
        return
    lines = [
        Line("best layer", [(step, 100 * max(layers)) for step, layers in probed]),
        Line("last layer", [(step, 100 * layers[-1]) for step, layers in probed], "second"),
        Line("embeddings", [(step, 100 * layers[0]) for step, layers in probed], "faint"),
    ]
    yield chart("Accuracy of part-of-speech probes", lines, unit="%", along=history.along)
    best = [(stage.step, float(_best_layer(stage))) for stage in history.stages if stage.accuracy]
    yield chart("Best layer", [Line("", best)], axis=COUNT_AXIS, along=history.along)


def _head_charts(history: TrainingHistory) -> Iterator[str]:
    lines = [
        Line(KIND_NAMES[kind], [(stage.step, float(stage.heads.get(kind, 0))) for stage in history.stages])
        for kind in _kinds(history)
    ]
    if len(history.stages) < MIN_POINTS:  # one table
        yield chart("Number of heads that look at", lines, along=history.along)
        return
    for line in lines:
        yield chart(f"Heads that look at: {line.name}", [Line("", line.points)], axis=COUNT_AXIS, along=history.along)


def _held_out_charts(history: TrainingHistory) -> Iterator[str]:
    for name, points in history.held_out.items():
        share = name.endswith("_right")
        shown = [(step, 100 * value if share else value) for step, value in points]
        title = name.replace("_", " ")
        yield chart(
            title, [Line("", shown, "second")], unit="%" if share else "", axis=ZERO_AXIS if share else LINEAR_AXIS
        )


@dataclass(frozen=True)
class CheckpointModel:
    """The model of a checkpoint with its step, or a model of a list with its number."""

    step: int
    folder: Path


@dataclass(frozen=True, kw_only=True)
class HistorySettings:
    """What is measured at every checkpoint."""

    texts: tuple[str, ...] = SENTENCES  # for the kinds of heads, and for the predicted words of their [MASK]
    probe: tuple[Path, ...] = ()  # CoNLL-U files: probes train on all but the last and are tested on the last
    sentences: int = PROBE_SENTENCES
    seed: int = 0


def find_checkpoints(folders: Sequence[Path | str]) -> list[CheckpointModel]:
    """The checkpoints of a run's folder, or the given model folders; two or more."""
    paths = [Path(folder) for folder in folders]
    if len(paths) > 1:
        return [CheckpointModel(number, path) for number, path in enumerate(paths, start=1)]
    [folder] = paths
    if not folder.is_dir():
        raise RequestError(f"{folder} is not a folder; give the --out of bertkit pretrain")
    checkpoints = Run(folder).checkpoints()
    if len(checkpoints) < 2:
        has = f"has one checkpoint, {checkpoints[0].name}" if checkpoints else "has no checkpoints"
        raise RequestError(
            f"{folder} {has}; the curves need two or more: pre-train with keep=20 and a smaller save_every, "
            "or name model folders in order, each with --runs"
        )
    return [CheckpointModel(read_progress(path).step, path / "model") for path in checkpoints]


def through_training(
    folders: Sequence[Path | str], settings: HistorySettings | None = None, *, show: ShowProgress = silent
) -> TrainingHistory:
    """Analyze every checkpoint of a run, or a list of models."""
    settings, models = settings or HistorySettings(), find_checkpoints(folders)
    data = _probe_data(settings)
    records = read_records(Run(Path(folders[0])).metrics)
    one_run = len(folders) == 1
    stages = []
    with show("analyzing checkpoints", len(models)) as meter:
        for count, model in enumerate(models, start=1):
            stages.append(_analyze(model, settings, data))
            meter.update(count, {"step": model.step})
    return TrainingHistory(
        title=Path(folders[0]).absolute().name if one_run else f"{len(models)} models",
        along="step" if one_run else "model",
        stages=tuple(stages),
        held_out=records.evaluated() if one_run else {},
        notes=() if data is None else data.notes,
    )


def _probe_data(settings: HistorySettings) -> ProbeData | None:
    if not settings.probe:
        return None
    return read_probe_files(settings.probe, _probe_settings(settings))


def _probe_settings(settings: HistorySettings) -> ProbeSettings:
    return ProbeSettings(what="pos", sentences=settings.sentences, seed=settings.seed)


def _analyze(model: CheckpointModel, settings: HistorySettings, data: ProbeData | None) -> CheckpointView:
    bert = load(model.folder)
    texts = [text.replace(BLANK, bert.tokenizer.mask_token) for text in settings.texts]
    kinds = Counter(head.kind for head in catalogue(read(bert, text) for text in texts))
    filled = fill_samples(bert.model, bert.tokenizer, settings.texts) if bert.model.fills else []
    accuracy = None if data is None else probe_accuracy(bert, data, _probe_settings(settings))
    return CheckpointView(model.step, dict(kinds), tuple(filled), accuracy)


def probe_accuracy(bert: Bert, data: ProbeData, settings: ProbeSettings) -> tuple[float, ...]:
    """Accuracy of linear probes on the embeddings and on every layer: `bertkit probe` without its baselines."""
    tokenized, train, test = tokenize_data(bert, data)
    fold: Callable[[str], str] = str.lower if bert.tokenizer.lowercase else str
    task = label_task(train, test, settings.seed, fold)
    vectors = word_vectors(bert, tokenized[0]), word_vectors(bert, tokenized[1])
    _, accuracy, _ = fit_and_predict(task, vectors, settings, "plain", silent)
    return tuple(accuracy[0].tolist())
