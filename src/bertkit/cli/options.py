"""Arguments and options that several verbs have; `completion.py` reads their declarations without importing them."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Model = Annotated[Path | None, typer.Option(help="A model folder; else the bundled one.")]
FineTunedModel = Annotated[Path, typer.Argument(help="A fine-tuned model's folder.")]
Text = Annotated[str, typer.Argument(help="A text.")]
Pair = Annotated[str | None, typer.Option(help="A second text, read together with the first.")]
Corpus = Annotated[
    list[Path],
    typer.Argument(help="Files or folders: plain text with a blank line between documents, or .jsonl with 'text'."),
]
ColumnNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME=COLUMN]...", help="text=, pair=, label= and the like; guessed if not given."),
]
ResumeRun = Annotated[bool, typer.Option("--resume", help="Continue where this run stopped, or begin.")]

# Of `embed` and `predict`, which read a file and write one.
InputFile = Annotated[Path, typer.Argument(help="Lines, JSONL, CSV, TSV or Parquet, compressed or not; - is stdin.")]
ResumeFile = Annotated[bool, typer.Option("--resume", help="Continue where this command was stopped, or begin.")]
OnError = Annotated[str, typer.Option(help="stop at a bad row, or skip it and list it in a file.")]
Workers = Annotated[int, typer.Option(help="Worker processes, one thread each; 0: none, all threads here.")]
Cluster = Annotated[bool, typer.Option("--cluster", help="Compute on a Ray cluster.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; by default a GPU if there is one.")]
Dtype = Annotated[
    str | None, typer.Option(help="float32, bfloat16, float16 or int8; by default bfloat16 on a GPU, else float32.")
]
