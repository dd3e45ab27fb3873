"""`bertkit mine`: hard negatives for pairs of texts from a corpus."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.common import print_note, print_skipped
from bertkit.cli.options import AsJson, Device, Dtype, InputFile, Model, OnError, ResumeFile


def mine(
    pairs: InputFile,
    corpus: Annotated[Path, typer.Option(help="The texts to choose from: lines, JSONL, CSV, TSV or Parquet.")],
    out: Annotated[Path, typer.Option(help="The file to write: .jsonl.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="How to read the pairs: text=COLUMN pair=COLUMN format=jsonl."),
    ] = None,
    model: Model = None,
    negatives: Annotated[int, typer.Option(help="Negatives of each pair, at most.")] = 5,
    first: Annotated[int, typer.Option("--from", help="The rank of the nearest text that may be one.")] = 10,
    last: Annotated[int, typer.Option("--to", help="The rank of the farthest text that may be one.")] = 100,
    margin: Annotated[
        float, typer.Option(help="A negative's cosine may be at most this share of the positive's.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(help="Of the draw from these ranks.")] = 0,
    resume: ResumeFile = False,
    on_error: OnError = "stop",
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Find hard negatives: texts that are near the first text of a pair and are not its second.

    bertkit finetune vectors --train OUT learns from them. After a kill, --resume continues.
    """
    from bertkit.predict.files.mine import MineSettings, mine_file
    from bertkit.predict.files.pipeline import RunOptions
    from bertkit.predict.files.rows import MINE_SETTINGS, read_file_settings
    from bertkit.progress import progress

    chosen = MineSettings(negatives=negatives, first=first, last=last, margin=margin, seed=seed)
    reading = read_file_settings(settings or [], MINE_SETTINGS)
    options = RunOptions(resume=resume, on_error=on_error, device=device, dtype=dtype)
    mined = mine_file(model, pairs, corpus, out, chosen, reading, options, show=progress, say=print_note)
    print_skipped(out, mined.skipped)
    if mined.fewer:
        print_note(f"{mined.fewer} pairs have under {negatives} negatives, {mined.none} of them none; raise --to")
    line = f"{mined.pairs} pairs with {mined.negatives} negatives in {out}, by the model '{mined.model}'"
    print(json.dumps({**asdict(mined), "out": str(out)}) if as_json else line)
