"""Tables in JSONL, JSON, Parquet and in TREC's format of questions."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertkit.data.tables import SAMPLE, Location, Row, Table, TableFile, lines_of, parse_json
from bertkit.errors import RequestError
from bertkit.text.corpus import COMPRESSED


def jsonl_table(file: TableFile) -> Table:
    """An object in each line."""
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


def json_table(file: TableFile) -> Table:
    """A list of objects; or JSONL with the ending .json."""
    encoding = file.columns.encoding
    first_character = next((line.lstrip()[:1] for _, line in lines_of(file.path, encoding) if line.strip()), "")
    if first_character == "{":
        return jsonl_table(file)
    values = parse_json(file.path, encoding)
    if not isinstance(values, list):
        raise RequestError(f"{file.path} holds {type(values).__name__}, not a list of rows; write it as JSONL")
    rows = (_object_row(file.location(number, "row"), value) for number, value in enumerate(values, start=1))
    return file.table(rows)


def parquet_table(file: TableFile) -> Table:
    """A Parquet file, read in batches."""
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
    """The names of numbered labels, which `datasets` keeps in the schema of its Parquet files."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        inner = {column: spec.get("feature", spec) for column, spec in features.items() if isinstance(spec, dict)}
        return {column: tuple(map(str, spec["names"])) for column, spec in inner.items() if spec.get("names")}
    except (KeyError, ValueError, TypeError, AttributeError):  # no such entry, or of another structure
        return {}


def trec_table(file: TableFile) -> Table:
    """TREC's questions: `DESC:manner How did ...`, a coarse and a fine label before the text."""
    return file.table(_trec_rows(file))


def _trec_rows(file: TableFile) -> Iterator[Row]:
    for number, line in file.lines():
        if not line.strip():
            continue
        location = file.location(number)
        if match := re.match(r"(\w+):(\S+)\s+(.*)", line):
            coarse, fine, text = match.groups()
            yield Row(location, {"label": coarse, "fine": f"{coarse}:{fine}", "text": text.strip()})
        else:
            yield Row(location, {}, f"{location}: no 'COARSE:fine question' as in the other rows; repair or remove it")
