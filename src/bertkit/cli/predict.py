"""`bertkit predict`: the answers of a fine-tuned model for a text, or for each row of a file or of standard input."""

import json
import sys
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertkit.cli.common import print_note, print_skipped
from bertkit.cli.options import AsJson, Cluster, Device, Dtype, FineTunedModel, OnError, ResumeFile, Workers
from bertkit.errors import RequestError
from bertkit.tasks.row import LENGTH_COLUMNS
from bertkit.tasks.shared.label_set import LabelSet
from bertkit.tasks.table import TASKS

if TYPE_CHECKING:
    from bertkit.predict.files.pipeline import RunOptions
    from bertkit.predict.files.rows import FileSettings

FILE_ENDINGS = (
    ".txt",
    ".jsonl",
    ".json",
    ".csv",
    ".tsv",
    ".parquet",
    ".conll",
    ".conllu",
    ".gz",
    ".bz2",
    ".xz",
    ".zst",
)


def predict(
    model: FineTunedModel,
    source: Annotated[
        str,
        typer.Argument(
            metavar="TEXT|FILE|-",
            help="A text; or a file: lines, JSONL, CSV, TSV or Parquet, compressed or not; - is stdin.",
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...",
            help="How to read and write: text=COLUMN pair=COLUMN keep=COLUMNS probabilities=true best=5 format=csv "
            "header= quotes= encoding=",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write: .jsonl, .csv or .parquet; by default the terminal, or JSONL to a pipe."),
    ] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(help="With a TEXT: the second text of a pair, the passage of a question; repeated, the choices."),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            help="Labels to choose from, on which the model was not trained: refund,delivery; or a JSON file with a "
            "list of names or an object of descriptions by name."
        ),
    ] = None,
    multi_label: Annotated[
        bool, typer.Option("--multi-label", help="With --labels: judge each label by itself.")
    ] = False,
    template: Annotated[
        str | None, typer.Option(help="With --labels: the sentence around a name, with {} for it.")
    ] = None,
    resume: ResumeFile = False,
    on_error: OnError = "stop",
    workers: Workers = 0,
    cluster: Cluster = False,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Answer what the model was fine-tuned for, for one text or for each row of a file, in order, with constant memory.

    Where the file has labels, the score is printed too. After a kill or a full disk, --resume continues; no row is
    lost.
    """
    from bertkit.predict.files.pipeline import RunOptions
    from bertkit.predict.files.rows import PREDICT_SETTINGS, read_file_settings

    reading = read_file_settings(settings or [], PREDICT_SETTINGS)
    options = RunOptions(resume=resume, on_error=on_error, workers=workers, cluster=cluster, device=device, dtype=dtype)
    given = LabelSet.asked(_label_names(labels), template, multi_label=multi_label)
    to_stdout = out is None or str(out) == "-"
    if resume and to_stdout:
        raise RequestError("--resume goes with --out FILE")
    if not is_file(source):
        if not to_stdout:
            raise RequestError(f"{source:.60}: no such file; --out goes with a file of texts, or - for standard input")
        return _predict_text(model, source, pair or [], reading, options, given, as_json)
    if pair:
        raise RequestError(f"--pair goes with a text; {source} is a file: name its columns, as text=... pair=...")
    if out is not None and not to_stdout:
        return _predict_file(model, Path(source), out, reading, options, given, as_json)
    _predict_rows(model, Path(source), reading, options, given, plain=as_json or out is not None)


def _label_names(labels: str | None) -> object:
    """Names between commas, or what a JSON file holds."""
    if labels is None or not labels.endswith(".json"):
        return None if labels is None else labels.split(",")
    from bertkit.checkpoint.tensors import read_json

    return read_json(Path(labels))


def is_file(source: str) -> bool:
    """Whether an argument names a file or standard input; a name that ends as a file's does is one, too."""
    if source == "-":
        return True
    try:
        exists = Path(source).exists()
    except (OSError, ValueError):  # too long for a name
        return False
    return exists or (" " not in source and source.endswith(FILE_ENDINGS))


def _form(as_json: bool) -> str:
    """Lines on a terminal, JSONL elsewhere."""
    from bertkit.predict.files.answers import JSONL, TERMINAL

    return TERMINAL if sys.stdout.isatty() and not as_json else JSONL


def _write(data: bytes) -> None:
    sys.stdout.write(data.decode("utf-8"))
    sys.stdout.flush()


def _predict_text(
    model: Path,
    text: str,
    pair: list[str],
    reading: "FileSettings",
    options: "RunOptions",
    labels: LabelSet | None,
    as_json: bool,
) -> None:
    from bertkit.predict.files.answers import predict_text

    bert = options.hardware.load(model)
    _write(predict_text(bert, text, pair, _form(as_json), reading.detail, labels))


def _predict_rows(
    model: Path, rows: Path, reading: "FileSettings", options: "RunOptions", labels: LabelSet | None, *, plain: bool
) -> None:
    """Predictions on standard output; the score is a note, so that a pipe holds JSONL alone."""
    from bertkit.predict.files.answers import predict_rows

    scores = predict_rows(model, rows, _form(plain), reading, options, _write, labels=labels, say=print_note)
    if scores:
        print(f"score: {scores}", file=sys.stderr)


def _predict_file(
    model: Path,
    rows: Path,
    out: Path,
    reading: "FileSettings",
    options: "RunOptions",
    labels: LabelSet | None,
    as_json: bool,
) -> None:
    from bertkit.predict.files.answers import predict_file
    from bertkit.progress import progress

    result = predict_file(model, rows, out, reading, options, labels=labels, show=progress, say=print_note)
    state, scores = result.state, result.scores
    print_note(result.note)
    print_skipped(out, state.skipped)
    if as_json:
        summary = {"task": result.task, "rows": state.written, "skipped": state.skipped, "out": str(out)}
        print(json.dumps({**summary, "columns": result.columns, **({"scores": scores.values} if scores else {})}))
    else:
        print(f"{state.written} rows with {', '.join(result.columns)} in {out}")
        if scores:
            print(f"score: {scores}")


def _output_fields() -> str:
    """The fields of the output for each task, for --help."""
    rows = {row.name: ", ".join(row.output) for row in TASKS.values()}
    rows["all tasks"] = ", ".join(f"{name} ({meaning})" for name, meaning in LENGTH_COLUMNS.items())
    with_probabilities = ", ".join(row.name for row in TASKS.values() if row.has_probabilities)
    with_candidates = ", ".join(row.name for row in TASKS.values() if row.candidate)
    lines = ["Fields of the output (JSONL, CSV, Parquet), beside the columns of the input:"]
    lines += [f"  {name:<11} {fields}" for name, fields in rows.items()]
    lines += [f"probabilities=true adds probabilities of all labels or choices: {with_probabilities}."]
    lines += [f"best=5 adds candidates, the best five: {with_candidates}."]
    return "\b\n" + "\n".join(lines)


predict.__doc__ = f"{cleandoc(predict.__doc__ or '')}\n\n{_output_fields()}"
