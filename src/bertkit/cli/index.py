"""`bertkit index`: make an index folder of documents, or append to one."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertkit.cli.common import print_note
from bertkit.cli.options import AsJson, OnError
from bertkit.search.retrievers.table import RETRIEVERS

if TYPE_CHECKING:
    from bertkit.search.build import Models

KINDS = "; ".join(f"{row.name}, {row.summary}" for row in RETRIEVERS.values())


def index(
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXTS... [NAME=VALUE]...",
            help="Files: lines, JSONL, CSV, TSV or Parquet, compressed or not; - is stdin. How to read them: "
            "text=COLUMN id=COLUMN title=COLUMN format=jsonl header= quotes= encoding=; how to index: vectors=int8 "
            "k1=1.2 b=0.75",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder of the index; documents are appended to one that exists.")],
    kind: Annotated[str | None, typer.Option(help=f"By default bm25,dense. {KINDS}.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A model folder, or KIND=FOLDER for one of several kinds; by default the bundled 'sentences'."
        ),
    ] = None,
    on_error: OnError = "stop",
    as_json: AsJson = False,
) -> None:
    """Index documents for `bertkit search`, in bounded memory: their texts, ids and what each retriever needs.

    After a kill or a full disk the same command goes on, with every document once. With other files it appends them.
    """
    from bertkit.predict.files.pipeline import RunOptions
    from bertkit.predict.files.rows import INDEX_SETTINGS, FileSettings
    from bertkit.progress import progress
    from bertkit.search.build import SKIPPED, build_folder, setting_names
    from bertkit.search.sources import HowToRead
    from bertkit.settings import change, split_pair

    own = setting_names(RETRIEVERS)
    files, pairs = split_words(settings, [*INDEX_SETTINGS, *own])
    reading = dict(split_pair(pair, INDEX_SETTINGS) for pair in pairs if pair.partition("=")[0] in INDEX_SETTINGS)
    how = HowToRead(change(FileSettings(), reading), RunOptions(on_error=on_error).skip, progress, print_note)
    others = [pair for pair in pairs if pair.partition("=")[0] not in INDEX_SETTINGS]
    kinds = None if kind is None else [part.strip() for part in kind.split(",") if part.strip()]
    built = build_folder(files, out, kinds, named_models(model or []), others, how)
    for note in built.notes:
        print_note(note)
    if built.skipped:
        rows = "1 row was" if built.skipped == 1 else f"{built.skipped:,} rows were"
        print_note(f"{rows} left out; {out}/segments/*/{SKIPPED} lists them")
    summary = {"documents": built.documents, "added": built.added, "skipped": built.skipped, "out": str(out)}
    added = "1 document" if built.added == 1 else f"{built.added:,} documents"
    print(json.dumps(summary) if as_json else f"{added} added, {built.documents:,} in {out}")


def split_words(words: list[str], names: list[str]) -> tuple[list[Path], list[str]]:
    """Files, and `name=value` pairs; a word with such a form is a file only if there is one."""
    from bertkit.errors import RequestError
    from bertkit.settings import check_name

    pairs = [
        word for word in words if word.partition("=")[0].isidentifier() and "=" in word and not Path(word).exists()
    ]
    for pair in pairs:
        check_name(pair.partition("=")[0], names)
    if not (files := [Path(word) for word in words if word not in pairs]):
        raise RequestError("no file of documents is named; - is standard input")
    return files, pairs


def named_models(words: list[str]) -> "Models":
    """`--model minilm` for all kinds that need one, `--model dense=minilm` for one."""
    models = {}
    for word in words:
        kind, equals, path = word.partition("=")
        models.update({kind: path} if equals and kind in RETRIEVERS else {"": word})
    return models
