"""`bertkit predict`: the predictions of a fine-tuned model for each row of a file."""

import json
from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.embed import say, tell_skipped
from bertkit.tasks.table import TASKS


def predict(
    model: Annotated[Path, typer.Argument(help="A fine-tuned model's folder.")],
    rows: Annotated[Path, typer.Argument(help="Lines, JSONL, CSV, TSV or Parquet, compressed or not; - is stdin.")],
    out: Annotated[Path, typer.Option(help="Where the predictions go: .jsonl, .csv or .parquet.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...",
            help="text=column pair=column keep=columns probabilities=true best=5 format=csv header= quotes= encoding=",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue where this command was stopped, or begin.")
    ] = False,
    on_error: Annotated[str, typer.Option(help="stop at a bad row, or skip it and list it in a file.")] = "stop",
    workers: Annotated[int, typer.Option(help="Worker processes, one thread each; 0: none, all threads here.")] = 0,
    cluster: Annotated[bool, typer.Option("--cluster", help="Compute on a Ray cluster.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; by default a GPU if there is one.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16, float16 or int8; by default bfloat16 on a GPU.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Write predictions beside the columns of each row, in order, with constant memory.

    After a kill or a full disk, --resume continues; no row is lost. The columns are those of the model's task:
    """
    from bertkit.predict.files.answers import predict_file
    from bertkit.predict.files.pipeline import RunOptions
    from bertkit.predict.files.settings import PREDICT_SETTINGS, read_file_settings
    from bertkit.progress import progress

    reading = read_file_settings(settings or [], PREDICT_SETTINGS)
    how = RunOptions(resume=resume, on_error=on_error, workers=workers, cluster=cluster, device=device, dtype=dtype)
    found = predict_file(model, rows, out, reading, how, show=progress, say=say)
    say(found.note)
    tell_skipped(out, found.state.skipped)
    state = found.state
    done = {"task": found.task, "rows": state.written, "skipped": state.skipped, "out": str(out)}
    told = f"{state.written} rows with {', '.join(found.columns)} in {out}"
    print(json.dumps({**done, "columns": found.columns}) if as_json else told)


predict.__doc__ = f"{predict.__doc__}{'; '.join(f'{row.name}: {row.written}' for row in TASKS.values())}."
