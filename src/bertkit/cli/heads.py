"""`bertkit heads`: what the attention heads of a model attend to."""

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
    table: Annotated[bool, typer.Option("--table", help="Print one head's attention, step by step.")] = False,
    head: Annotated[str | None, typer.Option(help="With --table: layer and head, counted from 1-1.")] = None,
    word: Annotated[str | None, typer.Option(help="With --table: the query word.")] = None,
    link: Annotated[
        str | None, typer.Option(help="Rank heads by the attention of one word to another: he,Bert.")
    ] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Measure what removing each head costs.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what each attention head mostly attends to in a text; or one head's arithmetic, links, or pruning costs.

    Example: bertkit heads "Bert was tired, so he slept." --link he,Bert
    """
    show(ViewRequest(verb="heads", heads=not (table or link or prune), **locals()))
