"""`bertkit follows`: how probable it is that a text follows another."""

import json
from pathlib import Path
from typing import Annotated

import typer


def follows(
    first: Annotated[str, typer.Argument(help="A text.")],
    second: Annotated[str, typer.Argument(help="A text that may follow it.")],
    model: Annotated[Path | None, typer.Option(help="A model with a next-sentence or sentence-order head.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Print the probability that the second text follows the first, by the head that pre-training on pairs leaves."""
    from bertkit.predict.bert import load

    probability = load(model).follows(first, second)
    print(json.dumps({"probability": probability}) if as_json else f"{probability:.1%}")
