"""What is written: JSONL, CSV, Parquet and .npy as streams that grow block by block, and the last step to the file.

A stream of Arrow record batches stands in for Parquet until the end: a Parquet file without its end is no file, but
batches that are whole stay whole whatever comes after them.
"""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.data.tables import SAMPLE, Row, Table, checked, ending
from bertkit.errors import RequestError

TABLES = (".jsonl", ".csv", ".parquet")
VECTORS = (".npy", ".parquet")
NPY_HEADER = 128  # bytes before the numbers of a .npy file, enough for any shape


def check_ending(path: Path, endings: Sequence[str]) -> None:
    """The ending must be one that we write."""
    if path.suffix not in endings:
        raise RequestError(f"{path} must end in {', '.join(endings[:-1])} or {endings[-1]}")


@dataclass(frozen=True)
class Kept:
    """The columns of the input that go on to the output, and what becomes of their cells."""

    ending: str
    names: tuple[str, ...]
    every: bool  # no names were given: a column that turns up later belongs there too
    reserved: frozenset[str]  # names of what is predicted
    kinds: Mapping[str, str]  # of Parquet columns: string, int64, double, bool, json, or own (as the input has it)

    def of(self, row: Row) -> dict[str, Any]:
        """The row's cells for the output; one that does not fit there is a fault of the row."""
        if self.every and (new := [name for name in row.values if name not in self.names]):
            if self.ending != ".jsonl" or new[0] in self.reserved:
                raise RequestError(
                    f"{row.location}: a column '{new[0]}' that the first {SAMPLE:,} rows do not have; "
                    "name the columns to keep with keep=..., or write .jsonl"
                )
            return dict(row.values)
        fit = FITS[self.ending]
        return {name: fit(self, row, name, row.values[name]) for name in self.names if name in row.values}


def kept_columns(table: Table, out: str, keep: str | None, reserved: Sequence[str]) -> Kept:
    """All columns of a table, or those named with commas between them."""
    from bertkit.data.columns import find_column

    listed = () if keep is None else tuple(part.strip() for part in keep.split(",") if part.strip())
    names = table.names if keep is None else tuple(find_column(table, name, "keep") for name in listed)
    kinds = {name: cell_kind(table, name) for name in names} if out == ".parquet" else {}
    return Kept(out, names, keep is None, frozenset(reserved), kinds)


def cell_kind(table: Table, name: str) -> str:
    """What a Parquet column of these cells is: from the schema of a Parquet file, else by the first rows."""
    if ending(table.path) == ".parquet":
        return "own"
    found = [row.values[name] for row in table.sample if row.values.get(name) is not None]
    return next((kind for kind, fits in KINDS.items() if all(map(fits, found))), "json")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


KINDS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int64": _is_whole,
    "double": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "json": lambda _: True,
}


def _fit_json(kept: Kept, row: Row, name: str, value: Any) -> Any:
    return value


def _fit_csv(kept: Kept, row: Row, name: str, value: Any) -> str:
    return checked(csv_cell(value), name, row.location)


def _fit_parquet(kept: Kept, row: Row, name: str, value: Any) -> Any:
    kind = kept.kinds[name]
    if value is None or kind == "own":
        return value
    if not KINDS[kind](value):
        raise RequestError(
            f"{row.location}: '{name}' is {type(value).__name__}, not {kind} as in the first {SAMPLE:,} rows; "
            "repair the row, or write .jsonl"
        )
    value = json_text(value) if kind == "json" else value
    return checked(value, name, row.location) if isinstance(value, str) else value


FITS = {".jsonl": _fit_json, ".csv": _fit_csv, ".parquet": _fit_parquet}


def csv_cell(value: Any) -> str:
    """Text as it stands, nothing for null, anything else as JSON."""
    return value if isinstance(value, str) else "" if value is None else json_text(value)


def json_text(value: Any) -> str:
    """JSON on one line; what JSON cannot say (dates, bytes of a Parquet file) as text."""
    return json.dumps(value, ensure_ascii=False, default=str)


def jsonl_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A line for each row."""
    try:
        return "".join(f"{json_text(row)}\n" for row in rows).encode("utf-8")
    except UnicodeEncodeError:  # half a surrogate pair in a column that is only passed on: as an escape, as it came
        return "".join(f"{json.dumps(row, default=str)}\n" for row in rows).encode("ascii")


def csv_bytes(rows: Sequence[Sequence[Any]]) -> bytes:
    """A record for each row."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([csv_cell(cell) for cell in row] for row in rows)
    return text.getvalue().encode("utf-8")


def arrow_schema(table: Table, kept: Kept, predicted: Mapping[str, Any]) -> Any:
    """The columns of a Parquet file: the kept ones and those of the predictions."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    simple = {
        "string": pa.string(),
        "json": pa.string(),
        "bool": pa.bool_(),
        "int64": pa.int64(),
        "double": pa.float64(),
    }
    own = pq.read_schema(table.path) if "own" in kept.kinds.values() else None
    types = {
        name: simple[kind] if own is None else plain_type(own.field(name).type) for name, kind in kept.kinds.items()
    }
    return pa.schema([*types.items(), *predicted.items()])


def plain_type(kind: Any) -> Any:
    """A column's type without the dictionary that only saves space."""
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def arrow_bytes(rows: Sequence[Mapping[str, Any]], schema: Any) -> bytes:
    """A record batch of rows."""
    import pyarrow as pa

    arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return bytes(pa.RecordBatch.from_arrays(arrays, schema=schema).serialize())


def npy_header(rows: int, width: int) -> bytes:
    """What stands before the numbers."""
    described = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    magic = b"\x93NUMPY\x01\x00" + (NPY_HEADER - 10).to_bytes(2, "little")
    return magic + described.encode().ljust(NPY_HEADER - 11) + b"\n"


def finish_npy(stream: Path, rows: int, width: int) -> Path:
    """The stream with its header, now that the number of rows is known."""
    with stream.open("r+b") as file:
        file.write(npy_header(rows, width))
    return stream


def finish_parquet(stream: Path) -> Path:
    """The record batches of a stream as a Parquet file beside it, a row group each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    finished = stream.with_name("finished.parquet")
    with (
        pa.OSFile(str(stream)) as source,
        pa.ipc.open_stream(source) as batches,
        pq.ParquetWriter(finished, batches.schema) as file,
    ):
        for batch in batches:
            file.write_batch(batch)
    return finished
