"""A run as one HTML page: curves, filled blanks, the recipe. Nothing on it comes from elsewhere; no script runs."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import Any

from bertkit.errors import RequestError
from bertkit.files import whole_file
from bertkit.train.records import CODE, NamedLoss, Records, number, read_records
from bertkit.train.report.chart import COUNT, FROM_ZERO, LOGARITHMIC, PLAIN, Line, Point, chart, finite, smoothed

MOST_COLUMNS = 6  # of filled blanks: first, last, and some between
MOST_WORDS = 3
ENDINGS = ("_loss", "_right", "_perplexity")  # these have charts of their own
DETECTION = {"f1": "second", "precision": "main", "recall": "faint"}
SHARES = ("_right", *(f"_{name}" for name in DETECTION))

# No script runs and nothing is fetched, whatever a corpus or a vocabulary smuggles into the text.
REPORT = "report.html"
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#5c6570;--paper:#fff;--card:#f6f7f9;--rule:#dde1e6;--main:#2563eb;
--second:#c2570c;--third:#15803d}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#9aa4af;--paper:#14171b;--card:#1c2026;--rule:#333a43;
--main:#6ea0ff;--second:#f2a154;--third:#5fce8c}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1240px;padding:20px 16px 60px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.5rem;margin:.2em 0 .1em;overflow-wrap:anywhere}
h2{font-size:1.12rem;margin:2em 0 .7em}
.soft,.none{color:var(--soft)}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:10px;margin:18px 0}
.facts div{background:var(--card);border-radius:8px;padding:10px 12px}
.facts b{display:block;font-size:1.22rem;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.facts span{color:var(--soft);font-size:.84rem}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,380px),1fr));gap:14px}
figure{margin:0;background:var(--card);border-radius:8px;padding:10px 10px 4px}
figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;gap:2px 12px;padding:0 4px 4px;font-weight:600;
font-size:.93rem}
.keys{font-weight:400;font-size:.84rem;color:var(--soft);display:flex;flex-wrap:wrap;gap:0 12px}
.key::before{content:"";display:inline-block;width:14px;height:3px;margin-right:5px;vertical-align:middle;
border-radius:2px;background:currentColor}
.key.main::before{background:var(--main)}.key.second::before{background:var(--second)}
.key.third::before{background:var(--third)}
.key.faint::before{background:var(--main);opacity:.35}
svg{display:block;width:100%;height:auto}
svg text{font-size:12px;fill:var(--soft);font-variant-numeric:tabular-nums}
.x{text-anchor:middle}.y{text-anchor:end}
.grid{stroke:var(--rule);stroke-width:1}.axis{stroke:var(--soft);stroke-width:1}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.line.main{stroke:var(--main)}.line.second{stroke:var(--second)}.line.third{stroke:var(--third)}
.line.faint{stroke:var(--main);opacity:.35;stroke-width:1}
circle{fill:var(--main)}circle.second{fill:var(--second)}circle.third{fill:var(--third)}circle.faint{opacity:.28}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;vertical-align:top;padding:6px 10px;border-bottom:1px solid var(--rule);min-width:92px}
th{color:var(--soft);font-weight:600}
td:first-child{min-width:190px}
td b{display:block}td span{color:var(--soft);font-size:.86em;overflow-wrap:anywhere}
pre{background:var(--card);border-radius:8px;padding:12px 14px;overflow-x:auto;
font:13px/1.45 ui-monospace,Menlo,monospace}
"""


def write_report(run_folder: Path, losses: Iterable[NamedLoss] = ()) -> Path:
    """Make `report.html` from a run's metrics.jsonl, settings.toml and code.json; whatever is missing is left out."""
    run_folder = Path(run_folder)
    if not run_folder.is_dir():
        raise RequestError(f"{run_folder} is not a run's folder; give the --out of bertkit pretrain")
    page = report_page(
        run_folder.absolute().name,
        read_records(run_folder / "metrics.jsonl", losses),
        recipe=_text(run_folder / "settings.toml"),
        code=_code(run_folder / CODE),
    )
    target = run_folder / REPORT
    with whole_file(target) as draft:
        draft.write_text(page, encoding="utf-8", errors="replace")  # half a surrogate pair is no reason to fail
    return target


def report_page(title: str, records: Records, *, recipe: str, code: Mapping[str, str]) -> str:
    """The whole page as text."""
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">A bertkit run. {escape(_versions(code))}</p>',
        _facts(records),
        "<h2>Learning</h2>",
        f'<div class="charts">{"".join(_learning(records))}</div>',
        "<h2>Filled blanks over time</h2>",
        filled_table(records.samples),
        "<h2>The machine</h2>",
        f'<div class="charts">{"".join(_machine(records))}</div>',
        "<h2>Recipe</h2>",
        f"<pre>{escape(recipe)}</pre>" if recipe else '<p class="none">no settings.toml in this folder</p>',
    ]
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
    head += '<meta name="viewport" content="width=device-width,initial-scale=1">'
    head += f"<title>{escape(title)}</title><style>{STYLE}</style>"
    body = "\n".join(sections)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def filled_table(samples: Sequence[Mapping[str, Any]]) -> str:
    """A row for each blank, a column for each of a few moments; the likeliest word first."""
    shown = _spread(samples, MOST_COLUMNS)
    columns = [_words(line) for line in shown]
    blanks = list(dict.fromkeys(blank for column in columns for blank in column))
    if not blanks:
        return '<p class="none">nothing recorded</p>'
    head = "".join(f"<th>step {number(line['step']):,.0f}</th>" for line in shown)
    rows = []
    for blank in blanks:
        cells = "".join(f"<td>{_cell(column.get(blank, []))}</td>" for column in columns)
        rows.append(f"<tr><td>{escape(blank[0])}</td>{cells}</tr>")
    return f'<div class="wide"><table><tr><th>text</th>{head}</tr>{"".join(rows)}</table></div>'


def _facts(records: Records) -> str:
    last = records.training[-1] if records.training else {}
    facts = [(f"{number(last.get('step')):,.0f}", "steps"), (_large(number(last.get("tokens"))), "tokens")]
    facts.append((_duration(number(last.get("seconds"))), "of training"))
    facts.append((_large(number(last.get("tokens_per_second"))), "tokens/s"))
    for name, points in records.curves("loss").items():
        latest = next((y for _, y in reversed(smoothed(points))), math.nan)
        facts.append((f"{latest:.3f}", f"loss, {records.title(name)}"))
    facts += [
        (_ending(name, points), f"held-out {records.title(name)}") for name, points in records.evaluated().items()
    ]
    facts += [
        (_ending(name, points), f"averaged {records.title(name)}")
        for name, points in records.evaluated("averaged").items()
    ]
    facts.append((f"{number(last.get('skipped', 0)):,.0f}", "steps skipped"))
    known = [(value, what) for value, what in facts if "nan" not in value]
    return (
        '<div class="facts">' + "".join(f"<div><b>{v}</b><span>{escape(w)}</span></div>" for v, w in known) + "</div>"
    )


def _learning(records: Records) -> Iterable[str]:
    evaluated, averaged = records.evaluated(), records.evaluated("averaged")
    for table, what, unit in (("loss", "Loss", "nats"), ("right", "Right answers", "%")):
        curves, times = records.curves(table), 100 if unit == "%" else 1
        tested = [name.removesuffix(f"_{table}") for name in evaluated if name.endswith(f"_{table}")]
        for name in dict.fromkeys([*curves, *tested]):
            lines = _raw_and_smooth(_times(curves.get(name, []), times))
            lines += _held_out(f"{name}_{table}", evaluated, averaged, times)
            yield chart(f"{what}: {records.title(name)}", lines, unit=unit, axis=FROM_ZERO if unit == "%" else PLAIN)
    yield from _perplexities(records)
    yield from _others(records)
    yield chart("Learning rate", [Line("", records.curve("rate"))], axis=FROM_ZERO)
    yield chart("Gradient norm", [*_raw_and_smooth(records.curve("norm"))], axis=FROM_ZERO)


def _machine(records: Records) -> Iterable[str]:
    since_start = Line("since the start", records.curve("tokens_per_second"), "second")
    yield chart("Speed", [Line("at the time", smoothed(records.speed())), since_start], unit="tokens/s", axis=FROM_ZERO)
    share, padding = _times(records.curve("share"), 100), _times(records.curve("padding"), 100)
    yield chart("Share of the matmul rate", [Line("since the last start", share)], unit="%", axis=FROM_ZERO)
    yield chart("Padding", [Line("", padding)], unit="%", axis=FROM_ZERO)
    memory = _most_so_far(records.curve("memory_gib"))
    yield chart("Memory, the most so far", [Line("", memory)], unit="GiB", axis=FROM_ZERO)
    yield chart("Steps skipped because of NaN", [Line("", records.curve("skipped"))], axis=COUNT)


def _held_out(
    name: str, evaluated: Mapping[str, list[Point]], averaged: Mapping[str, list[Point]], times: float = 1
) -> list[Line]:
    raw, mean = (_times(curves.get(name, []), times) for curves in (evaluated, averaged))
    return [Line("held-out", raw, "second"), Line("held-out, averaged weights", mean, "third")]


def _raw_and_smooth(points: Sequence[Point]) -> list[Line]:
    return [Line("", points, "faint"), Line("training, smoothed", smoothed(points))]


def _perplexities(records: Records) -> Iterable[str]:
    """Exponential of the loss; beyond e^12 a model knows nothing anyway, and the chart would show only that."""
    losses, tested, averaged = records.curves("loss"), records.evaluated(), records.evaluated("averaged")
    for name in [name for name, loss in records.losses.items() if loss.has_perplexity]:
        if name in losses or f"{name}_loss" in tested:
            lines = [
                Line("training, smoothed", smoothed(losses.get(name, []))),
                *_held_out(f"{name}_loss", tested, averaged),
            ]
            shown = [
                Line(line.name, [(x, math.exp(y)) for x, y in finite(line.points) if y < 12], line.kind)
                for line in lines
            ]
            yield chart(f"Perplexity of {records.title(name)}", shown, axis=LOGARITHMIC)


def _others(records: Records) -> Iterable[str]:
    """What is detected as one chart of three lines, and whatever has no chart yet."""
    evaluated = records.evaluated()
    parts = {name: name.rpartition("_") for name in evaluated}
    for detected in dict.fromkeys(first for first, _, score in parts.values() if first and score in DETECTION):
        named = {score: evaluated.get(f"{detected}_{score}", []) for score in DETECTION}
        lines = [Line(score, _times(points, 100), DETECTION[score]) for score, points in named.items()]
        yield chart(f"Held-out {records.title(detected)} found", lines, unit="%", axis=FROM_ZERO)
    for name, (first, _, score) in parts.items():
        if not name.endswith(ENDINGS) and not (first and score in DETECTION):
            yield chart(f"Held-out {records.title(name)}", [Line("held-out", evaluated[name], "second")])


def _words(line: Mapping[str, Any]) -> dict[tuple[str, int], list[str]]:
    """(text, which blank of it) -> words; entries of another form are left out."""
    found: dict[tuple[str, int], list[str]] = {}
    for entry in line["filled"]:
        if isinstance(entry, dict) and isinstance(entry.get("words"), list):
            text = str(entry.get("text", ""))
            blank = sum(before == text for before, _ in found)
            found[text, blank] = [str(word) for word in entry["words"]]
    return found


def _cell(words: Sequence[str]) -> str:
    rest = ", ".join(map(escape, words[1:MOST_WORDS]))
    return f"<b>{escape(words[0])}</b><span>{rest}</span>" if words else ""


def _spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of them, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def _times(points: Sequence[Point], factor: float) -> list[Point]:
    return [(x, factor * y) for x, y in points]


def _most_so_far(points: Sequence[Point]) -> list[Point]:
    """Each process counts anew: the most of all sessions is the most of the lines until then."""
    known = finite(points)
    return list(zip((x for x, _ in known), accumulate((y for _, y in known), max), strict=True))


def _ending(name: str, points: Sequence[Point]) -> str:
    value = next((y for _, y in reversed(finite(points))), math.nan)
    return f"{value:.1%}" if name.endswith(SHARES) else f"{value:.3f}"


def _large(value: float) -> str:
    scale, unit = next(((s, u) for s, u in ((1e9, " G"), (1e6, " M"), (1e4, " k")) if abs(value) >= s), (1.0, ""))
    scale = 1e3 if unit == " k" else scale
    return f"{value / scale:.3g}{unit}" if unit else f"{value:,.0f}"


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "nan"
    minutes, hours = divmod(int(seconds), 60)[0], int(seconds) // 3600
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds) % 60} s" if minutes else f"{seconds:.1f} s"


def _versions(code: Mapping[str, str]) -> str:
    return " · ".join(f"{name} {value}" for name, value in code.items()) or "Its code version was not recorded."


def _code(path: Path) -> dict[str, str]:
    try:
        found = json.loads(_text(path) or "{}")
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
