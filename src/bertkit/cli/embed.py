"""`bertkit embed`: compute a vector for each text of a file."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.common import parse_integers, print_note, print_skipped
from bertkit.cli.options import AsJson, Cluster, Device, Dtype, InputFile, OnError, ResumeFile, Workers
from bertkit.poolings import TEXT_POOLINGS


def embed(
    texts: InputFile,
    out: Annotated[Path, typer.Option(help="The file to write: .npy or .parquet.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...",
            help="How to read the file: text=COLUMN id=COLUMN format=jsonl header= quotes= encoding=",
        ),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="A model folder, or 'bundled'; by default the bundled 'sentences'.")
    ] = None,
    pooling: Annotated[str | None, typer.Option(help=f"Pooling of the tokens: {', '.join(TEXT_POOLINGS)}.")] = None,
    layers: Annotated[str | None, typer.Option(help="Layers to concatenate, such as -1,-2; -1 is the last.")] = None,
    normalize: Annotated[bool | None, typer.Option(help="Scale each vector to Euclidean length 1.")] = None,
    dimensions: Annotated[
        int | None, typer.Option(help="Keep this many leading numbers of each vector, at length 1.")
    ] = None,
    prompt_name: Annotated[
        str | None, typer.Option(help="Put this prompt of the model's folder before each text, such as query.")
    ] = None,
    too_long: Annotated[str, typer.Option(help="Texts over the limit: truncate, window or refuse.")] = "truncate",
    stored: Annotated[
        str, typer.Option("--vectors", help="Numbers on disk: float32, float16, int8 or binary (eight in a byte).")
    ] = "float32",
    resume: ResumeFile = False,
    on_error: OnError = "stop",
    workers: Workers = 0,
    cluster: Cluster = False,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Compute one vector for each text of a file, in order, with constant memory.

    After a kill or a full disk, --resume continues; the result is that of an uninterrupted run.
    """
    from bertkit.predict.files.embed import VectorSettings, embed_file
    from bertkit.predict.files.pipeline import RunOptions
    from bertkit.predict.files.rows import EMBED_SETTINGS, read_file_settings
    from bertkit.progress import progress
    from bertkit.settings import pick
    from bertkit.text.length import POLICIES

    policy = pick(POLICIES, too_long, "length policy")
    chosen = None if layers is None else parse_integers(layers, "--layers", "-1,-2")
    how: dict[str, Any] = {"pooling": pooling, "layers": chosen, "normalize": normalize, "dimensions": dimensions}
    vectors = VectorSettings(**how, prompt_name=prompt_name, too_long=policy, vectors=stored)
    reading = read_file_settings(settings or [], EMBED_SETTINGS)
    options = RunOptions(resume=resume, on_error=on_error, workers=workers, cluster=cluster, device=device, dtype=dtype)
    result = embed_file(model, texts, out, vectors, reading, options, show=progress, say=print_note)
    print_note(result.note)
    print_skipped(out, result.state.skipped)
    summary: dict[str, Any] = {"texts": result.state.written, "width": result.width, "out": str(out)}
    summary["model"] = result.model
    summary |= {"skipped": result.state.skipped} if on_error == "skip" else {}
    by = f", by the model '{result.model}'" if model is None else ""
    print(json.dumps(summary) if as_json else f"{result.state.written} vectors of {result.width} in {out}{by}")
