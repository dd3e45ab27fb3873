"""`bertkit predict`: the predictions of a fine-tuned model for each row of a file."""

import json
from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.embed import say, tell_skipped
from bertkit.cli.options import AsJson, Cluster, Device, Dtype, FineTunedModel, InputFile, OnError, ResumeFile, Workers
from bertkit.tasks.table import TASKS


def predict(
    model: FineTunedModel,
    rows: InputFile,
    out: Annotated[Path, typer.Option(help="Where the predictions go: .jsonl, .csv or .parquet.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...",
            help="text=column pair=column keep=columns probabilities=true best=5 format=csv header= quotes= encoding=",
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
    """Write predictions beside the columns of each row, in order, with constant memory.

    After a kill or a full disk, --resume continues; no row is lost. The columns are those of the model's task:
    """
    from bertkit.predict.files.answers import predict_file
    from bertkit.predict.files.pipeline import RunOptions
    from bertkit.predict.files.rows import PREDICT_SETTINGS, read_file_settings
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


predict.__doc__ = f"{predict.__doc__}{'; '.join(f'{row.name}: {row.main_columns}' for row in TASKS.values())}."
