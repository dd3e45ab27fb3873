"""`bertkit look`: a model at work on one text, seen from inside."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bertkit.inside.attribution.attribution import Why
    from bertkit.inside.look.heads import HeadKind, LinkedHead
    from bertkit.inside.look.reading import Reading
    from bertkit.inside.prune import PruneReport
    from bertkit.inside.through_training import Course
    from bertkit.predict.bert import Bert

SHOWN = 10  # heads of a ranking that are printed; JSON has them all


# What says more about something else, and about what.
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


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of the command line, as they were given."""

    text: str | None
    pair: str | None
    model: Path | None
    out: Path | None
    table: bool
    head: str | None
    word: str | None
    heads: bool
    link: str | None
    prune: bool
    why: bool
    target: str | None
    flip: bool
    fill_model: Path | None
    runs: list[Path] | None
    probe: list[Path] | None
    texts: Path | None
    as_json: bool

    def named(self, *names: str) -> list[str]:
        """Those of the options that were given."""
        return [name for name in names if getattr(self, name)]


def flag(name: str) -> str:
    """An option as it is written."""
    return f"--{name.replace('_', '-')}"


def look(
    text: Annotated[str | None, typer.Argument(help="A text.")] = None,
    pair: Annotated[str | None, typer.Option(help="A second text, read together with the first.")] = None,
    model: Annotated[Path | None, typer.Option(help="A model folder.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write every view, or why, or runs, into this HTML file.")] = None,
    table: Annotated[bool, typer.Option("--table", help="Print one head's arithmetic, step by step.")] = False,
    head: Annotated[str | None, typer.Option(help="With --table: the layer and the head, from 1-1.")] = None,
    word: Annotated[str | None, typer.Option(help="With --table: the word that looks; with --why: has a tag.")] = None,
    heads: Annotated[bool, typer.Option("--heads", help="Print what every head looks at.")] = False,
    link: Annotated[str | None, typer.Option(help="Rank heads by how much a word looks at another: he,Bert.")] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Measure what leaving out each head costs.")] = False,
    why: Annotated[bool, typer.Option("--why", help="How much each word adds to what the model says.")] = False,
    target: Annotated[str | None, typer.Option(help="With --why: another label, tag, answer or word.")] = None,
    flip: Annotated[bool, typer.Option("--flip", help="With --why: likely words that change the answer.")] = False,
    fill_model: Annotated[Path | None, typer.Option(help="With --flip: a model that finds likely words.")] = None,
    runs: Annotated[list[Path] | None, typer.Option(help="A run's folder: look through its checkpoints.")] = None,
    probe: Annotated[list[Path] | None, typer.Option(help="With --runs: CoNLL-U files to probe with.")] = None,
    texts: Annotated[Path | None, typer.Option(help="With --heads, --prune, --runs: more texts, one per line.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Look inside a model while it reads a text: as a page for the browser, or as tables.

    Example: bertkit look "The animal was too tired to cross the street." --model model/ --out look.html
    """
    asked = Asked(**locals())  # every option by its name
    _refuse(asked)
    results = {"runs": _through_training(asked)} if runs else _look(asked)
    print(json.dumps(_plain(results), ensure_ascii=False) if as_json else "\n\n".join(_told(results)))


def _refuse(asked: Asked) -> None:
    """Say what is wrong with the request before any work is done."""
    from bertkit.errors import RequestError

    looks = asked.named("out", "table", "heads", "link", "prune", "why")
    if not looks and not asked.runs:
        raise RequestError(
            "say what to look at: --out FILE.html, --table, --heads, --link he,Bert, --prune, --why or --runs DIR"
        )
    if asked.text is None and not asked.runs:
        raise RequestError("give a text to look at, or a run's folder: --runs DIR")
    alone = [name for name in (*looks, *asked.named("pair", "model")) if name != "out"]
    if asked.runs and alone:
        raise RequestError(f"--runs looks at checkpoints; leave out {flag(alone[0])}")
    for name, owners in GO_WITH.items():
        if asked.named(name) and not asked.named(*owners):
            raise RequestError(f"{flag(name)} goes with {' or '.join(map(flag, owners))}")
    if asked.out:
        _refuse_place(asked.out)
        if asked.runs:
            from bertkit.inside.through_training import numbers_beside

            _refuse_place(numbers_beside(asked.out))


def _refuse_place(out: Path) -> None:
    from bertkit.errors import RequestError
    from bertkit.files import refuse_unwritable

    if out.is_dir():
        raise RequestError(f"{out} is a folder; name a file in it, such as {out / 'look.html'}")
    if out.exists():
        raise RequestError(f"{out} exists already; name another place or remove it first")
    refuse_unwritable(out.parent)


def _look(asked: Asked) -> dict[str, Any]:
    """What was asked about one text; nothing else is traced."""
    from bertkit.inside.look.heads import catalogue, parse_link
    from bertkit.inside.look.heads import link as linked_heads
    from bertkit.inside.look.reading import read
    from bertkit.inside.look.table import parse_head, step_table
    from bertkit.predict.bert import load

    words, (layer, number) = parse_link(asked.link) if asked.link else None, parse_head(asked.head or "1-1")
    text, more, page = asked.text or "", _lines(asked.texts), asked.out if not asked.why else None
    bert = load(asked.model)
    results: dict[str, Any] = {}
    if page or asked.table or asked.heads or words:
        reading = read(bert, text, asked.pair)
        if page:
            results["page"] = _save(bert, reading, page)
        if asked.table:
            results["table"] = step_table(reading, layer=layer, head=number, word=asked.word)
        if asked.heads:
            results["heads"] = catalogue([reading, *(read(bert, each) for each in more)])
        if words:
            results["link"] = linked_heads(reading, *words)
    if asked.prune:
        results["prune"] = _prune(bert, [text, *more])
    return results | (_why(bert, asked) if asked.why else {})


def _why(bert: "Bert", asked: Asked) -> dict[str, Any]:
    from bertkit.files import whole_file
    from bertkit.inside.attribution.attribution import why
    from bertkit.inside.attribution.counterfactuals import flips
    from bertkit.inside.attribution.page import why_page
    from bertkit.predict.bert import load

    filler = load(asked.fill_model) if asked.fill_model else None
    text = asked.text or ""
    tagging = bool(_word_heads() & set(bert.model.heads))
    word = None if asked.table and not tagging else asked.word  # then it is meant for the table
    found: dict[str, Any] = {"why": why(bert, text, asked.pair, target=asked.target, word=word)}
    if asked.flip:
        found["flips"] = flips(bert, text, asked.pair, fill=filler)
    if asked.out:
        with whole_file(asked.out) as draft:
            draft.write_text(why_page(found["why"], found.get("flips")), encoding="utf-8", errors="replace")
    return found


def _word_heads() -> set[str]:
    from bertkit.tasks.table import TASKS

    return {row.head for row in TASKS.values() if row.word_level}


def _through_training(asked: Asked) -> "Course":
    from bertkit.inside.through_training import CourseSettings, through_training
    from bertkit.progress import progress

    texts = tuple(([asked.text] if asked.text else []) + _lines(asked.texts))
    settings = CourseSettings(texts=texts or CourseSettings.texts, probe=tuple(asked.probe or ()))
    course = through_training(asked.runs or (), settings, show=progress)
    if asked.out:
        course.save(asked.out)
    return course


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


def _told(results: dict[str, Any]) -> Iterator[str]:
    """Each result as lines to read."""
    if "page" in results:
        page = results["page"]
        yield f"{page['tokens']} tokens in {page['out']}, {page['bytes'] / 1e6:.1f} MB"
    if "table" in results:
        yield str(results["table"])
    if "heads" in results:
        yield "\n".join(_told_heads(results["heads"]))
    if "link" in results:
        yield "\n".join(_told_links(results["link"]))
    if "prune" in results:
        yield "\n".join(_told_costs(results["prune"]))
    if "why" in results:
        yield "\n".join(_told_why(results["why"]))
    yield from (str(results[name]) for name in ("flips", "runs") if name in results)


def _told_why(why: "Why") -> Iterator[str]:
    """On a terminal the text in color, too."""
    from rich.console import Console

    from bertkit.inside.attribution.page import why_text

    console = Console()
    if console.is_terminal:
        with console.capture() as shown:
            console.print(why_text(why))
        yield shown.get()
    yield str(why)


def _told_heads(rows: "list[HeadKind]") -> Iterator[str]:
    from bertkit.inside.look.heads import SHARES

    names = " ".join(f"{name.replace('_', ' '):>9}" for name in SHARES)
    yield f"head   kind       bits  distance {names}"
    for row in rows:
        shares = " ".join(f"{getattr(row, name):9.2f}" for name in SHARES)
        name = f"{row.layer}-{row.head}"
        yield f"{name:6} {row.kind.replace('_', ' '):9} {row.entropy:5.2f}  {row.distance:8.2f} {shares}"


def _told_links(rows: "list[LinkedHead]") -> Iterator[str]:
    yield "head   weight"
    for row in rows[:SHOWN]:
        yield f"{f'{row.layer}-{row.head}':6} {row.weight:6.4f}"


def _told_costs(report: "PruneReport") -> Iterator[str]:
    yield f"{report.measure} with every head: {report.whole:.4f}"
    for row in (*report.alone[: SHOWN // 2], *report.alone[SHOWN // 2 :][-SHOWN // 2 :]):
        yield f"without head {f'{row.layer}-{row.head}':6} {row.cost:+.5f}"
    for count, cost in report.together:
        yield f"without the {count} cheapest together {cost:+.5f}"
