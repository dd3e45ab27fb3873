"""`bertkit facts`: check published claims about BERT by running them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bertkit.facts.run import Result


def facts(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these facts, such as T3 or P14b; T means all of T.")
    ] = None,
    uncased: Annotated[Path | None, typer.Option(help="The released uncased vocab.txt, or its folder.")] = None,
    cased: Annotated[Path | None, typer.Option(help="The released cased vocab.txt, or its folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per fact, and no summary.")] = False,
) -> int:
    """Check claims about BERT: print what each claim expects, what was measured, and ok or FAIL.

    A claim about a released vocabulary is "not run" unless that vocabulary is given; every BERT folder contains one.
    A claim about something that bertkit does not implement is "absent". Exit code 1 if a claim failed.
    """
    from bertkit.facts.fact import Vocabularies
    from bertkit.facts.run import run_facts, summary
    from bertkit.text.tokenizer import Tokenizer

    vocabularies = {
        name: Tokenizer.from_vocab(path / "vocab.txt" if path.is_dir() else path, lowercase=name == "uncased")
        for name, path in {"uncased": uncased, "cased": cased}.items()
        if path is not None
    }
    results = []
    for result in run_facts(Vocabularies(**vocabularies), names or ()):
        results.append(result)
        _print_json(result) if as_json else _print_line(result)
    if not as_json:
        print(f"\n{summary(results)}")
    return int(any(result.status == "FAIL" for result in results))


def _print_line(result: "Result") -> None:
    fact, outcome = result.fact, result.outcome
    print(f"{fact.number:<6} {result.status:<8} {fact.claim}")
    if outcome is None:
        print(f"       because  {result.reason}")
    else:
        print(f"       expected {outcome.expected}\n       measured {outcome.measured}")


def _print_json(result: "Result") -> None:
    fact, outcome = result.fact, result.outcome
    row = {"fact": fact.number, "claim": fact.claim, "status": result.status}
    details = {"expected": outcome.expected, "measured": outcome.measured} if outcome else {"reason": result.reason}
    print(json.dumps({**row, **details}, ensure_ascii=False))
