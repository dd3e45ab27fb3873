"""Arguments and options that several verbs share.

`completion.py` reads the declarations of the options from this file's source, without importing it.
"""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Model = Annotated[
    Path | None, typer.Option(help="A model folder, or the id of a downloaded model; by default the bundled model.")
]
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


def common_options(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result and errors.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print all warnings, and tracebacks of errors.")
    ] = False,
) -> None:
    """The options of every verb, which only set how much is printed."""
