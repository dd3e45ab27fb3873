"""`bertkit look`: what a model computes for one text, as a page for the browser."""

from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.options import AsJson, Model, Pair
from bertkit.cli.verbs import note_old_spelling
from bertkit.cli.views import ViewRequest, check_request, show, with_default_page

# option -> (how it was written here, how it is written now); the old spelling works for one more version
MOVED_OPTIONS = {
    "table": ("look --table", "heads --table"),
    "heads": ("look --heads", "heads"),
    "from_to": ("look --link", "heads --from-to"),
    "prune": ("look --prune", "heads --prune"),
    "why": ("look --why", "why"),
}


def look(
    text: Annotated[str | None, typer.Argument(help="The text to analyze.")] = None,
    pair: Pair = None,
    model: Model = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the page to this HTML file; by default look.html, or look-2.html.")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    runs: Annotated[list[Path] | None, typer.Option(help="Folder of a run: analyze each of its checkpoints.")] = None,
    probe: Annotated[list[Path] | None, typer.Option(help="With --runs: CoNLL-U files to train probes on.")] = None,
    texts: Annotated[Path | None, typer.Option(help="With --runs: a file with more texts, one per line.")] = None,
    as_json: AsJson = False,
    table: Annotated[bool, typer.Option("--table", hidden=True)] = False,
    head: Annotated[
        str | None, typer.Option(help="The head to begin with: layer and head, counted from 1, such as 3-2.")
    ] = None,
    word: Annotated[str | None, typer.Option(hidden=True)] = None,
    heads: Annotated[bool, typer.Option("--heads", hidden=True)] = False,
    from_to: Annotated[str | None, typer.Option("--link", hidden=True)] = None,
    prune: Annotated[bool, typer.Option("--prune", hidden=True)] = False,
    why: Annotated[bool, typer.Option("--why", hidden=True)] = False,
    target: Annotated[str | None, typer.Option(hidden=True)] = None,
    flip: Annotated[bool, typer.Option("--flip", hidden=True)] = False,
    fill_model: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Write a page that shows what a model computes for a text: attention, neurons, vectors and predicted words.

    Example: bertkit look "The animal was too tired to cross the street." --model model/ --open
    """
    options = {name: value for name, value in locals().items() if name != "open_page"}
    request = with_default_page(ViewRequest(**options))
    check_request(request)
    for name in request.given(*MOVED_OPTIONS):
        note_old_spelling(*MOVED_OPTIONS[name])
    show(request)
    if open_page and request.out:
        import webbrowser

        webbrowser.open(request.out.absolute().as_uri())
