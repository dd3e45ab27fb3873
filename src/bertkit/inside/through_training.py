"""`bertkit look --runs`: what a model knows at each checkpoint of its training, as curves over steps.

At every checkpoint: how many heads of each kind there are, which words fill the blanks, and, with annotated sentences,
what a linear probe reads off each layer. So one sees when heads find their neighbors, and when syntax appears.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit.errors import RequestError
from bertkit.files import whole_file
from bertkit.inside.look.heads import catalogue
from bertkit.inside.look.reading import read
from bertkit.inside.probes.data import ProbeData, ProbeSettings, read_probe_files
from bertkit.inside.probes.labels import fit_and_predict, label_task
from bertkit.inside.probes.word_vectors import tokenize_sentences, word_vectors
from bertkit.predict.bert import Bert, load
from bertkit.pretraining.samples import BLANK, SENTENCES, fill_samples
from bertkit.progress import ShowProgress, silent
from bertkit.report.chart import COUNT_AXIS, LINEAR_AXIS, ZERO_AXIS, Line, Point, chart
from bertkit.report.page import JsonResult, PageResult, render_page
from bertkit.train.records import read_records
from bertkit.train.report import filled_table
from bertkit.train.runs import Run, read_progress

KINDS = {"same_word": "other occurrences of the same word", "itself": "the token itself", "first": "the first token"}
KINDS |= {"next": "the next token", "previous": "the previous token", "separator": "separators"}
SENTENCES_PROBED = 1000  # that a probe is trained on at every checkpoint; more give a smoother curve


@dataclass(frozen=True)
class CheckpointView:
    """What was measured at one checkpoint."""

    step: int
    heads: dict[str, int]  # how many of each kind
    filled: tuple[dict[str, Any], ...]  # {"text": ..., "words": [...]}, a line of metrics.jsonl
    accuracy: tuple[float, ...] | None = None  # of a probe at the embeddings and every layer


@dataclass(frozen=True)
class Course(PageResult, JsonResult):
    """The measurements from the first kept checkpoint to the last."""

    title: str
    along: str  # what is counted: steps, or models of a list
    stages: tuple[CheckpointView, ...]
    held_out: dict[str, list[Point]] = field(default_factory=dict)  # from the run's own records
    notes: tuple[str, ...] = ()

    @property
    def html(self) -> str:
        """The whole page as HTML."""
        return course_page(self)

    def save(self, path: Path | str) -> None:
        """Write the page, and beside it the numbers as .json."""
        path = Path(path)
        with whole_file(json_path(path)) as draft:
            draft.write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n", "utf-8", "replace")
        super().save(path)

    def __str__(self) -> str:
        return "\n".join(course_lines(self))


def json_path(page: Path) -> Path:
    """The path of the JSON file that is written next to a page."""
    if page.suffix.lower() == ".json":
        raise RequestError(f"{page}: name a page, such as {page.with_suffix('.html')}; the numbers go beside it")
    return page.with_suffix(".json")


def course_lines(course: Course) -> Iterator[str]:
    """A line for each checkpoint: its heads, the best layer of its probe."""
    kinds = _kinds(course)
    probed = "  best layer" if course.stages[0].accuracy else ""
    yield f"{course.along:>8}  " + "  ".join(f"{kind.replace('_', ' '):>9}" for kind in kinds) + probed
    for stage in course.stages:
        counts = "  ".join(f"{stage.heads.get(kind, 0):9}" for kind in kinds)
        best = f"{_best(stage):>6}: {max(stage.accuracy):.1%}" if stage.accuracy else ""
        yield f"{stage.step:8,}  {counts}{best}"
    yield from course.notes


def _best(stage: CheckpointView) -> int:
    accuracy = stage.accuracy or (0.0,)
    return max(range(len(accuracy)), key=accuracy.__getitem__)


def _kinds(course: Course) -> list[str]:
    """Kinds of heads that occur, the most frequent at the end first."""
    last = course.stages[-1].heads
    return sorted(
        {kind for stage in course.stages for kind in stage.heads}, key=lambda kind: (-last.get(kind, 0), kind)
    )


def course_page(course: Course) -> str:
    """The whole page as text."""
    first, last = course.stages[0].step, course.stages[-1].step
    samples = [{"step": stage.step, "filled": list(stage.filled)} for stage in course.stages]
    return render_page(
        "through_training.html",
        title=f"{course.title}: through training",
        summary=f"{len(course.stages)} checkpoints, {course.along} {first:,} to {last:,}.",
        notes=course.notes,
        probes=list(_probe_charts(course)),
        heads=list(_head_charts(course)),
        held_out=list(_held_out_charts(course)),
        along=course.along,
        filled=filled_table(samples),
    )


def _probe_charts(course: Course) -> Iterator[str]:
    probed = [(stage.step, stage.accuracy) for stage in course.stages if stage.accuracy]
    if not probed:
        return
    lines = [
        Line("best layer", [(step, 100 * max(layers)) for step, layers in probed]),
        Line("last layer", [(step, 100 * layers[-1]) for step, layers in probed], "second"),
        Line("embeddings", [(step, 100 * layers[0]) for step, layers in probed], "faint"),
    ]
    yield chart("Accuracy of part-of-speech probes", lines, unit="%", along=course.along)
    best = [(stage.step, float(_best(stage))) for stage in course.stages if stage.accuracy]
    yield chart("Best layer", [Line("", best)], axis=COUNT_AXIS, along=course.along)


def _head_charts(course: Course) -> Iterator[str]:
    for kind in _kinds(course):
        points = [(stage.step, float(stage.heads.get(kind, 0))) for stage in course.stages]
        name = KINDS.get(kind, kind)
        yield chart(f"Heads: {name}", [Line("", points)], axis=COUNT_AXIS, along=course.along)


def _held_out_charts(course: Course) -> Iterator[str]:
    for name, points in course.held_out.items():
        share = name.endswith("_right")
        shown = [(step, 100 * value if share else value) for step, value in points]
        title = name.replace("_", " ")
        yield chart(
            title, [Line("", shown, "second")], unit="%" if share else "", axis=ZERO_AXIS if share else LINEAR_AXIS
        )


@dataclass(frozen=True)
class Moment:
    """A model during training: its step, or its number in a list of models."""

    step: int
    folder: Path


@dataclass(frozen=True, kw_only=True)
class CourseSettings:
    """What is measured at every checkpoint."""

    texts: tuple[str, ...] = SENTENCES  # blanks in them are filled; heads are named by all of them
    probe: tuple[Path, ...] = ()  # CoNLL-U files: probes train on all but the last and are tested on the last
    sentences: int = SENTENCES_PROBED
    seed: int = 0


def find_moments(folders: Sequence[Path | str]) -> list[Moment]:
    """The checkpoints of a run's folder, or model folders in the order they are given; two or more."""
    paths = [Path(folder) for folder in folders]
    if len(paths) > 1:
        return [Moment(number, path) for number, path in enumerate(paths, start=1)]
    [folder] = paths
    if not folder.is_dir():
        raise RequestError(f"{folder} is not a folder; give the --out of bertkit pretrain")
    kept = Run(folder).checkpoints()
    if len(kept) < 2:
        has = f"has one checkpoint, {kept[0].name}" if kept else "has no checkpoints"
        raise RequestError(
            f"{folder} {has}; a course needs two or more: pre-train with keep=20 and a smaller save_every, "
            "or name model folders in order, each with --runs"
        )
    return [Moment(read_progress(path).step, path / "model") for path in kept]


def through_training(
    folders: Sequence[Path | str], settings: CourseSettings | None = None, *, show: ShowProgress = silent
) -> Course:
    """Look at every checkpoint of a run, or at a list of models."""
    settings, moments = settings or CourseSettings(), find_moments(folders)
    data = _probe_data(settings)
    records = read_records(Run(Path(folders[0])).metrics)
    alone = len(folders) == 1
    stages = []
    with show("looking at checkpoints", len(moments)) as meter:
        for done, moment in enumerate(moments, start=1):
            stages.append(_stage(moment, settings, data))
            meter.update(done, {"step": moment.step})
    return Course(
        title=Path(folders[0]).absolute().name if alone else f"{len(moments)} models",
        along="step" if alone else "model",
        stages=tuple(stages),
        held_out=records.evaluated() if alone else {},
        notes=() if data is None else data.notes,
    )


def _probe_data(settings: CourseSettings) -> ProbeData | None:
    if not settings.probe:
        return None
    return read_probe_files(settings.probe, _probing(settings))


def _probing(settings: CourseSettings) -> ProbeSettings:
    return ProbeSettings(what="pos", sentences=settings.sentences, seed=settings.seed)


def _stage(moment: Moment, settings: CourseSettings, data: ProbeData | None) -> CheckpointView:
    bert = load(moment.folder)
    texts = [text.replace(BLANK, bert.tokenizer.mask_token) for text in settings.texts]
    kinds = Counter(head.kind for head in catalogue(read(bert, text) for text in texts))
    filled = fill_samples(bert.model, bert.tokenizer, settings.texts) if bert.model.fills else []
    accuracy = None if data is None else probe_accuracy(bert, data, _probing(settings))
    return CheckpointView(moment.step, dict(kinds), tuple(filled), accuracy)


def probe_accuracy(bert: Bert, data: ProbeData, settings: ProbeSettings) -> tuple[float, ...]:
    """Accuracy of a linear probe on the embeddings and on every layer: `bertkit probe` without its baselines."""
    sides = data.train, data.test
    cut = [tokenize_sentences(bert, [sentence.words for sentence in side]) for side in sides]
    train, test = ([side[n] for n in own.kept] for side, own in zip(sides, cut, strict=True))
    fold: Callable[[str], str] = str.lower if bert.tokenizer.lowercase else str
    task = label_task(train, test, settings.seed, fold)
    vectors = word_vectors(bert, cut[0]), word_vectors(bert, cut[1])
    _, right, _ = fit_and_predict(task, vectors, settings, "plain", silent)
    return tuple(right[0].tolist())
