"""Rows of a file to predictions in a file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertkit.data.tables import Row, Table
from bertkit.errors import RequestError
from bertkit.predict.answers import Answers
from bertkit.predict.bert import Bert
from bertkit.predict.files.outputs import (
    TABLES,
    Kept,
    arrow_bytes,
    arrow_schema,
    check_ending,
    csv_bytes,
    finish_parquet,
    jsonl_bytes,
    kept_columns,
)
from bertkit.predict.files.pipeline import Computed, Job, Output, RunOptions, describe, long_texts, run_file
from bertkit.predict.files.resume import ROWS, State, check_outputs
from bertkit.predict.files.rows import Item, open_source
from bertkit.predict.files.settings import FileSettings
from bertkit.progress import ShowProgress, silent
from bertkit.tasks.row import Detail
from bertkit.tasks.table import TASKS


@dataclass(frozen=True)
class AnsweredFile:
    """What was done: where the work ended, the task, the columns of the predictions, texts over the limit."""

    state: State
    task: str
    columns: tuple[str, ...]
    note: str


def predict_file(
    model: Path | None,
    rows: Path,
    out: Path,
    reading: FileSettings,
    how: RunOptions,
    *,
    show: ShowProgress = silent,
    say: Callable[[str], None] = lambda _: None,
) -> AnsweredFile:
    """A prediction for each row of a file or, with `-`, of standard input, beside the columns it came with.

    `say` hears which columns were guessed, and which of the predictions' had to be renamed.
    """
    check_ending(out, TABLES)
    check_outputs(out, {}, resume=how.resume)
    bert = how.hardware.load(model)
    answers, detail = bert.answers, reading.detail
    task = answers.task
    detail.check(task.row, TASKS.values())
    source = open_source(task.row, rows, reading.columns, reading.format)
    say(source.said)
    types = task.row.columns(task.labels, detail)
    kept, names = _layout(source.table, out.suffix, reading.keep, list(types), say)
    columns = (*kept.names, *names.values())
    schema = None
    if out.suffix == ".parquet":
        schema = arrow_schema(source.table, kept, {names[column]: kind for column, kind in types.items()})
    job = AnswerJob(model, how.hardware, how.skip, out.suffix, columns, names, kept, detail, schema)
    begun = {**describe(bert, source, how), "kept": str(reading.keep), "told": str(detail)}
    state = run_file(source, job, bert, Output("predicting", out, begun), how, show)
    note = long_texts(state, "cut to, or read through windows of,", task.limit)
    return AnsweredFile(state, task.name, tuple(names.values()), note)


def _layout(
    table: Table, ending: str, keep: str | None, columns: Sequence[str], say: Callable[[str], None]
) -> tuple[Kept, dict[str, str]]:
    """The kept columns, and the names of the predictions beside them."""
    names = renamed(columns, kept_columns(table, ending, keep, ()).names)
    changed = [f"'{new}', for '{old}' is there already" for old, new in names.items() if old != new]
    if changed:
        say(f"predictions are called {', '.join(changed)}")
    return kept_columns(table, ending, keep, tuple(names.values())), names


@dataclass(frozen=True)
class AnswerJob(Job):
    """How rows become predictions beside the columns that they came with."""

    ending: str
    columns: tuple[str, ...]  # of CSV, in order
    names: Mapping[str, str]  # what each column of a prediction is called here
    kept_cells: Kept
    detail: Detail
    schema: Any  # Parquet's

    @property
    def head(self) -> bytes:
        """The schema of Parquet, the header line of CSV."""
        if self.schema is not None:
            return bytes(self.schema.serialize())
        return csv_bytes([self.columns]) if self.ending == ".csv" else b""

    def kept(self, row: Row) -> dict[str, Any]:
        """The row's own cells."""
        return self.kept_cells.of(row)

    def compute(self, bert: Bert, items: Sequence[Item]) -> Computed:
        """A block of rows as bytes of the output."""
        try:
            return _answered(self, bert.answers, items)
        except RequestError:
            if not self.skip:
                raise
            usable, faults = _sifted(bert.answers, items)
            if not faults:  # it was no row's fault
                raise
            return replace(_answered(self, bert.answers, usable), faults=faults)

    def finish(self, stream: Path, rows: int) -> Path:
        """Record batches become Parquet."""
        return stream if self.schema is None else finish_parquet(stream)


def renamed(columns: Sequence[str], taken: Sequence[str]) -> dict[str, str]:
    """Names for the columns of a prediction that none of the kept columns has.

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


def _answered(job: AnswerJob, answers: Answers, items: Sequence[Item]) -> Computed:
    row, examples = answers.task.row, [answers.task.preprocess(item.example) for item in items]
    rows, long = [], []
    for item, example, prediction in zip(items, examples, answers.predict(examples), strict=True):
        cells = row.cells(example, prediction, job.detail)
        rows.append({**item.kept, **{job.names[name]: value for name, value in cells.items()}})
        if cells["cut"] or cells["windows"] > 1:
            long.append((item.place, prediction.seen.tokens))
    return Computed({ROWS: _bytes(job, rows)}, len(rows), (), tuple(long))


def _sifted(answers: Answers, items: Sequence[Item]) -> tuple[list[Item], tuple[str, ...]]:
    """Rows that the task can make windows of, and what it says about the others."""
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
