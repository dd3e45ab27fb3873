"""The report of a probe as a table, and as an HTML page with charts and trees."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len

from bertkit.files import whole_folder
from bertkit.inside.probes.data import WHATS
from bertkit.inside.probes.labels import LabelReport
from bertkit.inside.probes.structure import DrawnTree, StructureReport, StructureScore
from bertkit.inside.probes.trees import Edge, tree_edges
from bertkit.report.chart import ZERO_AXIS, Line, Shape, chart, circle, drawing, label, path
from bertkit.report.page import REPORT_FILE, render_page
from bertkit.tasks.metrics.intervals import wilson

PUBLISHED = (
    "Published for Penn Treebank (Hewitt & Manning 2019): BERT-base layer 7 at rank 128, UUAS 79.9 and Spearman .85; "
    "a chain of neighbors 48.9. Universal Dependencies has other trees, so its scores are not comparable with these."
)
LETTER_WIDTH, WORD_GAP = 8.4, 18  # pixels, at font size 14
ARC_STEP, MAX_LEVELS = 17, 9  # pixels per level of arcs; wider arcs share the highest level
SPACE_WIDTH, SPACE_HEIGHT, MARGIN = 440, 300, 34  # pixels of the drawing of the probe's space
CORRECT, WRONG, MISSED = "third", "second", "main"  # classes of the style sheet


@dataclass(frozen=True)
class ProbeTable:
    """A title, column names, rows of cells, and notes."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def probe_table(report: LabelReport | StructureReport) -> ProbeTable:
    """A row for each layer, and the baselines."""
    counts = tuple(f"{name}: {count}" for name, count in report.counts.items())
    if isinstance(report, StructureReport):
        return _structure_table(report, (*counts, *report.notes))
    return _label_table(report, (*counts, *report.notes))


def probe_page(report: LabelReport | StructureReport, model: str) -> str:
    """The page as HTML."""
    drawn = report.drawn if isinstance(report, StructureReport) else ()
    return render_page(
        "probe.html",
        title=f"{model}: bertkit probe",
        heading=f"{WHATS[report.what][:1].upper()}{WHATS[report.what][1:]} in {model}, layer by layer",
        table=probe_table(report),
        charts=list(_charts(report)),
        layer=report.best.layer,
        trees=[(" ".join(tree.words), draw_tree(tree), draw_space(tree)) for tree in drawn],
    )


def write_probe(report: LabelReport | StructureReport, model: str, out: Path) -> None:
    """Write `report.html` and `result.json` to a new folder, atomically."""
    with whole_folder(out) as folder:
        page = probe_page(report, model)
        (folder / REPORT_FILE).write_text(page, encoding="utf-8", errors="replace")
        text = json.dumps({"model": model, **report.to_json()}, indent=1, ensure_ascii=False)
        (folder / "result.json").write_text(text + "\n", encoding="utf-8", errors="replace")


def _label_table(report: LabelReport, notes: Sequence[str]) -> ProbeTable:
    names = report.what == "ner"
    scores = ("accuracy", "interval", *(("F1",) if names else ()))
    columns = ("layer", *scores, "control", "selectivity", "untrained", "layers so far")
    rows = [
        (
            str(layer.layer),
            _percent(layer.accuracy),
            "–".join(map(_percent, wilson(layer.accuracy, report.rows["test"]))),
            *((_percent(layer.f1),) if names else ()),
            *map(_percent, (layer.control, layer.selectivity, layer.random, layer.cumulative)),
        )
        for layer in report.layers
    ]
    baselines = (
        f"without an encoder: {_percent(report.by_word)} by each word's most frequent label, "
        f"{_percent(report.majority)} by the most frequent one of {len(report.labels)}",
        f"center of gravity: layer {report.gravity:.2f} by the mixture's weights, "
        + ("none: the layers add nothing" if report.expected is None else f"{report.expected:.2f} by what each adds"),
    )
    rows_used = f"tested on {report.rows['test']:,}, trained on {report.rows['train']:,}"
    title = f"{WHATS[report.what]}: {rows_used}; percent, intervals of 95 %"
    return ProbeTable(title, columns, tuple(rows), (*baselines, *notes))


def _structure_table(report: StructureReport, notes: Sequence[str]) -> ProbeTable:
    columns = ("layer", "UUAS", "Spearman", "root", "depth Spearman", "untrained UUAS", "untrained Spearman")
    rows = [
        (*_structure_row(str(layer.layer), layer), _percent(random.uuas), _decimal(random.distance_spearman))
        for layer, random in zip(report.layers, report.random, strict=True)
    ]
    rows.append((*_structure_row("chain", report.chain), "", ""))
    title = f"{WHATS['structure']}: structural probes of rank {report.rank}; UUAS and root in percent"
    title += "; ± is the 95 % interval"
    return ProbeTable(title, columns, tuple(rows), (*notes, PUBLISHED))


def _structure_row(name: str, score: StructureScore) -> tuple[str, ...]:
    return (
        name,
        _percent(score.uuas) + _margin(score, "uuas", _percent),
        _decimal(score.distance_spearman) + _margin(score, "distance_spearman", _decimal),
        _percent(score.root),
        _decimal(score.depth_spearman),
    )


def _margin(score: StructureScore, name: str, text: Callable[[float], str]) -> str:
    """Half the interval of a score, which is empty where it has none."""
    if name not in score.intervals:
        return ""
    return f" ±{text(getattr(score, name) - score.intervals[name][0])}"


def _charts(report: LabelReport | StructureReport) -> Iterator[str]:
    if isinstance(report, LabelReport):
        lines = [_line("probe", [layer.accuracy for layer in report.layers])]
        lines.append(_line("control task", [layer.control for layer in report.layers], "second"))
        lines.append(_line("untrained encoder", [layer.random for layer in report.layers], "faint"))
        lines.append(_line("each word's most frequent label", [report.by_word] * len(report.layers), "third"))
        yield chart("Accuracy", lines, unit="%", axis=ZERO_AXIS, along="layer")
        yield chart("Selectivity", [_line("", [layer.selectivity for layer in report.layers])], unit="%", along="layer")
        mixed = _line("mixture of layers 0 to this one", [layer.cumulative for layer in report.layers])
        alone = _line("layer alone", [layer.accuracy for layer in report.layers], "faint")
        yield chart("Cumulative accuracy", [mixed, alone], unit="%", along="layer")
        yield chart("Weight in the mixture", [_line("", report.mix)], unit="%", axis=ZERO_AXIS, along="layer")
        return
    for title, name in (("Edges found (UUAS)", "uuas"), ("Roots found", "root")):
        yield chart(title, _structure_lines(report, name), unit="%", axis=ZERO_AXIS, along="layer")
    for title, name in (("Distances, Spearman", "distance_spearman"), ("Depths, Spearman", "depth_spearman")):
        yield chart(title, _structure_lines(report, name), unit="× 100", axis=ZERO_AXIS, along="layer")


def _structure_lines(report: StructureReport, name: str) -> list[Line]:
    sides = {"probe": report.layers, "untrained encoder": report.random, "chain": (report.chain,) * len(report.layers)}
    kinds = ("main", "faint", "second")
    return [
        _line(title, [getattr(score, name) or 0.0 for score in scores], kind)
        for (title, scores), kind in zip(sides.items(), kinds, strict=True)
    ]


def _line(name: str, values: Sequence[float], kind: str = "main") -> Line:
    return Line(name, [(layer, 100 * value) for layer, value in enumerate(values)], kind)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _decimal(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def draw_tree(tree: DrawnTree) -> str:
    """An SVG: gold edges above the words, the probe's below; correct, missed and wrong edges differ in color."""
    centers, width = _centers(tree.words)
    gold, predicted = tree_edges(tree.heads, tree.counted), set(tree.predicted)
    above, below = _height(gold), _height(predicted)
    baseline = above + 18
    parts = [_arc(edge, centers, above, -1, CORRECT if edge in predicted else MISSED) for edge in sorted(gold)]
    parts += [_arc(edge, centers, baseline + 8, 1, CORRECT if edge in gold else WRONG) for edge in sorted(predicted)]
    for word, center in zip(tree.words, centers, strict=True):
        parts.append(label("x", center, baseline, word))
    return drawing(f"trees of: {' '.join(tree.words)}", width, baseline + 12 + below, parts)


def draw_space(tree: DrawnTree) -> str:
    """An SVG: the words in the probe's space with the gold edges; blue edges are too long, orange ones too short."""
    points = _to_pixels(tree.points)
    edges = [edge for edge in tree.lengths if edge[0] in tree.counted and edge[1] in tree.counted]
    parts = [shape for word, head, length in edges for shape in _edge(points[word], points[head], length)]
    for number in tree.counted:
        x, y = points[number]
        kind = "second" if tree.heads[number] == -1 else "main"
        parts += [circle(kind, x, y, radius=3), label("x", x, y - 6, tree.words[number])]
    return drawing(f"probe's space of: {' '.join(tree.words)}", SPACE_WIDTH, SPACE_HEIGHT, parts)


def _centers(words: Sequence[str]) -> tuple[list[float], float]:
    """The horizontal center of each word, and the total width; wide characters count twice."""
    centers, x = [], float(WORD_GAP)
    for word in words:
        width = max(cell_len(word), 1) * LETTER_WIDTH
        centers.append(x + width / 2)
        x += width + WORD_GAP
    return centers, x


def _height(edges: Iterable[Edge]) -> int:
    return ARC_STEP * min(max((b - a for a, b in edges), default=1), MAX_LEVELS) + 4


def _arc(edge: Edge, centers: Sequence[float], start: float, direction: int, kind: str) -> Shape:
    left, right = (centers[word] for word in edge)
    # A cubic Bézier curve reaches three quarters of the height of its control points.
    handle = start + direction * ARC_STEP * min(edge[1] - edge[0], MAX_LEVELS) * 4 / 3
    curve = f"M{left:.1f} {start}C{left:.1f} {handle:.1f} {right:.1f} {handle:.1f} {right:.1f} {start}"
    return path(f"line {kind}", curve)


def _to_pixels(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points as pixels, with the same scale in both directions."""
    xs, ys = zip(*points, strict=True)
    scale = min(
        (SPACE_WIDTH - 2 * MARGIN) / max(max(xs) - min(xs), 1e-6),
        (SPACE_HEIGHT - 2 * MARGIN) / max(max(ys) - min(ys), 1e-6),
    )
    middle_x, middle_y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    return [(SPACE_WIDTH / 2 + (x - middle_x) * scale, SPACE_HEIGHT / 2 - (y - middle_y) * scale) for x, y in points]


def _edge(start: tuple[float, float], end: tuple[float, float], length: float) -> tuple[Shape, Shape]:
    """A gray line and over it the error in color: opaque at length 0 or 2, transparent at the correct length 1."""
    error = max(-1.0, min(1.0, length - 1))
    line = f"M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}"
    color, tooltip = "main" if error > 0 else "second", f"squared length {length:.2f}"
    return path("grid", line), path(f"line {color}", line, opacity=f"{abs(error):.2f}", tooltip=tooltip)
