"""The part of a task that is read without torch: names, files, requests, output columns. `table.py` lists the rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bertkit.data.columns import ONE_LABEL, ExampleReader, LabelColumn
from bertkit.data.examples import Example
from bertkit.data.tables import Columns, Location, Row, Table, ending, present_text
from bertkit.errors import RequestError
from bertkit.tasks.shared.labels import count_labels, training_labels
from bertkit.tasks.shared.length import ALL_KINDS, Kind, LengthPolicy

if TYPE_CHECKING:
    import pyarrow

    from bertkit.text.tokenizer import Tokenizer

# output columns of every task, with what they count
LENGTH_COLUMNS = {"windows": "parts that the text was read in", "cut": "tokens that were left out"}
FieldKind = Literal["texts", "sentences", "choices"]


@dataclass(frozen=True)
class TaskMetrics:
    """The metrics of a task, and the one that chooses the best model by default."""

    main: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class RequestField:
    """An input of a request: texts, sentences (each a text or a list of words) or choices (each a list of texts)."""

    name: str
    kind: FieldKind = "texts"
    optional: bool = False
    description: str = ""


@dataclass(frozen=True)
class RequestOption:
    """An integer parameter of a request that limits how much of a prediction is in the reply."""

    name: str
    default: int
    maximum: int
    description: str


@dataclass(frozen=True, kw_only=True)
class Detail:
    """Which optional parts of predictions are written to a file."""

    probabilities: bool = False  # the probability of every label or choice
    best: int = 0  # number of candidates, by probability

    def check(self, row: "TaskRow", rows: Iterable["TaskRow"]) -> None:
        """Refuse options that the task `row` does not have; `rows` are all tasks."""
        if self.probabilities and not row.has_probabilities:
            raise RequestError(f"probabilities=true does not go with '{row.name}', which has no probabilities")
        if self.best and not row.candidate:
            able = ", ".join(f"'{other.name}'" for other in rows if other.candidate)
            raise RequestError(f"best={self.best} does not go with '{row.name}'; it is for {able}")
        if self.best < 0:
            raise RequestError(f"best={self.best} must be 0 or more")


class TaskRow:
    """A row of TASKS: everything about a task that needs no torch; the class `implementation` has the rest."""

    name: ClassVar[str]
    summary: ClassVar[str]  # what the task predicts, for --help and the server's documentation
    implementation: ClassVar[str]  # module:class, imported on use
    head: ClassVar[str]  # a key of model.heads.HEADS
    route: ClassVar[str]  # of the server; also the method of Bert and Client. Tasks with the same requests share it
    metrics: ClassVar[TaskMetrics]
    problem_type: ClassVar[str | None] = None  # the value in Hugging Face's config.json
    numeric: ClassVar[bool] = False  # whether the head has one output, a number
    labeled: ClassVar[bool] = False  # whether labels are names, which are read from the training data
    exclusive: ClassVar[bool] = False  # whether each text or word has exactly one label
    word_level: ClassVar[bool] = False  # whether each word has a label, not each text
    example_unit: ClassVar[str] = "rows"  # what examples and labels are called in messages
    label_unit: ClassVar[str] = "labels"
    min_labels: ClassVar[int] = 2  # in training data
    abstains: ClassVar[bool] = False  # whether the setting `abstain` applies
    takes_labels: ClassVar[bool] = False  # whether a request may bring labels that the model was not trained on
    reports_length: ClassVar[bool] = False  # whether replies of the server list texts that were too long
    settings_part: ClassVar[str | None] = None  # of FineTuneSettings, that is for this task alone
    saved_fields: ClassVar[tuple[str, ...]] = ()  # numbers of the task class in bertkit.json, besides labels
    length: ClassVar[LengthPolicy] = LengthPolicy()  # default
    length_kinds: ClassVar[tuple[Kind, ...]] = ALL_KINDS  # length policies that make sense for the task
    label: ClassVar[LabelColumn] = ONE_LABEL
    ranks: ClassVar[bool] = False  # whether it scores texts by a query
    generates: ClassVar[bool] = False  # whether a prediction is a text that is generated
    default_start: ClassVar[str] = "bundled"  # the model to start from; "new": a new one, with a vocabulary of its own
    fields: ClassVar[tuple[RequestField, ...]]
    options: ClassVar[tuple[RequestOption, ...]] = ()
    request_summary: ClassVar[str]
    request_example: ClassVar[Mapping[str, object]]
    output: ClassVar[Mapping[str, Any]]  # columns of a prediction with their types, see `arrow_type`
    candidate: ClassVar[Mapping[str, Any]] = MappingProxyType({})  # the same for each candidate, if `best` is supported
    shown: ClassVar[tuple[str, ...]] = ()  # the output columns that a terminal shows; none: all
    has_probabilities: ClassVar[bool] = True
    missing_from_lines: ClassVar[str] = ""  # an input that plain lines of text cannot hold
    formats: ClassVar[Mapping[str, str]] = MappingProxyType({})  # by ending, if not as in TABLE_ENDINGS

    @property
    def one_label_per_text(self) -> bool:
        """Whether each text has exactly one label, so that there is a confusion matrix."""
        return self.exclusive and not self.word_level

    # Reading labeled files

    def fits_file(self, path: Path, columns: Columns) -> bool:
        """Whether the ending or the first lines of a file show that it is for this task."""
        return False

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """Whether the columns and first rows of a table show that it is for this task."""
        return False

    def format(self, path: Path) -> str:
        """The key of TABLE_FORMATS for a training file; empty: by its ending."""
        return self.formats.get(ending(path)[1:], "")

    def reader(self, table: Table, columns: Columns, labeled: bool) -> ExampleReader:
        """The columns to read, and a function that makes an example of a row."""
        raise NotImplementedError

    def split_labels(
        self, examples: list[Example], columns: Columns, faults: list[str] | None
    ) -> tuple[list[Example], Columns]:
        """Examples whose labels in one string are split, if the task has several labels per example."""
        return examples, columns

    def grouped(self, examples: list[Example]) -> list[Example]:
        """The examples of a file from those of its rows, where several rows are one example."""
        return examples

    def prediction_of(self, example: Example, predictions: Mapping[str, Any]) -> Any | None:
        """The prediction for an example from those of the rows of its file, by location; None if there is none."""
        return predictions.get(str(example.location))

    def check(self, examples: Sequence[Example]) -> None:
        """Refuse examples that are invalid as a whole file, such as an invalid tag sequence."""

    def counts(self, examples: Sequence[Example], labeled: bool) -> list[str]:
        """The numbers of labels and examples of a file, as phrases for its summary."""
        labels = [f"{len(count_labels(examples))} {self.label_unit}"] if labeled and self.labeled else []
        return [*labels, f"{len(examples)} {self.example_unit}"]

    def arguments_from_data(self, examples: Sequence[Example], file: Path) -> dict[str, Any]:
        """Arguments of the task's class that come from the training data, such as its labels."""
        return {"labels": training_labels(examples, file, self.min_labels)} if self.labeled else {}

    def arguments_from_settings(self, part: Any, examples: Sequence[Example], file: Path) -> dict[str, Any]:
        """Arguments of the task's class from its own part of the settings, see `settings_part`."""
        return asdict(part)

    def arguments_from_json(self, saved: Mapping[str, Any], labels: tuple[str, ...]) -> dict[str, Any]:
        """The same arguments from bertkit.json and the labels of a model folder."""
        numbers = {name: float(saved[name]) for name in self.saved_fields if name in saved}
        return numbers | ({"labels": labels} if self.labeled else {})

    def arguments_from_model(self, settings: Mapping[str, Any], tokenizer: "Tokenizer") -> dict[str, Any]:
        """Arguments of the task's class from a model's config.json and tokenizer."""
        return {}

    def claims(self, settings: Mapping[str, Any], outputs: int) -> bool:
        """Whether config.json says that the head, with so many outputs, is for this task; without bertkit.json."""
        return self.problem_type is not None and settings.get("problem_type") == self.problem_type

    def default_settings(self, start: str) -> tuple[str, ...]:
        """Settings of training that are not the usual defaults, for a model to start from."""
        return ()

    def all_texts(self, examples: Sequence[Example]) -> list[str]:
        """The texts of which the vocabulary of a new model is made."""
        return [text for example in examples for text in example.texts]

    # Predictions on files

    def unlabeled_reader(self, table: Table, columns: Columns) -> ExampleReader:
        """As `reader`, for rows to predict: labels are not read, and a text that is null is refused."""
        used, make = self.reader(table, columns, False)

        def make_checked(row: Row) -> Example:
            for name in filter(None, (used.text, used.pair)):
                present_text(row, name)
            return make(row)

        return used, make_checked

    def columns(self, labels: Sequence[str], detail: Detail) -> "dict[str, pyarrow.DataType]":
        """The output columns of a prediction with their Arrow types."""
        by_label = self.labeled and not self.word_level
        probabilities: Any = dict.fromkeys(labels, float) if by_label else [float]
        columns = {**self.output} | ({"candidates": [self.candidate]} if detail.best else {})
        columns |= {"probabilities": probabilities} if detail.probabilities else {}
        return {name: arrow_type(kind) for name, kind in (columns | dict.fromkeys(LENGTH_COLUMNS, int)).items()}

    def cells(self, example: Example, prediction: Any, detail: Detail) -> dict[str, Any]:
        """The cells of one prediction by column."""
        cells = self.output_cells(example, prediction)
        if detail.best:
            cells["candidates"] = [asdict(candidate) for candidate in prediction.candidates[: detail.best]]
        if detail.probabilities:
            values = prediction.probabilities
            cells["probabilities"] = dict(values) if isinstance(values, Mapping) else list(values)
        return cells | {"windows": self.window_count(prediction), "cut": prediction.seen.cut}

    def output_cells(self, example: Example, prediction: Any) -> dict[str, Any]:
        """The cells of the columns in `output`; by default the fields of the prediction with these names."""
        values = {name: getattr(prediction, name, None) for name in self.output}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def terminal_text(self, cells: Mapping[str, Any]) -> str:
        """The cells of one prediction as one line for a terminal, numbers first."""
        values = [cells[name] for name in self.shown or self.output]
        return "  ".join(map(_terminal_cell, sorted(values, key=lambda value: not isinstance(value, float))))

    def window_count(self, prediction: Any) -> int:
        """The number of windows that a text was read in."""
        return int(prediction.seen.windows)

    # Requests and replies

    def examples(self, **inputs: Any) -> list[Example]:
        """The unlabeled examples of a request, from its inputs by field name."""
        raise NotImplementedError

    def reply(self, prediction: Any, **options: int) -> dict[str, Any] | list[dict[str, Any]]:
        """A prediction as a JSON object (for `rank`, a list of them) with the fields of its Python class."""
        return asdict(prediction)


def arrow_type(kind: Any) -> "pyarrow.DataType":
    """The Arrow type of str, int, float, [kind] (a list) or {name: kind} (a struct)."""
    import pyarrow as pa

    if isinstance(kind, list):
        return pa.list_(arrow_type(kind[0]))
    if isinstance(kind, Mapping):
        return pa.struct([(name, arrow_type(inner)) for name, inner in kind.items()])
    return {str: pa.string(), int: pa.int64(), float: pa.float64()}[kind]


def _terminal_cell(value: Any) -> str:
    """A cell for a terminal: names padded, so that lines are aligned."""
    if isinstance(value, float):
        return f"{value:.3f}"
    text = ", ".join(map(str, value)) if isinstance(value, list) else "-" if value is None else str(value)
    return f"{' '.join(text.split()) or '-':<12}"


def request_location(number: int) -> Location:
    """The location of the example with index `number` of a request, for messages, which count from 1."""
    return Location(Path("the request"), number + 1, "number")


def check_same_count(
    first: Sequence[object], second: Sequence[object], names: str, remedy: str = "give as many of both"
) -> None:
    """Refuse two inputs of different lengths; `names` are their names, joined by " and "."""
    if len(first) != len(second):
        one, other = names.split(" and ")
        raise RequestError(f"{len(first)} {one} came with {len(second)} {other}; {remedy}")


def check_text_list(value: object, what: str) -> tuple[str, ...]:
    """A list, array or other iterable of texts as a tuple; anything else is refused."""
    texts = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) else ()
    if not texts or not all(isinstance(text, str) for text in texts):
        raise RequestError(f"{what} must be a list of texts")
    return texts
