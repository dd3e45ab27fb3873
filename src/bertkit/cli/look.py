"""`bertkit look`: a model at work on one text, seen from inside."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bertkit.inside.heads import HeadKind, LinkedHead
    from bertkit.inside.prune import PruneReport
    from bertkit.inside.reading import Reading
    from bertkit.predict.bert import Bert

SHOWN = 10  # heads of a ranking that are printed; JSON has them all


def look(
    text: Annotated[str, typer.Argument(help="A text.")],
    pair: Annotated[str | None, typer.Option(help="A second text, read together with the first.")] = None,
    model: Annotated[Path | None, typer.Option(help="A model folder.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write every view into this one HTML file.")] = None,
    table: Annotated[bool, typer.Option("--table", help="Print one head's arithmetic, step by step.")] = False,
    head: Annotated[str, typer.Option(help="With --table: the layer and the head, from 1.")] = "1-1",
    word: Annotated[str | None, typer.Option(help="With --table: the word that looks; else the first.")] = None,
    heads: Annotated[bool, typer.Option("--heads", help="Print what every head looks at.")] = False,
    link: Annotated[str | None, typer.Option(help="Rank heads by how much a word looks at another: he,Bert.")] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Measure what leaving out each head costs.")] = False,
    texts: Annotated[Path | None, typer.Option(help="With --heads, --prune: more texts, one per line.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Look inside a model while it reads a text: as a page for the browser, or as tables.

    Example: bertkit look "The animal was too tired to cross the street." --model model/ --out look.html
    """
    _refuse(out, texts, any((out, table, heads, link, prune)), any((heads, prune)))
    from bertkit.inside.heads import catalogue, parse_link
    from bertkit.inside.heads import link as linked_heads
    from bertkit.inside.reading import read
    from bertkit.inside.table import parse_head, step_table
    from bertkit.predict.bert import load

    words, (layer, number) = parse_link(link) if link else None, parse_head(head)
    more = _lines(texts)
    bert = load(model)
    results: dict[str, Any] = {}
    if out or table or heads or words:
        reading = read(bert, text, pair)
        if out:
            results["page"] = _save(bert, reading, out)
        if table:
            results["table"] = step_table(reading, layer=layer, head=number, word=word)
        if heads:
            results["heads"] = catalogue([reading, *(read(bert, each) for each in more)])
        if words:
            results["link"] = linked_heads(reading, *words)
    if prune:
        results["prune"] = _prune(bert, [text, *more])
    print(json.dumps(_plain(results), ensure_ascii=False) if as_json else "\n\n".join(_told(results)))


def _refuse(out: Path | None, texts: Path | None, anything: bool, many: bool) -> None:
    """Say what is wrong with the request before any work is done."""
    from bertkit.errors import RequestError
    from bertkit.files import refuse_unwritable

    if not anything:
        raise RequestError("say what to look at: --out FILE.html, --table, --heads, --link he,Bert or --prune")
    if texts and not many:
        raise RequestError("--texts goes with --heads or --prune")
    if out:
        if out.is_dir():
            raise RequestError(f"{out} is a folder; name a file in it, such as {out / 'look.html'}")
        if out.exists():
            raise RequestError(f"{out} exists already; name another place or remove it first")
        refuse_unwritable(out.parent)


def _lines(texts: Path | None) -> list[str]:
    """The texts of a file, one per line, empty lines left out."""
    from bertkit.text.corpus import CorpusReport, read_lines

    if texts is None:
        return []
    return [line for _, line in read_lines(texts, report=CorpusReport()) if line.strip()]


def _save(bert: "Bert", reading: "Reading", out: Path) -> dict[str, Any]:
    from bertkit.inside.data import page_data
    from bertkit.inside.look import Look

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


def _told_heads(rows: "list[HeadKind]") -> Iterator[str]:
    from bertkit.inside.heads import SHARES

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
