"""How a model changed during training: a table of lines, and one HTML page with charts and filled blanks."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertkit.errors import RequestError
from bertkit.files import whole_file
from bertkit.report.chart import COUNT, FROM_ZERO, PLAIN, Line, Point, chart
from bertkit.report.page import render_page, save_page
from bertkit.train.report import filled_table

KINDS = {"same_word": "other occurrences of the same word", "itself": "the token itself", "first": "the first token"}
KINDS |= {"next": "the next token", "previous": "the previous token", "separator": "separators"}


@dataclass(frozen=True)
class CheckpointView:
    """What was measured at one checkpoint."""

    step: int
    heads: dict[str, int]  # how many of each kind
    filled: tuple[dict[str, Any], ...]  # {"text": ..., "words": [...]}, a line of metrics.jsonl
    accuracy: tuple[float, ...] | None = None  # of a probe at the embeddings and every layer


@dataclass(frozen=True)
class Course:
    """The measurements from the first kept checkpoint to the last."""

    title: str
    along: str  # what is counted: steps, or models of a list
    stages: tuple[CheckpointView, ...]
    held_out: dict[str, list[Point]] = field(default_factory=dict)  # from the run's own records
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Everything, for a file."""
        return asdict(self)

    @property
    def html(self) -> str:
        """The whole page as HTML."""
        return course_page(self)

    def save(self, path: Path | str) -> None:
        """Write the page, and beside it the numbers as .json."""
        path = Path(path)
        with whole_file(numbers_beside(path)) as draft:
            draft.write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n", "utf-8", "replace")
        save_page(self.html, path)

    def __str__(self) -> str:
        return "\n".join(course_lines(self))


def numbers_beside(page: Path) -> Path:
    """Where the numbers of a page go."""
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
    yield chart("Best layer", [Line("", best)], axis=COUNT, along=course.along)


def _head_charts(course: Course) -> Iterator[str]:
    for kind in _kinds(course):
        points = [(stage.step, float(stage.heads.get(kind, 0))) for stage in course.stages]
        name = KINDS.get(kind, kind)
        yield chart(f"Heads: {name}", [Line("", points)], axis=COUNT, along=course.along)


def _held_out_charts(course: Course) -> Iterator[str]:
    for name, points in course.held_out.items():
        share = name.endswith("_right")
        shown = [(step, 100 * value if share else value) for step, value in points]
        title = name.replace("_", " ")
        yield chart(title, [Line("", shown, "second")], unit="%" if share else "", axis=FROM_ZERO if share else PLAIN)
