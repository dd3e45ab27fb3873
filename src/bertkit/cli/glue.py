"""`bertkit glue`: every task in a folder, one table."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer


def glue(
    folder: Annotated[Path, typer.Argument(help="A folder with a folder for each task: SST-2/train.tsv, dev.tsv, ...")],
    settings: Annotated[list[str] | None, typer.Argument(help="key=value ..., for all tasks.")] = None,
    start: Annotated[Path | None, typer.Option("--from", help="The model to start from; else the bundled one.")] = None,
    out: Annotated[Path, typer.Option(help="Where the runs go, a folder for each task.")] = Path("glue"),
    seeds: Annotated[int, typer.Option(help="So many runs of each task.")] = 1,
    only: Annotated[str | None, typer.Option(help="Only these tasks: SST-2,CoLA.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
) -> None:
    """Fine-tune on every task that a folder holds, and print one table with published rows beside it.

    What is done already in --out is not done again, so that a stopped command goes on when it is given again.
    """
    from bertkit.finetuning.explore.glue import find_tasks, glue_table, run_glue
    from bertkit.finetuning.settings import read_settings
    from bertkit.progress import progress
    from bertkit.settings import pick

    wanted = read_settings(*(settings or []))
    start = start or Path("bundled")
    found = {data.task.name: data for data in find_tasks(folder)}
    chosen = [pick(found, name, "task in this folder") for name in only.split(",")] if only else list(found.values())
    results = run_glue(chosen, start, wanted, out, seeds=seeds, show=progress)
    scores = {name: each.to_json() for name, each in results.items()}
    print(json_module.dumps(scores) if json else glue_table(results, start.absolute().name))
