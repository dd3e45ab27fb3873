"""What a table of rows is, whatever format it was read from: rows with their locations, cells, columns.

A row that cannot be used carries its `fault`, so that training can stop at the first and a check can list them all.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from bertkit.data.examples import Example, Location
from bertkit.errors import RequestError
from bertkit.settings import pick
from bertkit.text.corpus import COMPRESSED, LONE_SURROGATE, LONGEST_ROW, CorpusReport, read_lines

ENCODINGS = {"utf-8": "utf-8-sig", "latin-1": "latin-1"}
SAMPLE = 1000  # rows that guesses look at
Item = TypeVar("Item")
LONGEST_FILE = 2**31  # characters of a JSON file that must be parsed in one piece


@dataclass(frozen=True)
class Columns:
    """What the user says about a file; None is guessed. A file without a header has columns 1, 2, 3, ...

    `text`, `pair`, `label` mean words and tags for tag, question and passage and answers for answer. `label` may
    name several columns of 0 and 1, with commas between them.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    separator: str | None = None  # between the labels of one text
    header: bool | None = None
    quotes: bool | None = None  # whether "..." encloses a field, as in CSV, or is part of the text, as in GLUE
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        pick(ENCODINGS, self.encoding, "encoding")
        if self.separator == "":
            raise RequestError("separator= is empty; name the character between labels, for example separator=|")

    def __str__(self) -> str:
        roles = {"text": self.text, "pair": self.pair, "label": self.label}
        return ", ".join(f"{role} = {_shown(name)}" for role, name in roles.items() if name is not None)


def _shown(name: str) -> str:
    return f"column {name}" if name.isdigit() else name


class NoLabels(RequestError):
    """The file can be read, but for its labels."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its cells by column, or the sentence that says why it has none."""

    location: Location
    values: Mapping[str, Any]
    fault: str = ""


@dataclass(frozen=True)
class Table:
    """A file as rows; `sample` repeats the first of them."""

    path: Path
    names: tuple[str, ...]
    header: bool  # False: the columns are called 1, 2, 3, ...
    sample: tuple[Row, ...]
    rows: Iterator[Row]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # names of numbered labels, by column
    notes: tuple[str, ...] = ()  # what was guessed in opening it


@dataclass(frozen=True)
class TableFile:
    """A file to open as a table: what the user says about its columns, and whether its labels are read."""

    path: Path
    columns: Columns
    labeled: bool = True
    report: CorpusReport = field(default_factory=CorpusReport)  # its bytes run along with the rows

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
        """The table of these rows; a file without any is refused. Without `names`, the first rows give the columns."""
        sample = tuple(islice(rows, SAMPLE))
        if not sample:
            raise RequestError(f"{self.path} holds no {unit}; give a file that has some")
        names = names or tuple(dict.fromkeys(name for row in sample for name in row.values))
        return Table(self.path, names, header, sample, chain(sample, rows), classes, notes)


def ending(path: Path) -> str:
    """The ending that says what is in a file: `.tsv` of train.tsv and of train.tsv.zst."""
    inner = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return inner.suffix.lower()


def lines_of(path: Path, encoding: str, report: CorpusReport | None = None) -> Iterator[tuple[int, str]]:
    """Line numbers and lines; bad bytes, torn archives and empty files stop with a sentence."""
    encoding = pick(ENCODINGS, encoding, "encoding")
    report = CorpusReport() if report is None else report
    return read_lines(path, report=report, longest=LONGEST_ROW, split=False, encoding=encoding)


def parse_json(path: Path, encoding: str) -> object:
    """A file that is one JSON value."""
    lines = read_lines(path, report=CorpusReport(), longest=LONGEST_FILE, split=False, encoding=ENCODINGS[encoding])
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
    """A cell that must be text; numbers become their digits."""
    value = cell(row, name)
    if value is None or isinstance(value, bool | int | float):
        value = "" if value is None else json.dumps(value)
    if not isinstance(value, str):
        raise RequestError(f"{row.location}: '{name}' is {type(value).__name__}, not a text; repair or remove the row")
    return checked(value, name, row.location)


def present_text(row: Row, name: str) -> str:
    """A text that must be there: null is none, unlike in training data, where it stands for an empty one."""
    if cell(row, name) is None:
        raise RequestError(f"{row.location}: '{name}' is null, not a text; repair or remove the row")
    return text_cell(row, name)


def made_examples(items: Iterable[Item], make: Callable[[Item], Example], faults: list[str] | None) -> list[Example]:
    """An example of each item; one that cannot be used stops, or is left out with its sentence in `faults`."""
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
    """`text`, unless it holds half a surrogate pair: JSON can spell that, UTF-8 and tokenizers cannot."""
    if not text.isascii() and (lone := LONE_SURROGATE.search(text)):
        raise RequestError(
            f"{location}: '{name}' holds half a surrogate pair (\\u{ord(lone[0]):04x}); repair the escape"
        )
    return text


def cell(row: Row, name: str) -> object:
    """A cell that must be there."""
    if name not in row.values:
        has = ", ".join(map(str, list(row.values)[:8])) or "nothing"
        raise RequestError(f"{row.location}: no column '{name}' (the row has: {has}); add it or remove the row")
    return row.values[name]
