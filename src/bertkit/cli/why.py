"""`bertkit why`: how much each word adds to a model's answer."""

from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.options import AsJson, Pair, Text
from bertkit.cli.views import ViewRequest, show


def why(
    text: Text,
    pair: Pair = None,
    model: Annotated[
        Path | None, typer.Option(help="A model folder; else the bundled one, with a [MASK] to fill.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Explain another label, tag, answer or word.")] = None,
    word: Annotated[str | None, typer.Option(help="The word whose tag is explained.")] = None,
    flip: Annotated[bool, typer.Option("--flip", help="Find likely words that change a classifier's answer.")] = False,
    fill_model: Annotated[Path | None, typer.Option(help="With --flip: a model that proposes likely words.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the explanation to this HTML file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Explain an answer by integrated gradients: each word's share of a label, number, tag, answer or filled blank.

    Example: bertkit why "The story was long, but what a lovely film." --model run/model --out why.html
    """
    show(ViewRequest(why=True, **locals()))
