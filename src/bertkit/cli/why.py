"""`bertkit why`: how much each word contributes to a prediction."""

from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.options import AsJson, Pair, Text
from bertkit.cli.views import ViewRequest, show


def why(
    text: Text,
    pair: Pair = None,
    model: Annotated[
        Path | None, typer.Option(help="A model folder; by default the bundled model, for texts with a blank.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Explain this label, tag, answer or word instead.")] = None,
    word: Annotated[str | None, typer.Option(help="For a tagger: the word whose tag is explained.")] = None,
    flip: Annotated[bool, typer.Option("--flip", help="Find likely words that change the label.")] = False,
    fill_model: Annotated[Path | None, typer.Option(help="With --flip: the model that proposes likely words.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the explanation to this HTML file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Explain a prediction by integrated gradients: how much each word adds to a label, number, tag, answer or [MASK].

    Example: bertkit why "The story was long, but what a lovely film." --model run/model --out why.html
    """
    show(ViewRequest(why=True, **locals()))
