"""`bertkit shards`: tokenize a corpus into shards for pre-training."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import AsJson, Corpus
from bertkit.progress import progress


def shards(
    texts: Corpus,
    vocab: Annotated[Path, typer.Option(help="A model folder, a folder with a tokenizer, or a vocab.txt.")],
    out: Annotated[Path, typer.Option(help="The folder to write; an interrupted one is continued.")],
    processes: Annotated[int | None, typer.Option(help="Number of worker processes; by default one per core.")] = None,
    entities: Annotated[Path | None, typer.Option(help="A file of names, one per line, for masking=entity.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tokenize a corpus once into shards, from which every pre-training objective makes its examples.

    Text may be compressed (.gz .bz2 .xz .zst). If the command is interrupted, run it again to continue.
    Example: bertkit shards books/*.txt --vocab vocab/ --out shards/
    """
    from bertkit.checkpoint.bundled import tokenizer_folder
    from bertkit.text.shards.writer import write_shards

    report = write_shards(texts, tokenizer_folder(vocab), out, processes=processes, entities=entities, show=progress)
    print(json.dumps(report, indent=2) if as_json else _format_report(report))


def _format_report(report: dict[str, Any]) -> str:
    """The report as lines of text."""
    lines = {
        "shards": f"{report['shards']:,} in {report['out']}",
        "tokens": f"{report['tokens']:,} in {report['words']:,} words",
        "sentences": f"{report['sentences']:,} in {report['documents']:,} documents",
        "time": f"{report['seconds']:.1f} s",
    }
    if report["kept"]:
        lines["shards"] += f", {report['kept']:,} of them from an earlier run"
    if report["entities"]:
        lines["entities"] = f"{report['entities']:,}"
    notes = [f"note: {reason} ({note['count']:,}, first: {note['first']})" for reason, note in report["notes"].items()]
    return "\n".join([*(f"{name:12}{text}" for name, text in lines.items()), *notes])
