"""`bertkit write`: generate text with a decoder or an encoder-decoder."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertkit.cli.common import print_note
from bertkit.cli.options import AsJson

if TYPE_CHECKING:
    from collections.abc import Generator

    from bertkit.tasks.write import Written


def write(
    text: Annotated[str, typer.Argument(help="A prompt to continue, or a text to write a text for.")],
    model: Annotated[Path | None, typer.Option(help="A model that writes: a decoder or an encoder-decoder.")] = None,
    beams: Annotated[int | None, typer.Option(help="Beam search with this many beams; 1 is greedy search.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Of beam search: over 1 favors longer texts.")] = None,
    max_new: Annotated[int | None, typer.Option(help="New tokens at most.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Draw tokens at random; lower is less random.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from this many likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest tokens of this probability.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of what is drawn.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="A text that ends the generation; may be repeated.")] = None,
    as_json: AsJson = False,
) -> None:
    """Continue a prompt, or write a text for a text; on a terminal it appears as it is generated.

    Example: bertkit write "Once upon a time" --model gpt2/ --temperature 0.8
    """
    from bertkit.predict.bert import load

    options: dict[str, Any] = {"tokens": max_new, "beams": beams, "length_penalty": length_penalty, "seed": seed}
    options |= {"temperature": temperature, "top_k": top_k, "top_p": top_p, "stop": stop}
    options = {name: value for name, value in options.items() if value is not None}
    writer = load(model).writer
    shown = sys.stdout.isatty() and not as_json
    written = _run(writer.stream(text, writer.settings(options)), shown=shown)
    if as_json:
        print(json.dumps(asdict(written), ensure_ascii=False))
    else:
        print("" if shown else written.text)
    if not written.ended:
        print_note(f"stopped at the limit of {written.tokens} tokens; --max-new N allows more")


def _run(pieces: "Generator[str, None, Written]", *, shown: bool) -> "Written":
    """Take all pieces of a text, and print each if it is `shown`; the whole text."""
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            written: Written = end.value
            return written
        if shown:
            print(piece, end="", flush=True)
