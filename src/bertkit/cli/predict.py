"""`bertkit predict`: run a fine-tuned model on each row of a file."""

import json
from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.common import print_note, print_skipped
from bertkit.cli.options import AsJson, Cluster, Device, Dtype, FineTunedModel, InputFile, OnError, ResumeFile, Workers
from bertkit.tasks.table import TASKS


def predict(
    model: FineTunedModel,
    rows: InputFile,
    out: Annotated[Path, typer.Option(help="The file to write: .jsonl, .csv or .parquet.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...",
            help="How to read and write: text=COLUMN pair=COLUMN keep=COLUMNS probabilities=true best=5 format=csv "
            "header= quotes= encoding=",
        ),
    ] = None,
    resume: ResumeFile = False,
    on_error: OnError = "stop",
    workers: Workers = 0,
    cluster: Cluster = False,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Write a prediction for each row of a file, next to the columns of the row, in order, with constant memory.

    After a kill or a full disk, --resume continues; no row is lost. The columns are those of the model's task:
    """
    from bertkit.predict.files.answers import predict_file
    from bertkit.predict.files.pipeline import RunOptions
    from bertkit.predict.files.rows import PREDICT_SETTINGS, read_file_settings
    from bertkit.progress import progress

    reading = read_file_settings(settings or [], PREDICT_SETTINGS)
    options = RunOptions(resume=resume, on_error=on_error, workers=workers, cluster=cluster, device=device, dtype=dtype)
    result = predict_file(model, rows, out, reading, options, show=progress, say=print_note)
    state = result.state
    print_note(result.note)
    print_skipped(out, state.skipped)
    summary = {"task": result.task, "rows": state.written, "skipped": state.skipped, "out": str(out)}
    text = f"{state.written} rows with {', '.join(result.columns)} in {out}"
    print(json.dumps({**summary, "columns": result.columns}) if as_json else text)


predict.__doc__ = f"{predict.__doc__}{'; '.join(f'{row.name}: {row.main_columns}' for row in TASKS.values())}."
