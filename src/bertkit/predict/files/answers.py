"""From a file of rows to a file of predictions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertkit.data.tables import Row, Table
from bertkit.errors import RequestError
from bertkit.predict.answers import Answers
from bertkit.predict.bert import Bert
from bertkit.predict.files.outputs import (
    TABLE_ENDINGS,
    KeptColumns,
    arrow_bytes,
    arrow_schema,
    check_ending,
    csv_bytes,
    finish_parquet,
    jsonl_bytes,
    kept_columns,
)
from bertkit.predict.files.pipeline import Computed, Job, Output, RunOptions, describe, long_texts, run_file
from bertkit.predict.files.resume import ROWS_STREAM, State, check_outputs
from bertkit.predict.files.rows import FileSettings, Item, open_source
from bertkit.progress import ShowProgress, silent
from bertkit.tasks.row import Detail
from bertkit.tasks.table import TASKS


@dataclass(frozen=True)
class AnsweredFile:
    """The result of `predict_file`."""

    state: State
    task: str
    columns: tuple[str, ...]  # of the predictions
    note: str  # on texts over the limit; empty if there were none


def predict_file(
    model: Path | None,
    rows: Path,
    out: Path,
    file: FileSettings,
    options: RunOptions,
    *,
    show: ShowProgress = silent,
    say: Callable[[str], None] = lambda _: None,
) -> AnsweredFile:
    """Write predictions for each row of a file, or with `-` of standard input, beside the columns of the row.

    `say` is called with notes on which columns were guessed, and which columns of the predictions were renamed.
    """
    check_ending(out, TABLE_ENDINGS)
    check_outputs(out, {}, resume=options.resume)
    bert = options.hardware.load(model)
    answers, detail = bert.answers, file.detail
    task = answers.task
    detail.check(task.row, TASKS.values())
    source = open_source(task.row, rows, file.columns, file.format)
    say(source.note)
    types = task.row.columns(task.labels, detail)
    kept, names = _layout(source.table, out.suffix, file.keep, list(types), say)
    columns = (*kept.names, *names.values())
    schema = None
    if out.suffix == ".parquet":
        schema = arrow_schema(source.table, kept, {names[column]: kind for column, kind in types.items()})
    job = AnswerJob(model, options.hardware, options.skip, out.suffix, columns, names, kept, detail, schema)
    in_common = {**describe(bert, source, options), "keep": str(file.keep), "detail": str(detail)}
    state = run_file(source, job, bert, Output("predicting", out, in_common), options, show)
    note = long_texts(state, "cut to, or read through windows of,", task.limit)
    return AnsweredFile(state, task.name, tuple(names.values()), note)


def _layout(
    table: Table, ending: str, keep: str | None, columns: Sequence[str], say: Callable[[str], None]
) -> tuple[KeptColumns, dict[str, str]]:
    """The columns to copy, and the names of the predictions' columns beside them."""
    names = renamed(columns, kept_columns(table, ending, keep, ()).names)
    changes = [f"'{new}', for '{old}' is there already" for old, new in names.items() if old != new]
    if changes:
        say(f"predictions are called {', '.join(changes)}")
    return kept_columns(table, ending, keep, tuple(names.values())), names


@dataclass(frozen=True)
class AnswerJob(Job):
    """Rows to predictions beside the columns of the input."""

    ending: str
    columns: tuple[str, ...]  # of CSV, in order
    names: Mapping[str, str]  # columns of a prediction -> their names in the output
    kept_columns: KeptColumns
    detail: Detail
    schema: Any  # of Parquet; None for other formats

    @property
    def head(self) -> bytes:
        """The schema of Parquet, the header line of CSV."""
        if self.schema is not None:
            return bytes(self.schema.serialize())
        return csv_bytes([self.columns]) if self.ending == ".csv" else b""

    def kept_cells(self, row: Row) -> dict[str, Any]:
        """The row's cells that are copied."""
        return self.kept_columns.cells(row)

    def compute(self, bert: Bert, items: Sequence[Item]) -> Computed:
        """The predictions for a block of rows as bytes of the output."""
        try:
            return _predict(self, bert.answers, items)
        except RequestError:
            if not self.skip:
                raise
            usable, faults = _usable(bert.answers, items)
            if not faults:  # no single row is the cause
                raise
            return replace(_predict(self, bert.answers, usable), faults=faults)

    def finish(self, stream: Path, rows: int) -> Path:
        """Convert record batches to Parquet."""
        return stream if self.schema is None else finish_parquet(stream)


def renamed(columns: Sequence[str], taken: Sequence[str]) -> dict[str, str]:
    """Names for the columns of a prediction, different from those `taken`.

    >>> renamed(["label", "probability"], ["text", "label"])
    {'label': 'predicted_label', 'probability': 'probability'}
    """
    names: dict[str, str] = {}
    for column in columns:
        name = column
        while name in taken or name in names.values():
            name = f"predicted_{name}"
        names[column] = name
    return names


def _predict(job: AnswerJob, answers: Answers, items: Sequence[Item]) -> Computed:
    row, examples = answers.task.row, [answers.task.preprocess(item.example) for item in items]
    rows, long = [], []
    for item, example, prediction in zip(items, examples, answers.predict(examples), strict=True):
        cells = row.cells(example, prediction, job.detail)
        rows.append({**item.kept_cells, **{job.names[name]: value for name, value in cells.items()}})
        if cells["cut"] or cells["windows"] > 1:
            long.append((item.location, prediction.seen.tokens))
    return Computed({ROWS_STREAM: _bytes(job, rows)}, len(rows), (), tuple(long))


def _usable(answers: Answers, items: Sequence[Item]) -> tuple[list[Item], tuple[str, ...]]:
    """The rows that the task accepts, and the error messages of the others."""
    usable, faults = [], []
    for item in items:
        try:
            answers.task.windows(answers.task.preprocess(item.example), 0)
            usable.append(item)
        except RequestError as error:
            faults.append(str(error))
    return usable, tuple(faults)


def _bytes(job: AnswerJob, rows: Sequence[Mapping[str, Any]]) -> bytes:
    if job.ending == ".jsonl":
        return jsonl_bytes(rows)
    if job.ending == ".csv":
        return csv_bytes([[row.get(name) for name in job.columns] for row in rows])
    return arrow_bytes(rows, job.schema)
