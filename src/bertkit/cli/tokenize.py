"""`bertkit tokenize`: show how a text is split into tokens."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.options import Pair


def tokenize(
    text: Annotated[str, typer.Argument(help="The text to tokenize; - reads standard input, line by line.")],
    pair: Pair = None,
    model: Annotated[
        Path | None,
        typer.Option(help="A model folder, a folder with a tokenizer, or a vocab.txt; by default the bundled model."),
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print token ids instead of tokens.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per text: tokens, ids, segments, character offsets.")
    ] = False,
) -> None:
    """Print the tokens that a model reads, including special tokens, one text per line.

    Example: bertkit tokenize "An unbelievable story." --model model/
    """
    from bertkit.checkpoint.bundled import tokenizer_folder
    from bertkit.errors import RequestError
    from bertkit.text.tokenizer import Tokenizer

    if text == "-" and pair is not None:
        raise RequestError("--pair goes with one text; leave it out, or give the text in place of -")
    tokenizer = Tokenizer.load(tokenizer_folder(model))
    for line in (line.rstrip("\r\n") for line in sys.stdin) if text == "-" else [text]:
        encoding = tokenizer.encode(line, pair)
        tokens = tokenizer.tokens(encoding.ids)
        if as_json:
            parts = {"tokens": tokens, "ids": encoding.ids, "segments": encoding.segments, "offsets": encoding.offsets}
            print(json.dumps(parts, ensure_ascii=False))
        else:
            print(*(encoding.ids if ids else tokens))
