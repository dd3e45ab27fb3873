"""What `look`, `heads` and `why` share: a request, its checks, the views that it asks for, and their text."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertkit.inside.attribution.page import Why
    from bertkit.inside.look.heads import HeadKind, LinkedHead
    from bertkit.inside.look.reading import Reading
    from bertkit.inside.prune import PruneReport
    from bertkit.inside.through_training_page import Course
    from bertkit.predict.bert import Bert

SHOWN_HEADS = 10  # of a ranking that is printed; JSON has them all
VIEWS = ("out", "table", "heads", "link", "prune", "why")
# Options that say more about a view, and about which.
GO_WITH = {
    "pair": ("out", "table", "heads", "link", "why"),
    "head": ("table",),
    "word": ("table", "why"),
    "texts": ("heads", "prune", "runs"),
    "target": ("why",),
    "flip": ("why",),
    "fill_model": ("flip",),
    "probe": ("runs",),
}
NOTHING_ASKED = (
    "say what to look at: --out FILE.html for the page, or --runs DIR; see also bertkit heads and bertkit why"
)


@dataclass(frozen=True, kw_only=True)
class ViewRequest:
    """The options of one command, as they were given."""

    verb: str = "look"
    text: str | None = None
    pair: str | None = None
    model: Path | None = None
    out: Path | None = None
    table: bool = False
    head: str | None = None
    word: str | None = None
    heads: bool = False
    link: str | None = None
    prune: bool = False
    why: bool = False
    target: str | None = None
    flip: bool = False
    fill_model: Path | None = None
    runs: list[Path] | None = None
    probe: list[Path] | None = None
    texts: Path | None = None
    as_json: bool = False

    def named(self, *names: str) -> list[str]:
        """Those of the options that were given."""
        return [name for name in names if getattr(self, name)]


def show(request: ViewRequest) -> None:
    """Check the request, compute what it asks for, and print it."""
    check_request(request)
    results = {"runs": _through_training(request)} if request.runs else _views(request)
    print(json.dumps(_plain(results), ensure_ascii=False) if request.as_json else "\n\n".join(_formatted(results)))


def flag(name: str) -> str:
    """An option as it is written."""
    return f"--{name.replace('_', '-')}"


def check_request(request: ViewRequest) -> None:
    """Say what is wrong with the request before any work is done."""
    from bertkit.errors import RequestError

    looks = request.named(*VIEWS)
    if not looks and not request.runs:
        raise RequestError(NOTHING_ASKED)
    if request.text is None and not request.runs:
        raise RequestError("give a text to look at, or a run's folder: --runs DIR")
    alone = [name for name in (*looks, *request.named("pair", "model")) if name != "out"]
    if request.runs and alone:
        raise RequestError(f"--runs looks at checkpoints; leave out {flag(alone[0])}")
    for name, owners in GO_WITH.items():
        if request.named(name) and not request.named(*owners):
            raise RequestError(f"{flag(name)} goes with {' or '.join(_owner_names(request.verb, owners))}")
    if request.out:
        _refuse_place(request.out)
        if request.runs:
            from bertkit.inside.through_training_page import numbers_beside

            _refuse_place(numbers_beside(request.out))


def _owner_names(verb: str, owners: Sequence[str]) -> list[str]:
    """The options of a verb among the views that another option belongs to."""
    if verb != "heads":
        return [flag(name) for name in owners]
    own = [flag(name) for name in owners if name in ("table", "link", "prune")]
    return [*own, *(["the list of heads"] if "heads" in owners else [])]


def _refuse_place(out: Path) -> None:
    from bertkit.errors import RequestError
    from bertkit.files import refuse_unwritable

    if out.is_dir():
        raise RequestError(f"{out} is a folder; name a file in it, such as {out / 'look.html'}")
    if out.exists():
        raise RequestError(f"{out} exists already; name another place or remove it first")
    refuse_unwritable(out.parent)


def _views(request: ViewRequest) -> dict[str, Any]:
    """What was asked about one text; nothing else is traced."""
    from bertkit.inside.look.heads import catalogue, parse_link
    from bertkit.inside.look.heads import link as linked_heads
    from bertkit.inside.look.reading import read
    from bertkit.inside.look.table import parse_head, step_table
    from bertkit.predict.bert import load

    words, (layer, number) = parse_link(request.link) if request.link else None, parse_head(request.head or "1-1")
    text, more, page = request.text or "", _lines(request.texts), request.out if not request.why else None
    bert = load(request.model)
    results: dict[str, Any] = {}
    if page or request.table or request.heads or words:
        reading = read(bert, text, request.pair)
        if page:
            results["page"] = _save(bert, reading, page)
        if request.table:
            results["table"] = step_table(reading, layer=layer, head=number, word=request.word)
        if request.heads:
            results["heads"] = catalogue([reading, *(read(bert, each) for each in more)])
        if words:
            results["link"] = linked_heads(reading, *words)
    if request.prune:
        results["prune"] = _prune(bert, [text, *more])
    return results | (_why(bert, request) if request.why else {})


def _why(bert: "Bert", request: ViewRequest) -> dict[str, Any]:
    from bertkit.files import whole_file
    from bertkit.inside.attribution.attribution import why
    from bertkit.inside.attribution.counterfactuals import flips
    from bertkit.inside.attribution.page import why_page
    from bertkit.predict.bert import load

    filler = load(request.fill_model) if request.fill_model else None
    text = request.text or ""
    tagging = bool(_word_heads() & set(bert.model.heads))
    word = None if request.table and not tagging else request.word  # then it is meant for the table
    found: dict[str, Any] = {"why": why(bert, text, request.pair, target=request.target, word=word)}
    if request.flip:
        found["flips"] = flips(bert, text, request.pair, fill=filler)
    if request.out:
        with whole_file(request.out) as draft:
            draft.write_text(why_page(found["why"], found.get("flips")), encoding="utf-8", errors="replace")
    return found


def _through_training(request: ViewRequest) -> "Course":
    from bertkit.inside.through_training import CourseSettings, through_training
    from bertkit.progress import progress

    texts = tuple(([request.text] if request.text else []) + _lines(request.texts))
    settings = CourseSettings(texts=texts or CourseSettings.texts, probe=tuple(request.probe or ()))
    course = through_training(request.runs or (), settings, show=progress)
    if request.out:
        course.save(request.out)
    return course


def _word_heads() -> set[str]:
    """Heads of the tasks that give an answer for each word."""
    from bertkit.tasks.table import TASKS

    return {row.head for row in TASKS.values() if row.word_level}


def _lines(texts: Path | None) -> list[str]:
    """The texts of a file, one per line, empty lines left out."""
    from bertkit.text.corpus import CorpusReport, read_lines

    if texts is None:
        return []
    return [line for _, line in read_lines(texts, report=CorpusReport()) if line.strip()]


def _save(bert: "Bert", reading: "Reading", out: Path) -> dict[str, Any]:
    from bertkit.inside.look.data import page_data
    from bertkit.inside.look.look import Look

    Look(page_data(bert, reading)).save(out)
    return {"out": str(out), "tokens": len(reading.tokens), "bytes": out.stat().st_size}


def _prune(bert: "Bert", texts: Sequence[str]) -> "PruneReport":
    from bertkit.inside.prune import prune
    from bertkit.progress import progress

    config = bert.model.config
    with progress("leaving out heads", config.depth * config.heads) as meter:
        return prune(bert, texts, lambda done: meter.update(done, {}))


def _plain(found: Any) -> Any:
    if is_dataclass(found) and not isinstance(found, type):
        return asdict(found)
    if isinstance(found, dict):
        return {name: _plain(value) for name, value in found.items()}
    return [_plain(each) for each in found] if isinstance(found, list) else found


def _formatted(results: dict[str, Any]) -> Iterator[str]:
    """Each result as lines to read."""
    if "page" in results:
        page = results["page"]
        yield f"{page['tokens']} tokens in {page['out']}, {page['bytes'] / 1e6:.1f} MB"
    if "table" in results:
        yield str(results["table"])
    if "heads" in results:
        yield "\n".join(_format_heads(results["heads"]))
    if "link" in results:
        yield "\n".join(_format_links(results["link"]))
    if "prune" in results:
        yield "\n".join(_format_costs(results["prune"]))
    if "why" in results:
        yield "\n".join(_format_why(results["why"]))
    yield from (str(results[name]) for name in ("flips", "runs") if name in results)


def _format_why(why: "Why") -> Iterator[str]:
    """On a terminal the text in color, too."""
    from rich.console import Console

    from bertkit.inside.attribution.page import why_text

    console = Console()
    if console.is_terminal:
        with console.capture() as shown:
            console.print(why_text(why))
        yield shown.get()
    yield str(why)


def _format_heads(rows: "list[HeadKind]") -> Iterator[str]:
    from bertkit.inside.look.heads import SHARES

    names = " ".join(f"{name.replace('_', ' '):>9}" for name in SHARES)
    yield f"head   kind       bits  distance {names}"
    for row in rows:
        shares = " ".join(f"{getattr(row, name):9.2f}" for name in SHARES)
        name = f"{row.layer}-{row.head}"
        yield f"{name:6} {row.kind.replace('_', ' '):9} {row.entropy:5.2f}  {row.distance:8.2f} {shares}"


def _format_links(rows: "list[LinkedHead]") -> Iterator[str]:
    yield "head   weight"
    for row in rows[:SHOWN_HEADS]:
        yield f"{f'{row.layer}-{row.head}':6} {row.weight:6.4f}"


def _format_costs(report: "PruneReport") -> Iterator[str]:
    yield f"{report.measure} with every head: {report.whole:.4f}"
    for row in (*report.alone[: SHOWN_HEADS // 2], *report.alone[SHOWN_HEADS // 2 :][-SHOWN_HEADS // 2 :]):
        yield f"without head {f'{row.layer}-{row.head}':6} {row.cost:+.5f}"
    for count, cost in report.together:
        yield f"without the {count} cheapest together {cost:+.5f}"
