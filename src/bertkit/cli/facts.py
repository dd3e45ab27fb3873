"""`bertkit facts`: every claim about BERT, executed."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bertkit.facts.run import Result


def facts(
    names: Annotated[list[str] | None, typer.Argument(help="Only these: T3, P14b, or T for all of T.")] = None,
    uncased: Annotated[Path | None, typer.Option(help="The released uncased vocab.txt (or its folder).")] = None,
    cased: Annotated[Path | None, typer.Option(help="The released cased vocab.txt (or its folder).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per fact.")] = False,
) -> int:
    """Measure each fact and print its source, what was expected, what was found, and ok or FAIL.

    Facts about the released vocabularies run when these are given; any BERT folder carries one.
    """
    from bertkit.facts.fact import Vocabularies
    from bertkit.facts.run import run_facts
    from bertkit.text.tokenizer import Tokenizer

    given = {
        name: Tokenizer.from_vocab(path / "vocab.txt" if path.is_dir() else path, lowercase=name == "uncased")
        for name, path in {"uncased": uncased, "cased": cased}.items()
        if path is not None
    }
    counts = {"ok": 0, "FAIL": 0, "not run": 0}
    for result in run_facts(Vocabularies(**given), names or ()):
        counts[result.status] += 1
        _print_json(result) if as_json else _print_line(result)
    if not as_json:
        missing = "; give --uncased and --cased to run the rest" if counts["not run"] else ""
        print(f"\n{counts['ok']} ok, {counts['FAIL']} FAIL, {counts['not run']} not run{missing}")
    return 1 if counts["FAIL"] else 0


def _print_line(result: "Result") -> None:
    fact, outcome = result.fact, result.outcome
    print(f"{fact.number:<6} {result.status:<8} {fact.claim}  [{fact.source}]")
    if outcome is None:
        print(f"       needs    the released {fact.needs} vocabulary: --{fact.needs} PATH")
    else:
        print(f"       expected {outcome.expected}\n       measured {outcome.measured}")


def _print_json(result: "Result") -> None:
    fact, outcome = result.fact, result.outcome
    row = {"fact": fact.number, "source": fact.source, "claim": fact.claim, "status": result.status}
    found = {"expected": outcome.expected, "measured": outcome.measured} if outcome else {}
    print(json.dumps({**row, **found}, ensure_ascii=False))
