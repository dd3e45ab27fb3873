"""The report of a pre-training run as one HTML page: curves, predicted words, the recipe."""

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from bertkit.errors import RequestError
from bertkit.report.chart import COUNT_AXIS, LINEAR_AXIS, LOG_AXIS, ZERO_AXIS, Line, Point, curves, finite, smoothed
from bertkit.report.page import REPORT_FILE, render_page, save_page
from bertkit.train.loss import Loss
from bertkit.train.records import CODE_FILE, Records, number, read_records

MAX_COLUMNS = 6  # of the table of predicted words: first, last, and some between
MAX_EVALUATIONS = 20  # rows of the table of evaluations
MAX_WORDS = 3  # for each [MASK]
CHARTED_SUFFIXES = ("_loss", "_right", "_perplexity")  # metrics that have charts of their own
DETECTION_LINES = {"f1": "second", "precision": "main", "recall": "faint"}  # metric -> class of its line
PERCENT_SUFFIXES = ("_right", *(f"_{name}" for name in DETECTION_LINES))


def write_report(run_folder: Path, losses: Iterable[Loss] = ()) -> Path:
    """Write `report.html` from a run's metrics.jsonl, settings.toml and code.json; missing parts are left out."""
    run_folder = Path(run_folder)
    if not run_folder.is_dir():
        raise RequestError(f"{run_folder} is not a run's folder; give the --out of bertkit pretrain")
    page = report_page(
        run_folder,
        read_records(run_folder / "metrics.jsonl", losses),
        recipe=_read_text(run_folder / "settings.toml"),
        code=_read_code(run_folder / CODE_FILE),
    )
    save_page(page, run_folder / REPORT_FILE)
    return run_folder / REPORT_FILE


def report_page(folder: Path, records: Records, *, recipe: str, code: Mapping[str, str]) -> str:
    """The page as HTML."""
    return render_page(
        "run.html",
        title=_title(folder, recipe),
        about=_about(folder, recipe, records),
        versions=" · ".join(f"{name} {value}" for name, value in code.items()) or "Its code version was not recorded.",
        facts=_facts(records),
        evaluations=evaluation_table(records),
        learning=list(_learning(records)),
        filled=filled_table(records.samples),
        hardware=list(_hardware(records)),
        recipe=recipe,
    )


def evaluation_table(records: Records, best: int | None = None) -> dict[str, Any]:
    """The scores on held-out data, a row for each of at most 20 evaluations; `best` is the step to mark."""
    lines = _evenly_spaced(records.evaluations, MAX_EVALUATIONS)
    tables = [line["evaluation"] if isinstance(line["evaluation"], dict) else {} for line in lines]
    names = list(dict.fromkeys(name for table in tables for name in table))
    rows = [
        (f"{number(line['step']):,.0f}", [_format_score(number(table.get(name))) for name in names])
        for line, table in zip(lines, tables, strict=True)
    ]
    return {"names": [records.title(name) for name in names], "rows": rows, "best": f"{best:,}" if best else ""}


def filled_table(samples: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[tuple[str, list[list[str]]]]]:
    """The steps of a few columns, and a row for each [MASK]: its text and its most probable words at each step."""
    shown = _evenly_spaced(samples, MAX_COLUMNS)
    columns = [_predicted_words(line) for line in shown]
    blanks = dict.fromkeys(blank for column in columns for blank in column)
    rows = [(blank[0], [column.get(blank, [])[:MAX_WORDS] for column in columns]) for blank in blanks]
    return [f"{number(line['step']):,.0f}" for line in shown], rows


def _title(folder: Path, recipe: str) -> str:
    """The model's shape, or the run's folder if the recipe does not say it."""
    model = _settings(recipe).get("model")
    shape = model if isinstance(model, dict) else {}
    if not {"family", "depth", "width"} <= shape.keys():
        return folder.absolute().name
    return f"{shape['family']}, {shape['depth']} layers of {shape['width']}"


def _about(folder: Path, recipe: str, records: Records) -> list[str]:
    """The data, the duration and the folder of a run."""
    data, last = _settings(recipe).get("shards"), records.training[-1] if records.training else {}
    seconds = number(last.get("seconds"))
    parts = [f"pre-trained on {Path(data).name}"] if isinstance(data, str) else []
    parts += [f"for {format_duration(seconds)}"] if math.isfinite(seconds) else []
    return [*parts, f"folder {folder.absolute().name}"]


def _settings(recipe: str) -> dict[str, Any]:
    try:
        return tomllib.loads(recipe)
    except tomllib.TOMLDecodeError:
        return {}


def _facts(records: Records) -> list[tuple[str, str]]:
    last = records.training[-1] if records.training else {}
    facts = [(f"{number(last.get('step')):,.0f}", "steps"), (_format_count(number(last.get("tokens"))), "tokens")]
    facts.append((format_duration(number(last.get("seconds"))), "of training"))
    facts.append((_format_count(number(last.get("tokens_per_second"))), "tokens/s"))
    for name, points in records.curves("loss").items():
        latest = next((y for _, y in reversed(smoothed(points))), math.nan)
        facts.append((f"{latest:.3f}", f"loss, {records.title(name)}"))
    for weights, kind in (("evaluation", "held-out"), ("averaged", "averaged")):
        evaluated = records.evaluated(weights)
        facts += [(_format_last(name, points), f"{kind} {records.title(name)}") for name, points in evaluated.items()]
    facts.append((f"{number(last.get('skipped', 0)):,.0f}", "steps skipped"))
    return [(value, name) for value, name in facts if "nan" not in value]


def _learning(records: Records) -> Iterable[str]:
    evaluated, averaged = records.evaluated(), records.evaluated("averaged")
    for table, title, unit in (("loss", "Loss", "nats"), ("right", "Accuracy", "%")):
        trained, factor = records.curves(table), 100 if unit == "%" else 1
        tested = [name.removesuffix(f"_{table}") for name in evaluated if name.endswith(f"_{table}")]
        for name in dict.fromkeys([*trained, *tested]):
            lines = _raw_and_smooth(_scaled(trained.get(name, []), factor))
            lines += _held_out(f"{name}_{table}", evaluated, averaged, factor)
            yield from curves(
                f"{title}: {records.title(name)}", lines, unit=unit, axis=ZERO_AXIS if unit == "%" else LINEAR_AXIS
            )
    yield from _perplexities(records)
    yield from _other_charts(records)
    yield from curves("Learning rate", [Line("", records.curve("rate"))], axis=ZERO_AXIS)
    yield from curves("Gradient norm", [*_raw_and_smooth(records.curve("norm"))], axis=ZERO_AXIS)


def _hardware(records: Records) -> Iterable[str]:
    since_start = Line("mean since the start", records.curve("tokens_per_second"), "second")
    yield from curves(
        "Speed", [Line("current", smoothed(records.speed())), since_start], unit="tokens/s", axis=ZERO_AXIS
    )
    share, padding = _scaled(records.curve("share"), 100), _scaled(records.curve("padding"), 100)
    yield from curves("Share of the matmul rate", [Line("since the last start", share)], unit="%", axis=ZERO_AXIS)
    yield from curves("Padding", [Line("", padding)], unit="%", axis=ZERO_AXIS)
    memory = _peak_so_far(records.curve("memory_gib"))
    yield from curves("Peak memory", [Line("", memory)], unit="GiB", axis=ZERO_AXIS)
    yield from curves("Steps skipped because of NaN", [Line("", records.curve("skipped"))], axis=COUNT_AXIS)


def _held_out(
    name: str, evaluated: Mapping[str, list[Point]], averaged: Mapping[str, list[Point]], factor: float = 1
) -> list[Line]:
    last, mean = (_scaled(table.get(name, []), factor) for table in (evaluated, averaged))
    return [Line("held-out", last, "second"), Line("held-out, averaged weights", mean, "third")]


def _raw_and_smooth(points: Sequence[Point]) -> list[Line]:
    return [Line("", points, "faint"), Line("training, smoothed", smoothed(points))]


def _perplexities(records: Records) -> Iterable[str]:
    """Exponential of the losses; values over e^12 are left out, or the chart would show little else."""
    losses, evaluated, averaged = records.curves("loss"), records.evaluated(), records.evaluated("averaged")
    for name in [name for name, loss in records.losses.items() if loss.has_perplexity]:
        if name in losses or f"{name}_loss" in evaluated:
            lines = [
                Line("training, smoothed", smoothed(losses.get(name, []))),
                *_held_out(f"{name}_loss", evaluated, averaged),
            ]
            shown = [
                Line(line.name, [(x, math.exp(y)) for x, y in finite(line.points) if y < 12], line.kind)
                for line in lines
            ]
            yield from curves(f"Perplexity of {records.title(name)}", shown, axis=LOG_AXIS)


def _other_charts(records: Records) -> Iterable[str]:
    """Precision, recall and F1 as one chart, and a chart for every metric that has none yet."""
    evaluated = records.evaluated()
    parts = {name: name.rpartition("_") for name in evaluated}
    for loss in dict.fromkeys(first for first, _, score in parts.values() if first and score in DETECTION_LINES):
        found = {score: evaluated.get(f"{loss}_{score}", []) for score in DETECTION_LINES}
        lines = [Line(score, _scaled(points, 100), DETECTION_LINES[score]) for score, points in found.items()]
        yield from curves(f"Held-out {records.title(loss)} found", lines, unit="%", axis=ZERO_AXIS)
    for name, (first, _, score) in parts.items():
        if not name.endswith(CHARTED_SUFFIXES) and not (first and score in DETECTION_LINES):
            yield from curves(f"Held-out {records.title(name)}", [Line("held-out", evaluated[name], "second")])


def _predicted_words(line: Mapping[str, Any]) -> dict[tuple[str, int], list[str]]:
    """(text, number of the [MASK] in it) -> words; entries of another form are left out."""
    words: dict[tuple[str, int], list[str]] = {}
    for entry in line["filled"]:
        if isinstance(entry, dict) and isinstance(entry.get("words"), list):
            text = str(entry.get("text", ""))
            blank = sum(before == text for before, _ in words)
            words[text, blank] = [str(word) for word in entry["words"]]
    return words


def _evenly_spaced(items: Sequence[Any], most: int) -> list[Any]:
    """At most `most` items at even distances, including the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def _scaled(points: Sequence[Point], factor: float) -> list[Point]:
    return [(x, factor * y) for x, y in points]


def _peak_so_far(points: Sequence[Point]) -> list[Point]:
    """The running maximum: a resumed process counts its memory from zero."""
    points = finite(points)
    return list(zip((x for x, _ in points), accumulate((y for _, y in points), max), strict=True))


def _format_last(name: str, points: Sequence[Point]) -> str:
    value = next((y for _, y in reversed(finite(points))), math.nan)
    return f"{value:.1%}" if name.endswith(PERCENT_SUFFIXES) else f"{value:.3f}"


def _format_score(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "–"


def _format_count(value: float) -> str:
    scale, unit = next(((s, u) for s, u in ((1e9, " G"), (1e6, " M"), (1e4, " k")) if abs(value) >= s), (1.0, ""))
    scale = 1e3 if unit == " k" else scale
    return f"{value / scale:.3g}{unit}" if unit else f"{value:,.0f}"


def format_duration(seconds: float) -> str:
    """A duration in words: 2 h 5 min, 3 min 12 s, 4.2 s."""
    if not math.isfinite(seconds):
        return "nan"
    minutes, hours = divmod(int(seconds), 60)[0], int(seconds) // 3600
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds) % 60} s" if minutes else f"{seconds:.1f} s"


def _read_code(path: Path) -> dict[str, str]:
    try:
        versions = json.loads(_read_text(path) or "{}")
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in versions.items()} if isinstance(versions, dict) else {}


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
