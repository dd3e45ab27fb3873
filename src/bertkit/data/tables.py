"""Tables of rows from files of any format: columns, rows with their location in the file, cells; and the formats.

A row that cannot be used carries its `fault`, so that training can stop at the first and a check can list them all.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from bertkit.errors import RequestError
from bertkit.settings import pick
from bertkit.text.corpus import COMPRESSED, LONE_SURROGATE, MAX_ROW, CorpusReport, read_lines

ENCODINGS = {"utf-8": "utf-8-sig", "latin-1": "latin-1"}
SAMPLE = 1000  # rows from which columns and labels are guessed
Item = TypeVar("Item")
Made = TypeVar("Made")
MAX_JSON_CHARACTERS = 2**31  # of a JSON file, which is parsed as a whole


@dataclass(frozen=True, slots=True)
class Location:
    """Where an example is in its file; files without lines (Parquet, SQuAD) count rows or questions instead."""

    file: Path
    line: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.line}"


COLUMN_ROLES = ("text", "pair", "label")


@dataclass(frozen=True)
class Columns:
    """The user's settings for reading a file; None is guessed. A file without a header has columns 1, 2, 3, ...

    For the task `tag`, text and label are words and tags; for `answer`, text, pair and label are question, passage and
    answers. `label` may name several columns of 0 and 1, separated by commas.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    separator: str | None = None  # between the labels of one text
    header: bool | None = None
    quotes: bool | None = None  # True: "..." encloses a field, as in CSV; False: it is part of the text, as in GLUE
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        pick(ENCODINGS, self.encoding, "encoding")
        if self.separator == "":
            raise RequestError("separator= is empty; name the character between labels, for example separator=|")

    def __str__(self) -> str:
        roles = {role: getattr(self, role) for role in COLUMN_ROLES}
        return ", ".join(f"{role} = {_column(name)}" for role, name in roles.items() if name is not None)


def _column(name: str) -> str:
    return f"column {name}" if name.isdigit() else name


class NoLabels(RequestError):
    """The file can be read, but has no labels."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its cells by column, or the message that says why it cannot be used."""

    location: Location
    values: Mapping[str, Any]
    fault: str = ""


@dataclass(frozen=True)
class Table:
    """A file as rows; `sample` holds the first of them, which are also in `rows`."""

    path: Path
    names: tuple[str, ...]
    header: bool  # False: the columns are called 1, 2, 3, ...
    sample: tuple[Row, ...]
    rows: Iterator[Row]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # names of numbered labels, by column
    notes: tuple[str, ...] = ()  # what was guessed when it was opened


@dataclass(frozen=True)
class TableFile:
    """A file to open as a table: the settings of its columns, and whether its labels are read."""

    path: Path
    columns: Columns
    labeled: bool = True
    report: CorpusReport = field(default_factory=CorpusReport)  # counts the bytes that were read

    def lines(self) -> Iterator[tuple[int, str]]:
        """Line numbers and lines."""
        return lines_of(self.path, self.columns.encoding, self.report)

    def location(self, number: int, unit: str = "line") -> Location:
        """A line, row or question of the file."""
        return Location(self.path, number, unit)

    def table(
        self,
        rows: Iterator[Row],
        *,
        names: tuple[str, ...] = (),
        header: bool = True,
        unit: str = "rows",
        classes: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
        notes: tuple[str, ...] = (),
    ) -> Table:
        """The table of these rows; a file without rows is refused. By default `names` come from the first rows."""
        sample = tuple(islice(rows, SAMPLE))
        if not sample:
            raise RequestError(f"{self.path} holds no {unit}; give a file that has some")
        names = names or tuple(dict.fromkeys(name for row in sample for name in row.values))
        return Table(self.path, names, header, sample, chain(sample, rows), classes, notes)


def ending(path: Path) -> str:
    """The ending that names the format: `.tsv` of train.tsv and of train.tsv.zst."""
    inner = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return inner.suffix.lower()


def lines_of(path: Path, encoding: str, report: CorpusReport | None = None) -> Iterator[tuple[int, str]]:
    """Line numbers and lines; invalid bytes, damaged archives and empty files are refused."""
    encoding = pick(ENCODINGS, encoding, "encoding")
    report = CorpusReport() if report is None else report
    return read_lines(path, report=report, longest=MAX_ROW, split=False, encoding=encoding)


def parse_json(path: Path, encoding: str) -> object:
    """A file that is one JSON value."""
    lines = read_lines(
        path, report=CorpusReport(), longest=MAX_JSON_CHARACTERS, split=False, encoding=ENCODINGS[encoding]
    )
    try:
        value: object = json.loads("\n".join(line for _, line in lines))
        return value
    except json.JSONDecodeError as error:
        raise RequestError(
            f"{path}, line {error.lineno}: torn or no JSON ({error.msg}); repair it, or copy it again"
        ) from error
    except RecursionError as error:
        raise RequestError(f"{path}: nested too deeply to be a data file; repair it") from error


def text_cell(row: Row, name: str) -> str:
    """A cell that must be text; a number is converted to text, and null to an empty text."""
    value = cell(row, name)
    if value is None or isinstance(value, bool | int | float):
        value = "" if value is None else json.dumps(value)
    if not isinstance(value, str):
        raise RequestError(f"{row.location}: '{name}' is {type(value).__name__}, not a text; repair or remove the row")
    return checked(value, name, row.location)


def present_text(row: Row, name: str) -> str:
    """A cell that must be text and not null (in training data null is an empty text)."""
    if cell(row, name) is None:
        raise RequestError(f"{row.location}: '{name}' is null, not a text; repair or remove the row")
    return text_cell(row, name)


def made_examples(items: Iterable[Item], make: Callable[[Item], Made], faults: list[str] | None) -> list[Made]:
    """An example of each item; one that cannot be used is an error, or is left out with its message in `faults`."""
    examples = []
    for item in items:
        try:
            examples.append(make(item))
        except RequestError as error:
            if faults is None:
                raise
            faults.append(str(error))
    return examples


def checked(text: str, name: str, location: Location) -> str:
    """The text; half a surrogate pair, which JSON can express but UTF-8 and tokenizers cannot, is refused."""
    if not text.isascii() and (lone := LONE_SURROGATE.search(text)):
        raise RequestError(
            f"{location}: '{name}' holds half a surrogate pair (\\u{ord(lone[0]):04x}); repair the escape"
        )
    return text


def cell(row: Row, name: str) -> object:
    """The value of a column; a row without it is refused."""
    if name not in row.values:
        names = ", ".join(map(str, list(row.values)[:8])) or "nothing"
        raise RequestError(f"{row.location}: no column '{name}' (the row has: {names}); add it or remove the row")
    return row.values[name]


def lines_table(file: TableFile) -> Table:
    """Each line is a text, a blank one too, so that line n of the input is row n of the output."""
    rows = (Row(file.location(number), {"text": line}) for number, line in file.lines())
    sample = tuple(islice(rows, SAMPLE))
    return Table(file.path, ("text",), True, sample, chain(sample, rows))


@dataclass(frozen=True)
class TableFormat:
    """A row of TABLE_FORMATS."""

    opener: str  # module:function in this package, imported when a file is opened
    endings: tuple[str, ...] = ()  # of its files
    piped: bool = True  # whether it can be read from a pipe
    holds: Literal["texts", "words", "questions"] = "texts"  # what a row holds

    def open(self, file: TableFile) -> Table:
        """The file as a table."""
        module, _, name = self.opener.partition(":")
        opener: Callable[[TableFile], Table] = getattr(import_module(f"bertkit.data.{module}"), name)
        return opener(file)


TABLE_FORMATS: Mapping[str, TableFormat] = MappingProxyType(
    {
        "csv": TableFormat("delimited:csv_table", (".csv",)),
        "tsv": TableFormat("delimited:tsv_table", (".tsv", ".tab", ".txt")),
        "jsonl": TableFormat("records:jsonl_table", (".jsonl", ".ndjson")),
        "json": TableFormat("records:json_table", (".json",), piped=False),
        "parquet": TableFormat("records:parquet_table", (".parquet",), piped=False),
        "trec": TableFormat("records:trec_table", (".label",)),
        "lines": TableFormat("tables:lines_table"),
        "conll": TableFormat("conll:conll_table", (".conll", ".iob", ".iob2", ".bio", ".bioes"), holds="words"),
        "conllu": TableFormat("conll:conllu_table", (".conllu",), holds="words"),
        "squad": TableFormat("squad:squad_table", piped=False, holds="questions"),
        "parallel": TableFormat("parallel:parallel_table", piped=False),  # two files: captions.{en,de}
    }
)
# Formats of texts by ending; files of words or questions are opened by the tasks that read them.
TABLE_ENDINGS: dict[str, TableFormat] = {
    end: row for row in TABLE_FORMATS.values() for end in row.endings if row.holds == "texts"
}


def open_table(
    path: Path, columns: Columns, *, format: str = "", labeled: bool = True, report: CorpusReport | None = None
) -> Table:
    """Open a file by its ending, or as a row of TABLE_FORMATS; rows are read lazily, `report` counts their bytes."""
    if "{" in path.name and not path.exists():
        row = TABLE_FORMATS["parallel"]
    elif format:
        row = pick(TABLE_FORMATS, format, "format")
    else:
        row = pick(TABLE_ENDINGS, ending(path), f"ending of {path.name}:")
    return row.open(TableFile(path, columns, labeled, CorpusReport() if report is None else report))
