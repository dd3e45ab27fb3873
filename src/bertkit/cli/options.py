"""Arguments, options and helpers that several verbs share.

`completion.py` reads the declarations of the options from this file's source, without importing it.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.verbs import print_note
from bertkit.errors import RequestError

INTERRUPTED = 130  # exit code of a command stopped by SIGTERM or Ctrl-C, as a shell reports it

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Model = Annotated[Path | None, typer.Option(help="A model folder; by default the bundled model.")]
FineTunedModel = Annotated[Path, typer.Argument(help="The folder of a fine-tuned model.")]
Text = Annotated[str, typer.Argument(help="The text to analyze.")]
Pair = Annotated[str | None, typer.Option(help="A second text, read together with the first as a pair.")]
Corpus = Annotated[
    list[Path],
    typer.Argument(
        help="Files or folders: plain text with a blank line between documents, or .jsonl with a 'text' field."
    ),
]
ColumnNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME=COLUMN]...", help="The columns: text=, pair=, label= and so on; by default guessed."),
]
ResumeRun = Annotated[bool, typer.Option("--resume", help="Continue the run in --out, or start it.")]

# Options of `embed` and `predict`, which read a file and write one.
InputFile = Annotated[Path, typer.Argument(help="Lines, JSONL, CSV, TSV or Parquet, compressed or not; - is stdin.")]
ResumeFile = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run of this command, or start.")]
OnError = Annotated[str, typer.Option(help="At a bad row: stop, or skip it and list it in a file.")]
Workers = Annotated[int, typer.Option(help="Worker processes of one thread each; 0: this process, all threads.")]
Cluster = Annotated[bool, typer.Option("--cluster", help="Run on a Ray cluster.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; by default a GPU if there is one.")]
Dtype = Annotated[
    str | None, typer.Option(help="float32, bfloat16, float16 or int8; by default bfloat16 on a GPU, else float32.")
]


def parse_integers(text: str, option: str, example: str) -> list[int]:
    """The numbers of an option such as `--layers -1,-2`."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise RequestError(f"{option} {text} must be whole numbers separated by commas, such as {example}") from error


def print_skipped(out: Path, count: int) -> None:
    """Print how many rows were skipped, the first of them with their reasons, and which file lists all."""
    from bertkit.predict.files.pipeline import first_skipped, skipped_file

    if count:
        print_note(f"{count} {'row was' if count == 1 else 'rows were'} left out; all are in {skipped_file(out)}")
        for line in first_skipped(out):
            print(f"  {line}", file=sys.stderr)
