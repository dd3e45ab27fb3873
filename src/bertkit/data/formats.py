"""The formats of tables: CSV, TSV, JSONL, JSON, Parquet, TREC, plain lines, CoNLL(-U) and SQuAD; compressed or not."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from bertkit.data.conll import conll_table, conllu_table
from bertkit.data.delimited import delimited_table
from bertkit.data.examples import Location
from bertkit.data.squad import squad_table
from bertkit.data.tables import SAMPLE, Columns, Row, Table, TableFile, ending, lines_of, parse_json
from bertkit.errors import RequestError
from bertkit.settings import pick
from bertkit.text.corpus import COMPRESSED, CorpusReport


def _jsonl_table(file: TableFile) -> Table:
    return file.table(_jsonl_rows(file))


def _jsonl_rows(file: TableFile) -> Iterator[Row]:
    for number, line in file.lines():
        if line and not line.isspace():
            location = file.location(number)
            try:
                yield _object_row(location, json.loads(line))
            except (ValueError, RecursionError) as error:
                yield Row(location, {}, f"{location}: the row is torn or no JSON ({error}); repair or remove it")


def _object_row(location: Location, value: Any) -> Row:
    if isinstance(value, dict):
        return Row(location, value)
    return Row(
        location, {}, f"{location}: the row is {type(value).__name__}, not an object with fields; repair or remove it"
    )


def _json_table(file: TableFile) -> Table:
    """A list of objects; or JSONL under another name."""
    encoding = file.columns.encoding
    start = next((line.lstrip()[:1] for _, line in lines_of(file.path, encoding) if line.strip()), "")
    if start == "{":
        return _jsonl_table(file)
    values = parse_json(file.path, encoding)
    if not isinstance(values, list):
        raise RequestError(f"{file.path} holds {type(values).__name__}, not a list of rows; write it as JSONL")
    return file.table(_object_row(file.location(n, "row"), value) for n, value in enumerate(values, start=1))


def _parquet_table(file: TableFile) -> Table:
    import pyarrow
    import pyarrow.parquet

    path = file.path
    if path.suffix.lower() in COMPRESSED:
        raise RequestError(f"{path} is a compressed Parquet file; Parquet compresses itself: unpack it first")
    try:
        parquet = pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise RequestError(f"{path} cannot be read as Parquet: {error}; copy or write it again") from error
    return file.table(_parquet_rows(path, parquet), classes=_class_names(parquet.schema_arrow.metadata))


def _parquet_rows(path: Path, file: Any) -> Iterator[Row]:
    import pyarrow

    number = 0
    try:
        for batch in file.iter_batches(batch_size=SAMPLE):
            for values in batch.to_pylist():
                number += 1
                yield Row(Location(path, number, "row"), values)
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


def _trec_table(file: TableFile) -> Table:
    """TREC's questions: `DESC:manner How did ...`, the coarse and the fine label before the text."""
    return file.table(_trec_rows(file))


def _trec_rows(file: TableFile) -> Iterator[Row]:
    for number, line in file.lines():
        if not line.strip():
            continue
        location = file.location(number)
        if found := re.match(r"(\w+):(\S+)\s+(.*)", line):
            yield Row(location, {"label": found[1], "fine": f"{found[1]}:{found[2]}", "text": found[3].strip()})
        else:
            yield Row(location, {}, f"{location}: no 'COARSE:fine question' as in the other rows; repair or remove it")


def _lines_table(file: TableFile) -> Table:
    """Each line is a text, blank ones too, so that line n of the input is row n of the output."""
    rows = (Row(file.location(number), {"text": line}) for number, line in file.lines())
    sample = tuple(islice(rows, SAMPLE))
    return Table(file.path, ("text",), True, sample, chain(sample, rows))


@dataclass(frozen=True)
class TableFormat:
    """One format of rows: what opens a file, the endings of its files, and whether a pipe can be read as it."""

    open: Callable[[TableFile], Table]
    endings: tuple[str, ...] = ()
    piped: bool = True
    holds: Literal["texts", "words", "questions"] = "texts"  # what a row is made of


TABLE_FORMATS: Mapping[str, TableFormat] = MappingProxyType(
    {
        "csv": TableFormat(partial(delimited_table, commas=True), (".csv",)),
        "tsv": TableFormat(partial(delimited_table, commas=False), (".tsv", ".tab", ".txt")),
        "jsonl": TableFormat(_jsonl_table, (".jsonl", ".ndjson")),
        "json": TableFormat(_json_table, (".json",), piped=False),
        "parquet": TableFormat(_parquet_table, (".parquet",), piped=False),
        "trec": TableFormat(_trec_table, (".label",)),
        "lines": TableFormat(_lines_table),
        "conll": TableFormat(conll_table, (".conll", ".iob", ".iob2", ".bio", ".bioes"), holds="words"),
        "conllu": TableFormat(conllu_table, (".conllu",), holds="words"),
        "squad": TableFormat(squad_table, piped=False, holds="questions"),
    }
)
# Those of texts: files of words or questions are opened by the tasks that read them.
TABLE_ENDINGS: dict[str, TableFormat] = {
    end: row for row in TABLE_FORMATS.values() for end in row.endings if row.holds == "texts"
}


def open_table(
    path: Path, columns: Columns, *, format: str = "", labeled: bool = True, report: CorpusReport | None = None
) -> Table:
    """Open a file by its ending, or as a row of TABLE_FORMATS; the rows are read when they are asked for.

    The bytes of `report` run along with the rows.
    """
    if format:
        row = pick(TABLE_FORMATS, format, "format")
    else:
        row = pick(TABLE_ENDINGS, ending(path), f"ending of {path.name}:")
    return row.open(TableFile(path, columns, labeled, CorpusReport() if report is None else report))
