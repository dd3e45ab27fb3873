"""`bertkit tokenize`: the tokens of a text."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.options import Pair


def tokenize(
    text: Annotated[str, typer.Argument(help="A text; - reads standard input, line by line.")],
    pair: Pair = None,
    model: Annotated[
        Path | None,
        typer.Option(help="A model folder, a folder with a tokenizer, or a vocab.txt; else the bundled one."),
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print token ids instead of tokens.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per text: tokens, ids, segments, character offsets.")
    ] = False,
) -> None:
    """Print the tokens that a model reads, special tokens included, one text per line.

    Example: bertkit tokenize "An unbelievable story." --model model/
    """
    from bertkit.checkpoint.bundled import tokenizer_folder
    from bertkit.errors import RequestError
    from bertkit.text.tokenizer import Tokenizer

    if text == "-" and pair is not None:
        raise RequestError("--pair goes with one text; leave it out, or give the text in place of -")
    tokenizer = Tokenizer.load(tokenizer_folder(model))
    for line in (each.rstrip("\r\n") for each in sys.stdin) if text == "-" else [text]:
        encoding = tokenizer.encode(line, pair)
        tokens = tokenizer.tokens(encoding.ids)
        if as_json:
            parts = {"tokens": tokens, "ids": encoding.ids, "segments": encoding.segments, "offsets": encoding.offsets}
            print(json.dumps(parts, ensure_ascii=False))
        else:
            print(*(encoding.ids if ids else tokens))
