"""From a file of rows to a file of predictions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertkit.data.columns import with_trained
from bertkit.data.tables import Columns, Row, Table
from bertkit.errors import RequestError
from bertkit.predict.answers import Answers
from bertkit.predict.bert import Bert, label_answers
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
from bertkit.predict.files.pipeline import (
    Computed,
    Job,
    Output,
    RunOptions,
    compute_rows,
    describe,
    long_texts,
    run_file,
)
from bertkit.predict.files.resume import ROWS_STREAM, State, check_outputs
from bertkit.predict.files.rows import FileSettings, Item, RowSource, open_source
from bertkit.progress import ShowProgress, silent
from bertkit.tasks.folder import trained_columns
from bertkit.tasks.read import read_examples
from bertkit.tasks.row import Detail, TaskRow
from bertkit.tasks.shared.label_set import LabelSet
from bertkit.tasks.table import TASKS
from bertkit.tasks.task import Task
from bertkit.text.corpus import STDIN

JSONL, TERMINAL = ".jsonl", "terminal"  # forms of predictions that are not written to a file
MAX_SCORED = 100_000  # rows whose predictions are kept in memory for the score


@dataclass(frozen=True)
class AnsweredFile:
    """The result of `predict_file`."""

    state: State
    task: str
    columns: tuple[str, ...]  # of the predictions
    note: str  # on texts over the limit; empty if there were none
    scores: "Scores | None"  # None: the file has no labels


@dataclass(frozen=True)
class Scores:
    """The metrics of predictions for a file that has labels."""

    metric: str  # the main one
    values: Mapping[str, float]
    rows: int
    label: str | None  # the column of labels
    unit: str = "rows"  # what is scored

    def __str__(self) -> str:
        names = [self.metric, *(name for name in self.values if name != self.metric)]
        numbers = ", ".join(f"{name} {self.values[name]:.4f}" for name in names)
        return f"{numbers} ({self.rows:,} {self.unit}{f', label = {self.label}' if self.label else ''})"


def predict_file(
    model: Path | None,
    rows: Path,
    out: Path,
    file: FileSettings,
    options: RunOptions,
    *,
    labels: LabelSet | None = None,
    show: ShowProgress = silent,
    say: Callable[[str], None] = lambda _: None,
) -> AnsweredFile:
    """Write predictions for each row of a file, or with `-` of standard input, beside the columns of the row.

    `labels`: to choose from, if they are not those that the model was trained on.
    `say` is called with notes on which columns were guessed, and which columns of the predictions were renamed.
    """
    check_ending(out, TABLE_ENDINGS)
    check_outputs(out, {}, resume=options.resume)
    work = _open_work(model, rows, out.suffix, file, options, say, labels)
    in_common = {**describe(work.bert, work.source, options), "keep": str(file.keep), "detail": str(file.detail)}
    in_common |= {} if labels is None else {"labels": str(labels)}
    output = Output("predicting", out, in_common)
    state = run_file(work.source, work.job, work.bert, output, options, show, work.collect)
    task = work.task
    note = long_texts(state, "cut to, or read through windows of,", task.limit)
    scores = None if options.resume else work.scores(say)  # a resumed run has the predictions of its last part only
    return AnsweredFile(state, task.name, tuple(work.job.names.values()), note, scores)


def predict_rows(
    model: Path | None,
    rows: Path,
    form: str,
    file: FileSettings,
    options: RunOptions,
    write: Callable[[bytes], object],
    *,
    labels: LabelSet | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Scores | None:
    """As `predict_file`, with each block of predictions given to `write`: as JSONL, or as lines for a TERMINAL."""
    work = _open_work(model, rows, form, file, options, say, labels)
    for faults, computed in compute_rows(work.source, work.job, work.bert, options):
        for fault in (*faults, *computed.faults):
            say(f"left out: {fault}")
        write(computed.parts[ROWS_STREAM])
        work.collect(computed)
    return work.scores(say)


def predict_text(
    bert: Bert, text: str, second: Sequence[str], form: str, detail: Detail, labels: LabelSet | None = None
) -> bytes:
    """The prediction for one text as JSONL or as a line for a TERMINAL.

    `second` holds the second text of a pair, the passage of a question, or the choices, as the task needs.
    """
    answers = label_answers(bert, labels)
    row = answers.task.row
    detail.check(row, TASKS.values())
    inputs = _request_inputs(row, text, second)
    examples = row.examples(**inputs)
    [prediction] = answers.predict(examples)
    cells = row.cells(examples[0], prediction, detail)
    if form == TERMINAL:
        return f"{row.terminal_text(cells)}\n".encode()
    lists = {field.name for field in row.fields if field.kind == "choices"}
    kept = {name if name in lists else name.removesuffix("s"): values[0] for name, values in inputs.items()}
    names = renamed(list(cells), list(kept))
    return jsonl_bytes([{**kept, **{names[name]: value for name, value in cells.items()}}])


def _request_inputs(row: TaskRow, text: str, second: Sequence[str]) -> dict[str, Any]:
    """The inputs of a request with one text, by the names of the task's fields."""
    first, *others = row.fields
    if not others and second:
        raise RequestError(f"--pair does not go with '{row.name}', which reads one text")
    if not second:
        if others and not others[0].optional:
            raise RequestError(f"'{row.name}' reads a {first.name} and {others[0].name}; add --pair TEXT")
        return {first.name: [text]}
    if others[0].kind == "choices":
        return {first.name: [text], others[0].name: [list(second)]}
    if len(second) > 1:
        raise RequestError(f"--pair is given {len(second)} times; '{row.name}' reads one second text")
    return {first.name: [text], others[0].name: list(second)}


@dataclass(frozen=True)
class _Work:
    """A loaded model, an open file and what to do with its rows; predictions are kept if the file has labels."""

    bert: Bert
    source: RowSource
    job: "AnswerJob"
    columns: Columns  # as the user named them, or as in training
    task: Task
    predictions: dict[str, Any] = field(default_factory=dict)  # by location

    def collect(self, computed: Computed) -> None:
        """Keep the predictions of a block for the score."""
        if len(self.predictions) <= MAX_SCORED:
            self.predictions.update(computed.predictions)

    def scores(self, say: Callable[[str], None]) -> Scores | None:
        """The metrics, if the file has labels that the model knows."""
        if not self.predictions:
            return None
        task, path = self.task, self.source.table.path
        if len(self.predictions) > MAX_SCORED:
            say(f"{path} has labels; bertkit evaluate scores files of over {MAX_SCORED:,} rows")
            return None
        try:
            file = read_examples(task.name, path, self.columns)
            found = [(example, task.row.prediction_of(example, self.predictions)) for example in file.examples]
            examples, predictions = [e for e, p in found if p is not None], [p for _, p in found if p is not None]
            for example in examples:
                task.windows(task.preprocess(example), 0)  # refuses a label that the model does not know
            if not examples:
                return None
            values = task.score(examples, predictions)
        except RequestError as error:
            say(f"no score: {error}")
            return None
        return Scores(task.main_metric, values, len(examples), file.columns.label, task.row.example_unit)


def _open_work(
    model: Path | None,
    rows: Path,
    form: str,
    file: FileSettings,
    options: RunOptions,
    say: Callable[[str], None],
    labels: LabelSet | None,
) -> _Work:
    """Load the model and open the file; `form` is the ending of the output, or TERMINAL."""
    bert = options.hardware.load(model)
    task, detail = label_answers(bert, labels).task, file.detail
    detail.check(task.row, TASKS.values())
    trained = trained_columns(bert.checkpoint)
    source = open_source(task.row, rows, file.columns, file.format, trained)
    say(source.note)
    types = task.row.columns(task.labels, detail)
    say_names = (lambda _: None) if form == TERMINAL else say  # a terminal shows no columns
    kept, names = _layout(source.table, JSONL if form == TERMINAL else form, file.keep, list(types), say_names)
    columns = (*kept.names, *names.values())
    schema = None
    if form == ".parquet":
        schema = arrow_schema(source.table, kept, {names[column]: kind for column, kind in types.items()})
    columns_read = with_trained(source.table, file.columns, trained)
    scored = file.format is None and _has_labels(task.row, source, columns_read)
    job = AnswerJob(model, options.hardware, options.skip, form, columns, names, kept, detail, schema, scored, labels)
    return _Work(bert, source, job, columns_read, task)


def _has_labels(row: TaskRow, source: RowSource, columns: Columns) -> bool:
    """Whether the file has a column that looks like the labels of the task; lines of text have none."""
    if source.table.path is STDIN or not source.note:  # standard input cannot be read again
        return False
    try:
        row.reader(source.table, columns, True)
    except RequestError:
        return False
    return True


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
    scored: bool = False  # whether predictions are kept
    labels: LabelSet | None = None  # those to choose from; None: those that the model was trained on

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
            return _predict(self, label_answers(bert, self.labels), items)
        except RequestError:
            if not self.skip:
                raise
            usable, faults = _usable(label_answers(bert, self.labels), items)
            if not faults:  # no single row is the cause
                raise
            return replace(_predict(self, label_answers(bert, self.labels), usable), faults=faults)

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
    rows, long, predictions = list[dict[str, Any]](), [], answers.predict(examples)
    for item, example, prediction in zip(items, examples, predictions, strict=True):
        cells = row.cells(example, prediction, job.detail)
        if job.ending == TERMINAL:
            rows.append({"line": f"{row.terminal_text(cells)}  {' '.join(example.texts[0].split())}"})
        else:
            rows.append({**item.kept_cells, **{job.names[name]: value for name, value in cells.items()}})
        if cells["cut"] or cells["windows"] > 1:
            long.append((item.location, prediction.seen.tokens))
    kept = {item.location: each for item, each in zip(items, predictions, strict=True)} if job.scored else {}
    return Computed({ROWS_STREAM: _bytes(job, rows)}, len(rows), (), tuple(long), kept)


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
    if job.ending == TERMINAL:
        return "".join(f"{row['line']}\n" for row in rows).encode("utf-8", "backslashreplace")
    if job.ending == JSONL:
        return jsonl_bytes(rows)
    if job.ending == ".csv":
        return csv_bytes([[row.get(name) for name in job.columns] for row in rows])
    return arrow_bytes(rows, job.schema)
