"""`bertkit probe`: what linear probes can predict from each layer."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertkit.cli.options import AsJson, Model

if TYPE_CHECKING:
    from bertkit.inside.probes.page import ProbeTable


def probe(
    files: Annotated[
        list[Path],
        typer.Argument(help="CoNLL-U or column files: train on all but the last file, test on the last."),
    ],
    model: Model = None,
    task: Annotated[str, typer.Option(help="pos, ner, arcs (relations to heads), or structure (whole trees).")] = "pos",
    out: Annotated[Path | None, typer.Option(help="A new folder for report.html and result.json.")] = None,
    column: Annotated[
        str | None, typer.Option(help="The column of the labels, such as xpos or 4; by default UPOS or the last one.")
    ] = None,
    pieces: Annotated[str, typer.Option(help="Vector of a word with several tokens: mean, first or last.")] = "mean",
    sentences: Annotated[int | None, typer.Option(help="Train on at most this many sentences.")] = None,
    rank: Annotated[int, typer.Option(help="With structure: rank of the probe (dimensions of its space).")] = 128,
    seed: Annotated[int, typer.Option(help="Random seed: control task, untrained encoder, order.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Train linear probes on each layer, and compare with a control task and an untrained encoder.

    With a single file, the last fifth of it is held out for testing.
    Example: bertkit probe train.conllu dev.conllu --model model/ --task structure --out probe/
    """
    from bertkit.files import refuse_to_overwrite
    from bertkit.inside.probes.data import ProbeSettings
    from bertkit.inside.probes.page import probe_table, write_probe
    from bertkit.inside.probes.probe import probe as run_probe
    from bertkit.predict.bert import load
    from bertkit.progress import progress

    settings = ProbeSettings(what=task, pieces=pieces, column=column, sentences=sentences, rank=rank, seed=seed)
    if out:
        refuse_to_overwrite(out)
    bert = load(model)
    report = run_probe(bert, files, settings, show=progress)
    if out:
        write_probe(report, bert.checkpoint.name, out)
    if as_json:
        print(json.dumps(report.to_json(), ensure_ascii=False))
    else:
        _print_table(probe_table(report))
        if out:
            print(f"report in {out / 'report.html'}")


def _print_table(table: "ProbeTable") -> None:
    """Print the table, and its notes below it, one per line."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=None, box=SIMPLE_HEAD, pad_edge=False)
    for name in table.columns:
        shown.add_column(name, justify="right")
    for row in table.rows:
        shown.add_row(*row)
    print(table.title)
    Console().print(shown)
    for note in table.notes:
        print(note)
