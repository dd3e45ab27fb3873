"""A fine-tuning run as one HTML page: curves, what is taken for what, how sure it is, where it is wrong."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from bertkit.data.examples import TextExample
from bertkit.files import whole_file
from bertkit.finetuning.check.label_errors import LabelError
from bertkit.tasks.calibration import confidences, reliability
from bertkit.tasks.classify import Classify
from bertkit.tasks.metrics.classes import confusion_matrix
from bertkit.tasks.task import Part, Prediction, Task
from bertkit.train.records import read_records
from bertkit.train.report.chart import FROM_ZERO, WIDTH, Line, chart, smoothed
from bertkit.train.report.page import POLICY, REPORT, STYLE

MOST_ROWS = 25  # of errors and doubts
MOST_LABELS = 40  # in a confusion matrix: more are no picture
OWN_STYLE = """
.matrix td{min-width:0;text-align:right;font-variant-numeric:tabular-nums}
.matrix td:first-child{min-width:0;text-align:left}
.text{overflow-wrap:anywhere;max-width:640px}
.bar{fill:var(--main);opacity:.55}.even{stroke:var(--soft);stroke-dasharray:4 4}
"""


@dataclass(frozen=True)
class Evaluated:
    """What the page is made of besides the run's folder."""

    task: Task
    dev: Part
    predictions: Sequence[Prediction]
    scores: Mapping[str, float]
    said: Sequence[str] = ()
    doubts: Sequence[tuple[LabelError, str]] = ()  # with the text


def write_report(folder: Path, found: Evaluated) -> Path:
    """Make `report.html` in a run's folder."""
    target = folder / REPORT
    with whole_file(target) as draft:
        draft.write_text(report_page(folder, found), encoding="utf-8", errors="replace")
    return target


def report_page(folder: Path, found: Evaluated) -> str:
    """The whole page as text; nothing on it comes from elsewhere, no script runs."""
    title = folder.absolute().name
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(found.task.name)}, {len(found.dev.examples):,} dev examples</p>',
        _facts(found.scores),
        "".join(f"<p>{escape(sentence)}</p>" for sentence in found.said),
        f'<h2>Learning</h2><div class="charts">{"".join(_curves(folder))}</div>',
        *_labels(found),
        *_sureness(found),
        *_errors(found),
        *_doubts(found.doubts),
        f"<h2>Settings</h2><pre>{escape(_settings(folder))}</pre>",
    ]
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
    head += '<meta name="viewport" content="width=device-width,initial-scale=1">'
    head += f"<title>{escape(title)}</title><style>{STYLE}{OWN_STYLE}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{"".join(sections)}\n</body></html>\n'


def _facts(scores: Mapping[str, float]) -> str:
    cells = (f"<div><b>{value:.4g}</b><span>{escape(name)}</span></div>" for name, value in scores.items())
    return f'<div class="facts">{"".join(cells)}</div>'


def _curves(folder: Path) -> Iterable[str]:
    records = read_records(folder / "metrics.jsonl")
    evaluated = records.evaluated()
    for points in records.curves("loss").values():
        lines = [Line("", points, "faint"), Line("training", smoothed(points))]
        yield chart("Loss", [*lines, Line("dev", evaluated.pop("loss", []), "second")])
    for name, points in evaluated.items():
        yield chart(f"Dev {name}", [Line("", points, "second")])
    yield chart("Learning rate", [Line("", records.curve("rate"))], axis=FROM_ZERO)


def _labels(found: Evaluated) -> Iterable[str]:
    """Precision, recall and F1 for each label, and what is taken for what."""
    scores = found.task.label_scores(found.dev, found.predictions)
    if not scores:
        return
    head = ("label", "precision", "recall", "F1", "in dev")
    rows: list[tuple[str, ...]] = [
        (str(label), f"{s.precision:.3f}", f"{s.recall:.3f}", f"{s.f1:.3f}", f"{s.gold:,}")
        for label, s in scores.items()
    ]
    yield "<h2>Labels</h2>" + table(head, rows)
    if isinstance(found.task, Classify) and len(found.task.labels) <= MOST_LABELS:
        matrix = confusion_matrix(*_gold_and_said(found), found.task.labels)
        rows = [(label, *map(str, row)) for label, row in zip(found.task.labels, matrix.tolist(), strict=True)]
        yield "<h2>What is taken for what</h2><p class='soft'>A row for each true label, a column for each said.</p>"
        yield table(("", *found.task.labels), rows, kind="matrix")


def _gold_and_said(found: Evaluated) -> tuple[list[str], list[str]]:
    gold = [str(e.label) for e in found.dev.examples if isinstance(e, TextExample)]
    return gold, [max(p.probabilities, key=p.probabilities.__getitem__) for p in found.predictions]


def _sureness(found: Evaluated) -> Iterable[str]:
    """The reliability diagram: how sure against how often right."""
    if not isinstance(found.task, Classify):
        return
    chances = np.array([list(p.probabilities.values()) for p in found.predictions])
    bins = reliability(*confidences(chances, np.array([own[0].target for own in found.dev.windows])))
    bars = "".join(
        f'<rect class="bar" x="{40 + 360 * b.low:.1f}" y="{200 - 180 * b.accuracy:.1f}" '
        f'width="{360 * (b.high - b.low):.1f}" height="{180 * b.accuracy:.1f}">'
        f"<title>{b.count} of about {b.confidence:.2f} sure: {b.accuracy:.2f} right</title></rect>"
        for b in bins
    )
    frame = (
        '<line class="axis" x1="40" y1="200" x2="400" y2="200"/><line class="even" x1="40" y1="200" x2="400" y2="20"/>'
    )
    texts = '<text class="x" x="220" y="216">how sure, 0 to 1</text><text x="44" y="16">how often right, 0 to 1</text>'
    svg = f'<svg viewBox="0 0 {WIDTH} 220" role="img" aria-label="reliability">{frame}{bars}{texts}</svg>'
    yield f'<h2>Does it know when it is right?</h2><div class="charts"><figure>{svg}</figure></div>'


def _errors(found: Evaluated) -> Iterable[str]:
    rows = sorted(worst_errors(found), key=lambda row: -row[0])[:MOST_ROWS]
    if rows:
        shown = [(f"{weight:.3g}", *words) for weight, *words in rows]
        yield "<h2>The worst errors</h2>" + table(("how wrong", "text", "is", "was said", "where"), shown)


def worst_errors(found: Evaluated) -> Iterable[tuple[float, str, str, str, str]]:
    """(how wrong, text, truth, what was said, where) of each dev example that was got wrong."""
    for example, prediction in zip(found.dev.examples, found.predictions, strict=True):
        error = found.task.mistake(example, prediction)
        if error is not None:
            yield error.weight, error.text, error.truth, error.predicted, str(example.place)


def _doubts(doubts: Sequence[tuple[LabelError, str]]) -> Iterable[str]:
    if not doubts:
        return
    rows = [
        (text, error.given, error.suggested, f"{error.given_probability:.3f}", f"{error.suggested_probability:.3f}")
        for error, text in doubts[:MOST_ROWS]
    ]
    yield "<h2>Labels of the training data that are perhaps wrong</h2>"
    yield "<p class='soft'>Judged by a model that did not see them: features of the untaught encoder, five folds.</p>"
    yield table(("text", "given", "perhaps", "p(given)", "p(perhaps)"), rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Rows of text as an HTML table."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f'<td class="text">{escape(cell)}</td>' for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table class="{kind}"><tr>{top}</tr>{body}</table></div>'


def _settings(folder: Path) -> str:
    path = folder / "run.json"
    return json.dumps(json.loads(path.read_text(encoding="utf-8")), indent=2) if path.is_file() else ""
