"""`bertkit fill`: the most probable words for each blank of a text."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def fill(
    text: Annotated[str, typer.Argument(help="A text with one or more blanks: [MASK], <mask> or ___.")],
    model: Annotated[Path | None, typer.Option(help="A masked-word model; by default the bundled one.")] = None,
    top: Annotated[int, typer.Option(help="Number of words to print for each blank.")] = 5,
    candidates: Annotated[str | None, typer.Option(help="Score only these words, separated by commas.")] = None,
    pieces: Annotated[int, typer.Option(help="Consider words of up to this many tokens.")] = 1,
    together: Annotated[bool, typer.Option("--together", help="Choose the words for all blanks jointly.")] = False,
    all_tokens: Annotated[
        bool, typer.Option("--all-tokens", help="Also print tokens that are no whole words, such as ##s and [UNK].")
    ] = False,
    too_long: Annotated[str, typer.Option(help="A text over the limit: window, truncate or refuse.")] = "window",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per word.")] = False,
) -> None:
    """Fill each blank of a text with the most probable words."""
    from bertkit.predict.bert import load
    from bertkit.predict.fill import Filled
    from bertkit.settings import pick
    from bertkit.text.length import POLICIES

    policy = pick(POLICIES, too_long, "length policy")
    words = None if candidates is None else [word.strip() for word in candidates.split(",")]
    options = {"top": top, "candidates": words, "pieces": pieces, "together": together, "too_long": policy}
    for filled in load(model).fill(text, whole_words=not all_tokens, **options):  # type: ignore[call-overload]
        word = filled.word if isinstance(filled, Filled) else " ".join(filled.words)
        if as_json:
            print(json.dumps(asdict(filled), ensure_ascii=False))
        else:
            print(f"{filled.probability:6.1%}  {word:<16} {filled.text}")
