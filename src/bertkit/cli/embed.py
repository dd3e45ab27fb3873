"""`bertkit embed`: a file of texts to a file of vectors."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import AsJson, Cluster, Device, Dtype, InputFile, OnError, ResumeFile, Workers
from bertkit.poolings import TEXT_POOLINGS


def embed(
    texts: InputFile,
    out: Annotated[Path, typer.Option(help="Where the vectors go: .npy or .parquet.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="text=column id=column format=jsonl header= quotes= encoding="),
    ] = None,
    model: Annotated[Path | None, typer.Option(help="A model folder, or 'sentences'; else the bundled one.")] = None,
    pooling: Annotated[str | None, typer.Option(help=f"{', '.join(TEXT_POOLINGS)}.")] = None,
    layers: Annotated[str | None, typer.Option(help="Layers to concatenate: -1 is the last; e.g. -1,-2.")] = None,
    normalize: Annotated[bool | None, typer.Option(help="Scale each vector to length 1.")] = None,
    too_long: Annotated[str, typer.Option(help="truncate, window or refuse texts over the limit.")] = "truncate",
    resume: ResumeFile = False,
    on_error: OnError = "stop",
    workers: Workers = 0,
    cluster: Cluster = False,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Turn each text of a file into one vector, in order, in little memory however long the file is.

    Killed or out of space, --resume goes on; each row is there once, as in a run that was never stopped.
    """
    from bertkit.predict.files.embed import VectorSettings, embed_file
    from bertkit.predict.files.pipeline import RunOptions
    from bertkit.predict.files.rows import EMBED_SETTINGS, read_file_settings
    from bertkit.progress import progress
    from bertkit.settings import pick
    from bertkit.text.length import POLICIES

    policy = pick(POLICIES, too_long, "length policy")
    wanted = VectorSettings(pooling=pooling, layers=_numbers(layers), normalize=normalize, too_long=policy)
    reading = read_file_settings(settings or [], EMBED_SETTINGS)
    how = RunOptions(resume=resume, on_error=on_error, workers=workers, cluster=cluster, device=device, dtype=dtype)
    found = embed_file(model, texts, out, wanted, reading, how, show=progress, say=say)
    say(found.note)
    tell_skipped(out, found.state.skipped)
    done: dict[str, Any] = {"texts": found.state.written, "width": found.width, "out": str(out)}
    done |= {"skipped": found.state.skipped} if on_error == "skip" else {}
    print(json.dumps(done) if as_json else f"{found.state.written} vectors of {found.width} in {out}")


def _numbers(text: str | None) -> list[int] | None:
    from bertkit.errors import RequestError

    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError as error:
        raise RequestError(f"--layers {text} must be whole numbers with commas, such as -1,-2") from error


def say(note: str) -> None:
    """Beside the result: what was guessed, what was cut."""
    if note:
        print(f"bertkit: note: {note}", file=sys.stderr)


def tell_skipped(out: Path, count: int) -> None:
    """How many rows were left out, the first of them with the reasons, and where all are."""
    from bertkit.predict.files.pipeline import first_skipped, skipped_file

    if not count:
        return
    say(f"{count} {'row was' if count == 1 else 'rows were'} left out; all are in {skipped_file(out)}")
    for line in first_skipped(out):
        print(f"  {line}", file=sys.stderr)
