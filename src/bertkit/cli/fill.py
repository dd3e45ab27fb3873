"""`bertkit fill`: the blanks of a text, with probabilities."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def fill(
    text: Annotated[str, typer.Argument(help="A text with one or more [MASK].")],
    model: Annotated[
        Path | None, typer.Option(help="A model folder with a masked-word head; else the bundled one.")
    ] = None,
    top: Annotated[int, typer.Option(help="Number of words for each blank.")] = 5,
    candidates: Annotated[
        str | None, typer.Option(help="Score only these words, separated by commas; a word may have several tokens.")
    ] = None,
    pieces: Annotated[int, typer.Option(help="Allow words of up to so many tokens.")] = 1,
    together: Annotated[bool, typer.Option("--together", help="Choose the words for all blanks jointly.")] = False,
    too_long: Annotated[str, typer.Option(help="window, truncate or refuse a text over the limit.")] = "window",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per candidate.")] = False,
) -> None:
    """Fill each [MASK] of a text with the most probable words."""
    from bertkit.predict.bert import load
    from bertkit.predict.fill import Filled
    from bertkit.settings import pick
    from bertkit.text.length import POLICIES

    policy = pick(POLICIES, too_long, "length policy")
    words = None if candidates is None else [word.strip() for word in candidates.split(",")]
    bert = load(model)
    ways = {"top": top, "candidates": words, "pieces": pieces, "together": together, "too_long": policy}
    for found in bert.fill(text, **ways):  # type: ignore[call-overload]
        word = found.word if isinstance(found, Filled) else " ".join(found.words)
        if as_json:
            print(json.dumps(asdict(found), ensure_ascii=False))
        else:
            print(f"{found.probability:6.1%}  {word:<16} {found.text}")
