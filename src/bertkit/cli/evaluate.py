"""`bertkit evaluate`: score a fine-tuned model on labeled examples."""

import json
from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.options import AsJson, ColumnNames, FineTunedModel


def evaluate(
    model: FineTunedModel,
    examples: Annotated[Path, typer.Argument(help="A file of labeled examples, as for bertkit finetune.")],
    columns: ColumnNames = None,
    as_json: AsJson = False,
) -> None:
    """Score a fine-tuned model on labeled examples, by the metrics of its task.

    Example: bertkit evaluate run/model test.tsv label=stars
    """
    from bertkit.api import evaluate as run_evaluation

    column_names = dict(column.partition("=")[::2] for column in columns or [])
    result = run_evaluation(model, examples, **column_names)
    print(json.dumps(result.to_json(), ensure_ascii=False) if as_json else result)
