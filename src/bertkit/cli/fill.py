"""`bertkit fill`: the blanks of a text, with probabilities."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def fill(
    text: Annotated[str, typer.Argument(help="A text with one or more [MASK].")],
    model: Annotated[
        Path | None, typer.Option(help="A model folder with its masked-word head; else the bundled one.")
    ] = None,
    top: Annotated[int, typer.Option(help="Words for each blank.")] = 5,
    too_long: Annotated[str, typer.Option(help="window, truncate or refuse a text over the limit.")] = "window",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per candidate.")] = False,
) -> None:
    """Fill each [MASK] of a text with the model's best words."""
    from bertkit.config import pick
    from bertkit.predict.bert import load
    from bertkit.predict.length import POLICIES

    policy = pick(POLICIES, too_long, "length policy")
    for candidate in load(model).fill(text, top=top, too_long=policy):
        if as_json:
            print(json.dumps(asdict(candidate), ensure_ascii=False))
        else:
            print(f"{candidate.probability:6.1%}  {candidate.word:<16} {candidate.text}")
