"""`bertkit replaced`: which words of a text look replaced to ELECTRA's discriminator."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def replaced(
    text: Annotated[str, typer.Argument(help="A text in which words may have been replaced.")],
    model: Annotated[Path | None, typer.Option(help="A model with a replaced-token head.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per word.")] = False,
) -> None:
    """Print each word with the probability that it was replaced by another, as replaced token detection learns it."""
    from bertkit.predict.bert import load

    for judged in load(model).replaced(text):
        line = f"{judged.probability:6.1%}  {judged.word}"
        print(json.dumps(asdict(judged), ensure_ascii=False) if as_json else line)
