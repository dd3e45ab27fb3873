"""`bertkit evaluate`: score a model on labeled examples or by a yardstick, alone or beside another model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.options import AsJson, ColumnNames
from bertkit.progress import is_quiet


def evaluate(
    model: Annotated[Path, typer.Argument(help="A model folder; bundled and sentences are those of the package.")],
    examples: Annotated[Path, typer.Argument(help="A file of labeled examples, as for bertkit finetune, or a folder.")],
    columns: ColumnNames = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="For a model that was not fine-tuned: minimal-pairs (columns sentence_good, sentence_bad), blanks "
            "(text, answers), similarity (two texts, score), retrieval (a folder as BEIR's), clustering (text, "
            "label), glue (a folder of tasks to fine-tune on). Default: recognized by the columns."
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="A second model to compare: difference of the main metric, its interval and p-value."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Number of runs; for clustering (5 by default) and glue (3).")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Write an HTML report: scores, baseline, labels, confusions, calibration, worst errors."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score a fine-tuned model on labeled examples, by the metrics of its task; another model by a yardstick.

    Examples: bertkit evaluate run/model test.tsv label=stars; bertkit evaluate bundled blimp.jsonl; bertkit evaluate
    minilm cisi/ --against bundled
    """
    from bertkit.api import evaluate as run_evaluation

    column_names = dict(column.partition("=")[::2] for column in columns or [])
    result = run_evaluation(model, examples, by=by, against=against, seeds=seeds, report=report, **column_names)
    shown = replace(result, note="") if is_quiet() else result
    print(json.dumps(result.to_json(), ensure_ascii=False) if as_json else shown)
    if report and not as_json:
        print(f"report: {report}")
