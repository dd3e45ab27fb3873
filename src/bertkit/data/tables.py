"""Rows of CSV, TSV, JSONL, JSON, Parquet and TREC files, each with its place; compressed or not.

A row that cannot be used carries its `fault`, so that training can stop at the first and a check can list them all.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from bertkit.data.examples import Example, Place
from bertkit.errors import RequestError
from bertkit.settings import pick
from bertkit.text.corpus import COMPRESSED, LONE_SURROGATE, LONGEST_ROW, STDIN, CorpusReport, read_lines

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

    place: Place
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
    said: tuple[str, ...] = ()  # what was guessed in opening it


def ending(path: Path) -> str:
    """The ending that says what is in a file: `.tsv` of train.tsv and of train.tsv.zst."""
    inner = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return inner.suffix.lower()


def open_table(path: Path, columns: Columns, *, format: str = "", report: CorpusReport | None = None) -> Table:
    """Open a file by its ending, or as a row of TABLE_FORMATS; the rows are read when they are asked for.

    The bytes of `report` run along with the rows.
    """
    if format:
        row = pick(TABLE_FORMATS, format, "format")
    else:
        row = pick(TABLE_ENDINGS, ending(path), f"ending of {path.name}:")
    return row.open(path, columns, CorpusReport() if report is None else report)


def lines_of(path: Path, encoding: str, report: CorpusReport | None = None) -> Iterator[tuple[int, str]]:
    """Line numbers and lines; bad bytes, torn archives and empty files stop with a sentence."""
    encoding = pick(ENCODINGS, encoding, "encoding")
    report = CorpusReport() if report is None else report
    return read_lines(path, report=report, longest=LONGEST_ROW, split=False, encoding=encoding)


def parse_json(path: Path, encoding: str) -> Any:
    """A file that is one JSON value."""
    lines = read_lines(path, report=CorpusReport(), longest=LONGEST_FILE, split=False, encoding=ENCODINGS[encoding])
    try:
        return json.loads("\n".join(line for _, line in lines))
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
        raise RequestError(f"{row.place}: '{name}' is {type(value).__name__}, not a text; repair or remove the row")
    return checked(value, name, row.place)


def present_text(row: Row, name: str) -> str:
    """A text that must be there: null is none, unlike in training data, where it stands for an empty one."""
    if cell(row, name) is None:
        raise RequestError(f"{row.place}: '{name}' is null, not a text; repair or remove the row")
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


def checked(text: str, name: str, place: Place) -> str:
    """`text`, unless it holds half a surrogate pair: JSON can spell that, UTF-8 and tokenizers cannot."""
    if not text.isascii() and (lone := LONE_SURROGATE.search(text)):
        raise RequestError(f"{place}: '{name}' holds half a surrogate pair (\\u{ord(lone[0]):04x}); repair the escape")
    return text


def cell(row: Row, name: str) -> Any:
    """A cell that must be there."""
    if name not in row.values:
        has = ", ".join(map(str, list(row.values)[:8])) or "nothing"
        raise RequestError(f"{row.place}: no column '{name}' (the row has: {has}); add it or remove the row")
    return row.values[name]


def _from_rows(path: Path, rows: Iterator[Row], **more: Any) -> Table:
    """A table whose rows know their columns: the names are those of the first rows together."""
    sample = tuple(islice(rows, SAMPLE))
    if not sample:
        raise RequestError(f"{path} holds no rows; give a file that has some")
    names = tuple(dict.fromkeys(name for row in sample for name in row.values))
    return Table(path, names, True, sample, chain(sample, rows), **more)


def _delimited_table(path: Path, columns: Columns, report: CorpusReport, *, commas: bool) -> Table:
    from bertkit.data.delimited import delimited_records, dialect_of, name_the_columns

    lines = lines_of(path, columns.encoding, report)
    if path is STDIN:  # it can be read but once: the first lines speak for all
        head = list(islice(lines, SAMPLE))
        every, lines = iter(head), chain(head, lines)
    else:
        every = lines_of(path, columns.encoding)
    dialect = dialect_of(every, columns.quotes, commas=commas, partial=path is STDIN and len(head) == SAMPLE)
    records = delimited_records(path, lines, dialect)
    first = list(islice(records, SAMPLE))
    if not first:
        raise RequestError(f"{path} holds no rows; give a file that has some")
    named = [name for name in (columns.text, columns.pair, *(columns.label or "").split(",")) if name]
    names, header = name_the_columns(path, [cells for _, cells in first], named, columns.header, dialect)
    if header and len(first) == 1:
        raise RequestError(f"{path} holds a header line and no rows; give a file that has some")
    rows = _rows(path, names, header, chain(first[header:], records), commas=dialect.delimiter != "\t")
    sample = tuple(islice(rows, SAMPLE))
    said = ("quotes read as in CSV",) if dialect.quotes and dialect.delimiter == "\t" else ()
    return Table(path, names, header, sample, chain(sample, rows), said=said)


def _rows(
    path: Path, names: Sequence[str], header: bool, records: Iterable[tuple[int, list[str]]], *, commas: bool
) -> Iterator[Row]:
    for line, cells in records:
        place = Place(path, line)
        if header and len(cells) != len(names):
            what = f"{len(cells)} columns where the header has {len(names)}"
        elif not header and commas and any(cell.strip() for cell in cells[len(names) :]):
            what = f"{len(cells)} columns where other rows have {len(names)}"
        else:
            yield Row(place, dict(zip(names, cells, strict=False)))
            continue
        yield Row(place, {}, f"{place}: {what}; look for a stray tab, comma or quote, or a line end inside a cell")


def _jsonl_table(path: Path, columns: Columns, report: CorpusReport) -> Table:
    return _from_rows(path, _jsonl_rows(path, columns.encoding, report))


def _jsonl_rows(path: Path, encoding: str, report: CorpusReport) -> Iterator[Row]:
    for number, line in lines_of(path, encoding, report):
        if line and not line.isspace():
            place = Place(path, number)
            try:
                yield _object_row(place, json.loads(line))
            except (ValueError, RecursionError) as error:
                yield Row(place, {}, f"{place}: the row is torn or no JSON ({error}); repair or remove it")


def _object_row(place: Place, value: Any) -> Row:
    if isinstance(value, dict):
        return Row(place, value)
    return Row(place, {}, f"{place}: the row is {type(value).__name__}, not an object with fields; repair or remove it")


def _json_table(path: Path, columns: Columns, report: CorpusReport) -> Table:
    """A list of objects; or JSONL under another name."""
    start = next((line.lstrip()[:1] for _, line in lines_of(path, columns.encoding) if line.strip()), "")
    if start == "{":
        return _jsonl_table(path, columns, report)
    values = parse_json(path, columns.encoding)
    if not isinstance(values, list):
        raise RequestError(f"{path} holds {type(values).__name__}, not a list of rows; write it as JSONL")
    return _from_rows(path, (_object_row(Place(path, n, "row"), value) for n, value in enumerate(values, start=1)))


def _parquet_table(path: Path, columns: Columns, report: CorpusReport) -> Table:
    import pyarrow
    import pyarrow.parquet

    if path.suffix.lower() in COMPRESSED:
        raise RequestError(f"{path} is a compressed Parquet file; Parquet compresses itself: unpack it first")
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise RequestError(f"{path} cannot be read as Parquet: {error}; copy or write it again") from error
    return _from_rows(path, _parquet_rows(path, file), classes=_class_names(file.schema_arrow.metadata))


def _parquet_rows(path: Path, file: Any) -> Iterator[Row]:
    import pyarrow

    number = 0
    try:
        for batch in file.iter_batches(batch_size=SAMPLE):
            for values in batch.to_pylist():
                number += 1
                yield Row(Place(path, number, "row"), values)
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise RequestError(f"{path} is damaged after row {number:,} ({error}); copy or write it again") from error


def _class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, tuple[str, ...]]:
    """Parquet files of `datasets` number their labels and keep the names in the schema."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        inner = {column: spec.get("feature", spec) for column, spec in features.items() if isinstance(spec, dict)}
        return {column: tuple(map(str, spec["names"])) for column, spec in inner.items() if spec.get("names")}
    except (KeyError, ValueError, TypeError, AttributeError):  # no such note, or not in the shape they use today
        return {}


def _trec_table(path: Path, columns: Columns, report: CorpusReport) -> Table:
    """TREC's questions: `DESC:manner How did ...`, the coarse and the fine label before the text."""
    return _from_rows(path, _trec_rows(path, columns.encoding, report))


def _trec_rows(path: Path, encoding: str, report: CorpusReport) -> Iterator[Row]:
    for number, line in lines_of(path, encoding, report):
        if not line.strip():
            continue
        place = Place(path, number)
        if found := re.match(r"(\w+):(\S+)\s+(.*)", line):
            yield Row(place, {"label": found[1], "fine": f"{found[1]}:{found[2]}", "text": found[3].strip()})
        else:
            yield Row(place, {}, f"{place}: no 'COARSE:fine question' as in the other rows; repair or remove it")


def _lines_table(path: Path, columns: Columns, report: CorpusReport) -> Table:
    """Each line is a text, blank ones too, so that line n of the input is row n of the output."""
    lines = lines_of(path, columns.encoding, report)
    rows = (Row(Place(path, number), {"text": line}) for number, line in lines)
    sample = tuple(islice(rows, SAMPLE))
    return Table(path, ("text",), True, sample, chain(sample, rows))


@dataclass(frozen=True)
class TableFormat:
    """One format of rows: what opens a file, the endings of its files, and whether a pipe can be read as it."""

    open: Callable[[Path, Columns, CorpusReport], Table]
    endings: tuple[str, ...] = ()
    piped: bool = True


TABLE_FORMATS: dict[str, TableFormat] = {
    "csv": TableFormat(partial(_delimited_table, commas=True), (".csv",)),
    "tsv": TableFormat(partial(_delimited_table, commas=False), (".tsv", ".tab", ".txt")),
    "jsonl": TableFormat(_jsonl_table, (".jsonl", ".ndjson")),
    "json": TableFormat(_json_table, (".json",), piped=False),
    "parquet": TableFormat(_parquet_table, (".parquet",), piped=False),
    "trec": TableFormat(_trec_table, (".label",)),
    "lines": TableFormat(_lines_table),
}
TABLE_ENDINGS: dict[str, TableFormat] = {end: row for row in TABLE_FORMATS.values() for end in row.endings}
