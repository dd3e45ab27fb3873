"""`bertkit heads`: what each attention head of a model attends to."""

from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.options import AsJson, Model, Pair, Text
from bertkit.cli.views import ViewRequest, show


def heads(
    text: Text,
    pair: Pair = None,
    model: Model = None,
    texts: Annotated[Path | None, typer.Option(help="More texts, one per line, for the list and --prune.")] = None,
    table: Annotated[bool, typer.Option("--table", help="Print the attention of one head, step by step.")] = False,
    head: Annotated[str | None, typer.Option(help="With --table: layer and head, counted from 1, such as 3-2.")] = None,
    word: Annotated[str | None, typer.Option(help="With --table: the word whose query is used.")] = None,
    from_to: Annotated[
        str | None, typer.Option(help="Rank heads by the attention from one word to another, such as he,Bert.")
    ] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Measure how much removing each head costs.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what each attention head mostly attends to in a text; or show one head's arithmetic, links or pruning costs.

    Example: bertkit heads "Bert was tired, so he slept." --from-to he,Bert
    """
    show(ViewRequest(verb="heads", heads=not (table or from_to or prune), **locals()))
