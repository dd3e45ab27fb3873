"""Output formats: JSONL, CSV, Parquet and .npy as streams that grow block by block, and the last step to the file.

Parquet is written as a stream of Arrow record batches first: a Parquet file cannot be read without its footer, but
complete record batches can.
"""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.data.tables import SAMPLE, Row, Table, checked, ending
from bertkit.errors import RequestError

TABLE_ENDINGS = (".jsonl", ".csv", ".parquet")
VECTOR_ENDINGS = (".npy", ".parquet")
NPY_HEADER = 128  # bytes before the data of a .npy file, enough for any shape


def check_ending(path: Path, endings: Sequence[str]) -> None:
    """Refuse an output file whose ending is none of these."""
    if path.suffix not in endings:
        raise RequestError(f"{path} must end in {', '.join(endings[:-1])} or {endings[-1]}")


@dataclass(frozen=True)
class KeptColumns:
    """The columns of the input that are copied to the output."""

    ending: str  # of the output
    names: tuple[str, ...]
    all_columns: bool  # no names were given: a column that appears only in later rows is copied too
    reserved: frozenset[str]  # names of the predicted columns
    kinds: Mapping[str, str]  # of Parquet columns: string, int64, double, bool, json, or input (the input's own type)

    def cells(self, row: Row) -> dict[str, Any]:
        """The row's cells for the output; a cell that the output cannot hold is a fault of the row."""
        if self.all_columns and (new := [name for name in row.values if name not in self.names]):
            if self.ending != ".jsonl" or new[0] in self.reserved:
                raise RequestError(
                    f"{row.location}: a column '{new[0]}' that the first {SAMPLE:,} rows do not have; "
                    "name the columns to keep with keep=..., or write .jsonl"
                )
            return dict(row.values)
        convert = CONVERT_CELL[self.ending]
        return {name: convert(self, row, name, row.values[name]) for name in self.names if name in row.values}


def kept_columns(table: Table, out: str, keep: str | None, reserved: Sequence[str]) -> KeptColumns:
    """All columns of a table, or those named in `keep`, with commas between them; `out` is the output's ending."""
    from bertkit.data.columns import find_column

    listed = () if keep is None else tuple(part.strip() for part in keep.split(",") if part.strip())
    names = table.names if keep is None else tuple(find_column(table, name, "keep") for name in listed)
    kinds = {name: cell_kind(table, name) for name in names} if out == ".parquet" else {}
    return KeptColumns(out, names, keep is None, frozenset(reserved), kinds)


def cell_kind(table: Table, name: str) -> str:
    """The kind of a Parquet column for these cells: that of the input, if it is Parquet, else by the first rows."""
    if ending(table.path) == ".parquet":
        return "input"
    values = [row.values[name] for row in table.sample if row.values.get(name) is not None]
    return next((kind for kind, fits in CELL_KINDS.items() if all(map(fits, values))), "json")


def _is_int64(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


CELL_KINDS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int64": _is_int64,
    "double": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "json": lambda _: True,
}


def _json_cell(kept: KeptColumns, row: Row, name: str, value: Any) -> Any:
    return value


def _csv_cell(kept: KeptColumns, row: Row, name: str, value: Any) -> str:
    return checked(csv_cell(value), name, row.location)


def _parquet_cell(kept: KeptColumns, row: Row, name: str, value: Any) -> Any:
    kind = kept.kinds[name]
    if value is None or kind == "input":
        return value
    if not CELL_KINDS[kind](value):
        raise RequestError(
            f"{row.location}: '{name}' is {type(value).__name__}, not {kind} as in the first {SAMPLE:,} rows; "
            "repair the row, or write .jsonl"
        )
    value = json_text(value) if kind == "json" else value
    return checked(value, name, row.location) if isinstance(value, str) else value


CONVERT_CELL = {".jsonl": _json_cell, ".csv": _csv_cell, ".parquet": _parquet_cell}


def csv_cell(value: Any) -> str:
    """Text unchanged, null as an empty cell, anything else as JSON."""
    return value if isinstance(value, str) else "" if value is None else json_text(value)


def json_text(value: Any) -> str:
    """JSON on one line; types that JSON lacks (dates, bytes of a Parquet file) as text."""
    return json.dumps(value, ensure_ascii=False, default=str)


def jsonl_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A line for each row."""
    try:
        return "".join(f"{json_text(row)}\n" for row in rows).encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate in a column that is only copied: as an escape, as in the input
        return "".join(f"{json.dumps(row, default=str)}\n" for row in rows).encode("ascii")


def csv_bytes(rows: Sequence[Sequence[Any]]) -> bytes:
    """A record for each row."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([csv_cell(cell) for cell in row] for row in rows)
    return text.getvalue().encode("utf-8")


def arrow_schema(table: Table, kept: KeptColumns, predicted: Mapping[str, Any]) -> Any:
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
    input_schema = pq.read_schema(table.path) if "input" in kept.kinds.values() else None
    types = {
        name: simple[kind] if input_schema is None else plain_type(input_schema.field(name).type)
        for name, kind in kept.kinds.items()
    }
    return pa.schema([*types.items(), *predicted.items()])


def plain_type(kind: Any) -> Any:
    """A column's type without dictionary encoding."""
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def arrow_bytes(rows: Sequence[Mapping[str, Any]], schema: Any) -> bytes:
    """A record batch of rows."""
    import pyarrow as pa

    arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return bytes(pa.RecordBatch.from_arrays(arrays, schema=schema).serialize())


def npy_header(rows: int, width: int | None, dtype: str = "<f4") -> bytes:
    """The header of a .npy file, [rows, width], or [rows] without a width."""
    shape = f"({rows},)" if width is None else f"({rows}, {width})"
    described = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    magic = b"\x93NUMPY\x01\x00" + (NPY_HEADER - 10).to_bytes(2, "little")
    return magic + described.encode().ljust(NPY_HEADER - 11) + b"\n"


def finish_npy(stream: Path, rows: int, width: int, dtype: str = "<f4") -> Path:
    """Write the header again, now that the number of rows is known."""
    with stream.open("r+b") as file:
        file.write(npy_header(rows, width, dtype))
    return stream


def finish_parquet(stream: Path) -> Path:
    """Convert a stream of record batches to a Parquet file beside it, a row group each."""
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


# The number types that vectors are written in, smaller ones with less of each number.
Vectors = NDArray[np.float32]  # [rows, width]
LARGEST = 127  # int8


@dataclass(frozen=True)
class StoredAs:
    """A row of STORED."""

    dtype: str
    encode: Callable[[Vectors], NDArray[Any]]
    per_number: int = 1  # numbers of a vector in one number on disk

    def width(self, width: int) -> int:
        """Numbers on disk of a vector of so many."""
        return -(-width // self.per_number)


def to_int8(vectors_ND: Vectors) -> NDArray[np.int8]:
    """Each vector times the number that makes its largest value 127: cosines stay as they are, but for rounding."""
    largest_N1 = np.abs(vectors_ND).max(axis=1, keepdims=True)
    rounded: NDArray[np.int8] = np.rint(vectors_ND * (LARGEST / np.where(largest_N1 > 0, largest_N1, 1))).astype(
        np.int8
    )
    return rounded


def to_bits(vectors_ND: NDArray[Any]) -> NDArray[np.uint8]:
    """A bit for each number, 1 where it is over 0; eight in a byte, the first in the highest bit."""
    return np.packbits(vectors_ND > 0, axis=1)


STORED: dict[str, StoredAs] = {
    "float32": StoredAs("<f4", lambda vectors: vectors),
    "float16": StoredAs("<f2", lambda vectors: vectors.astype(np.float16)),
    "int8": StoredAs("|i1", to_int8),
    "binary": StoredAs("|u1", to_bits, per_number=8),
}
