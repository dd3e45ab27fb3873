"""The part of a task that can be read without torch: names, files, requests, columns. `table.py` lists the rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bertkit.data.columns import ONE_NAME, LabelColumn
from bertkit.data.examples import Example, Place
from bertkit.data.tables import Columns, Row, Table, ending, present_text
from bertkit.errors import RequestError
from bertkit.tasks.shared.labels import labels_of, learned_labels
from bertkit.tasks.shared.length import EVERY_KIND, Kind, LengthPolicy

if TYPE_CHECKING:
    import pyarrow

Make = Callable[[Row], Example]
Maker = tuple[Columns, Make]
FieldKind = Literal["texts", "sentences", "choices"]


@dataclass(frozen=True)
class Measures:
    """The metrics of a task, and the one that is watched unless another is asked for."""

    main: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class RequestField:
    """An input of a request: texts, sentences (texts or lists of words) or choices (lists of texts)."""

    name: str
    kind: FieldKind = "texts"
    optional: bool = False
    about: str = ""


@dataclass(frozen=True)
class RequestOption:
    """A whole number that says how much of a prediction is in the reply."""

    name: str
    default: int
    most: int
    about: str


@dataclass(frozen=True, kw_only=True)
class Detail:
    """How much of each prediction is written to a file."""

    probabilities: bool = False  # of every label or choice
    best: int = 0  # so many of the likeliest answers

    def check(self, row: "TaskRow", rows: Iterable["TaskRow"]) -> None:
        """Refuse what the task does not have; `rows` are all tasks."""
        if self.probabilities and not row.has_probabilities:
            raise RequestError(f"probabilities=true does not go with '{row.name}', which has no labels to share them")
        if self.best and not row.candidate:
            able = ", ".join(f"'{other.name}'" for other in rows if other.candidate)
            raise RequestError(f"best={self.best} does not go with '{row.name}'; it is for {able}")
        if self.best < 0:
            raise RequestError(f"best={self.best} must be 0 or more")


class TaskRow:
    """A row of TASKS: what is particular to a task and needs no torch; the class `implementation` has the rest."""

    name: ClassVar[str]
    summary: ClassVar[str]  # what it gives, for --help and the server's documentation
    written: ClassVar[str]  # the main columns that `predict` writes
    implementation: ClassVar[str]  # module:class, imported when it is needed
    head: ClassVar[str]  # a key of model.heads.HEADS
    route: ClassVar[str]  # of the server, and the method of Bert and Client; tasks with equal requests share one
    metrics: ClassVar[Measures]
    problem_type: ClassVar[str | None] = None  # as Hugging Face's config.json says it
    numeric: ClassVar[bool] = False  # whether the head has a single output, a number
    labeled: ClassVar[bool] = False  # whether labels are names that the training data decide
    exclusive: ClassVar[bool] = False  # whether exactly one label is correct, for each text or word
    word_level: ClassVar[bool] = False  # whether words have labels, not texts
    example_unit: ClassVar[str] = "rows"  # what the examples and the labels of a file are called
    label_unit: ClassVar[str] = "labels"
    least_labels: ClassVar[int] = 2
    abstains: ClassVar[bool] = False  # whether `abstain` can be fitted
    reports_length: ClassVar[bool] = False  # whether replies list the texts that were too long
    saved: ClassVar[tuple[str, ...]] = ()  # fields of the task class that bertkit.json keeps, besides labels
    length: ClassVar[LengthPolicy] = LengthPolicy()
    lengths: ClassVar[tuple[Kind, ...]] = EVERY_KIND  # those that lose nothing that is asked for
    label: ClassVar[LabelColumn] = ONE_NAME
    fields: ClassVar[tuple[RequestField, ...]]
    options: ClassVar[tuple[RequestOption, ...]] = ()
    request_summary: ClassVar[str]
    request_example: ClassVar[Mapping[str, object]]
    output: ClassVar[Mapping[str, Any]]  # columns of a prediction and their types, as `arrow_type` reads them
    candidate: ClassVar[Mapping[str, Any]] = MappingProxyType({})  # fields of a candidate, where `best` are listed
    has_probabilities: ClassVar[bool] = True
    line_lacks: ClassVar[str] = ""  # what a plain line of text has no room for
    formats: ClassVar[Mapping[str, str]] = MappingProxyType({})  # rows of TABLE_FORMATS that it reads as another one

    @property
    def one_label_per_text(self) -> bool:
        """Whether exactly one label is correct for each text, so that labels can be confused."""
        return self.exclusive and not self.word_level

    # Reading labeled files

    def fits_file(self, path: Path, columns: Columns) -> bool:
        """Whether a file's ending or first lines show that it is for this task."""
        return False

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """Whether a table's columns and first rows show it."""
        return False

    def format(self, path: Path) -> str:
        """The row of TABLE_FORMATS that a file for training is read as; empty: the one of its ending."""
        return self.formats.get(ending(path)[1:], "")

    def maker(self, table: Table, columns: Columns, labeled: bool) -> Maker:
        """The columns that are used, and what makes an example of a row."""
        raise NotImplementedError

    def split_labels(
        self, examples: list[Example], columns: Columns, faults: list[str] | None
    ) -> tuple[list[Example], Columns]:
        """Labels that came as one string are split, where an example may have several."""
        return examples, columns

    def check(self, examples: Sequence[Example]) -> None:
        """Refuse examples that are wrong only when all are seen together."""

    def counts(self, examples: Sequence[Example], labeled: bool) -> list[str]:
        """How many labels and examples are in a file, in words."""
        labels = [f"{len(labels_of(examples))} {self.label_unit}"] if labeled and self.labeled else []
        return [*labels, f"{len(examples)} {self.example_unit}"]

    def content(self, examples: Sequence[Example], file: Path) -> dict[str, Any]:
        """What the training data decide about a task, such as its labels: arguments of its class."""
        return {"labels": learned_labels(examples, file, self.least_labels)} if self.labeled else {}

    def restored(self, saved: Mapping[str, Any], labels: tuple[str, ...]) -> dict[str, Any]:
        """The same from bertkit.json and the labels of a folder."""
        found = {name: float(saved[name]) for name in self.saved if name in saved}
        return found | ({"labels": labels} if self.labeled else {})

    # Predictions on files

    def asker(self, table: Table, columns: Columns) -> Maker:
        """As `maker` for rows to predict: unlabeled, and a text that is null is refused."""
        used, make = self.maker(table, columns, False)

        def made(row: Row) -> Example:
            for name in filter(None, (used.text, used.pair)):
                present_text(row, name)
            return make(row)

        return used, made

    def columns(self, labels: Sequence[str], detail: Detail) -> "dict[str, pyarrow.DataType]":
        """The columns of a prediction, with their Arrow types."""
        by_label = self.labeled and not self.word_level
        probabilities: Any = dict.fromkeys(labels, float) if by_label else [float]
        columns = {**self.output} | ({"candidates": [self.candidate]} if detail.best else {})
        columns |= {"probabilities": probabilities} if detail.probabilities else {}
        return {name: arrow_type(kind) for name, kind in (columns | {"windows": int, "cut": int}).items()}

    def cells(self, example: Example, prediction: Any, detail: Detail) -> dict[str, Any]:
        """One prediction by column."""
        found = self.own_cells(example, prediction, detail)
        if detail.best:
            found["candidates"] = [asdict(candidate) for candidate in prediction.candidates[: detail.best]]
        if detail.probabilities:
            shares = prediction.probabilities
            found["probabilities"] = dict(shares) if isinstance(shares, Mapping) else list(shares)
        return found | {"windows": self.window_count(prediction), "cut": prediction.seen.cut}

    def own_cells(self, example: Example, prediction: Any, detail: Detail) -> dict[str, Any]:
        """The cells of `output`; most are fields of the prediction."""
        values = {name: getattr(prediction, name, None) for name in self.output}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def window_count(self, prediction: Any) -> int:
        """Through how many windows a text was read."""
        return int(prediction.seen.windows)

    # Requests and replies

    def examples(self, **inputs: Any) -> list[Example]:
        """The unlabeled examples of a request."""
        raise NotImplementedError

    def reply(self, prediction: Any, **options: int) -> dict[str, Any]:
        """A prediction as a JSON object: the fields of its Python class, nothing renamed."""
        return asdict(prediction)


def arrow_type(kind: Any) -> "pyarrow.DataType":
    """The Arrow type of str, int, float, [kind] (a list) or {name: kind} (a struct)."""
    import pyarrow as pa

    if isinstance(kind, list):
        return pa.list_(arrow_type(kind[0]))
    if isinstance(kind, Mapping):
        return pa.struct([(name, arrow_type(inner)) for name, inner in kind.items()])
    return {str: pa.string(), int: pa.int64(), float: pa.float64()}[kind]


def request_place(number: int) -> Place:
    """Where an example of a request stands."""
    return Place(Path("the request"), number, "number")


def same_count(
    first: Sequence[object], second: Sequence[object], names: str, remedy: str = "give as many of both"
) -> None:
    """Refuse inputs that do not belong together."""
    if len(first) != len(second):
        one, other = names.split(" and ")
        raise RequestError(f"{len(first)} {one} came with {len(second)} {other}; {remedy}")


def text_list(given: object, what: str) -> tuple[str, ...]:
    """Texts in any kind of list, an array too."""
    found = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping) else ()
    if not found or not all(isinstance(each, str) for each in found):
        raise RequestError(f"{what} must be a list of texts")
    return found
