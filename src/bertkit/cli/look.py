"""`bertkit look`: a model at work on one text, seen from inside."""

from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.options import AsJson, Model, Pair
from bertkit.cli.verbs import note_old_spelling
from bertkit.cli.views import ViewRequest, check_request, flag, show

# Options that have moved to verbs of their own, and to which; they work here for one version.
MOVED = {"table": "heads", "heads": "heads", "link": "heads", "prune": "heads", "why": "why"}


def look(
    text: Annotated[str | None, typer.Argument(help="A text.")] = None,
    pair: Pair = None,
    model: Model = None,
    out: Annotated[Path | None, typer.Option(help="Write the page to this HTML file.")] = None,
    runs: Annotated[list[Path] | None, typer.Option(help="A run's folder: look at each of its checkpoints.")] = None,
    probe: Annotated[list[Path] | None, typer.Option(help="With --runs: CoNLL-U files to probe with.")] = None,
    texts: Annotated[Path | None, typer.Option(help="With --runs: more texts, one per line.")] = None,
    as_json: AsJson = False,
    table: Annotated[bool, typer.Option("--table", hidden=True)] = False,
    head: Annotated[str | None, typer.Option(hidden=True)] = None,
    word: Annotated[str | None, typer.Option(hidden=True)] = None,
    heads: Annotated[bool, typer.Option("--heads", hidden=True)] = False,
    link: Annotated[str | None, typer.Option(hidden=True)] = None,
    prune: Annotated[bool, typer.Option("--prune", hidden=True)] = False,
    why: Annotated[bool, typer.Option("--why", hidden=True)] = False,
    target: Annotated[str | None, typer.Option(hidden=True)] = None,
    flip: Annotated[bool, typer.Option("--flip", hidden=True)] = False,
    fill_model: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Look inside a model while it reads a text: attention, neurons, vectors and fills in one page for the browser.

    Example: bertkit look "The animal was too tired to cross the street." --model model/ --out look.html
    """
    request = ViewRequest(**locals())  # every option by its name
    check_request(request)
    for name in request.named(*MOVED):
        note_old_spelling(
            f"look {flag(name)}", MOVED[name] if name in MOVED.values() else f"{MOVED[name]} {flag(name)}"
        )
    show(request)
