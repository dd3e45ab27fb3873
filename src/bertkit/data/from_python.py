"""Examples as Python objects (rows, columns, data frames, Arrow tables, datasets), written to a Parquet file to read.

Libraries are recognized by the methods of their objects and are not imported.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from bertkit.errors import RequestError

# Column names of rows that are tuples, by their length.
TUPLE_COLUMNS = {2: ("text", "label"), 3: ("text", "pair", "label")}


class ArrowStream(Protocol):
    """An object with Arrow's C stream interface: tables of pyarrow, frames of pandas and polars."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """A PyCapsule with the stream of record batches."""


Row: TypeAlias = Mapping[str, object] | Sequence[object]
# A file; rows as dicts, or as tuples (text, label) or (text, pair, label); columns by name; a frame, table or dataset.
Examples: TypeAlias = Path | str | Iterable[Row] | Mapping[str, Sequence[object]] | ArrowStream


def example_file(data: Examples, folder: Path, name: str) -> tuple[Path, dict[str, str]]:
    """(path, column settings): a path is returned as it is; other data are written to `folder/name.parquet`.

    Column settings such as {"text": "text"} are given for rows without column names (tuples and strings).
    """
    if isinstance(data, str | Path):
        return Path(data), {}
    import pyarrow.parquet

    table, columns = _table(data, name)
    if not table.num_rows:
        raise RequestError(f"{name}= holds no rows; give some examples")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.parquet"
    pyarrow.parquet.write_table(table, path)
    return path, columns


def _table(data: Any, name: str) -> tuple[Any, dict[str, str]]:
    """The data as an Arrow table, and the column settings of rows without column names."""
    import pyarrow

    if hasattr(data, "with_format") and hasattr(data, "features"):  # datasets.Dataset; its schema has the label names
        table = data.with_format("arrow")[:]
        return table.replace_schema_metadata(data.features.arrow_schema.metadata), {}
    if hasattr(data, "iloc"):  # pandas; the index is not a column
        return pyarrow.Table.from_pandas(data, preserve_index=False), {}
    if hasattr(data, "to_arrow"):  # polars
        return data.to_arrow(), {}
    if hasattr(data, "__arrow_c_stream__"):
        return pyarrow.table(data), {}
    if isinstance(data, Mapping):
        return _from_columns(data, name), {}
    if isinstance(data, bytes) or not isinstance(data, Iterable):
        raise RequestError(f"{name}= is {type(data).__name__}; give a path, rows, a frame or a table")
    return _from_rows(list(data), name)


def _from_rows(rows: list[Any], name: str) -> tuple[Any, dict[str, str]]:
    if all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(column for row in rows for column in row)
        return _from_columns({column: [row.get(column) for row in rows] for column in names}, name), {}
    if all(isinstance(row, str) for row in rows):
        return _from_columns({"text": rows}, name), {"text": "text"}
    sizes = {len(row) if isinstance(row, Sequence) and not isinstance(row, str) else 0 for row in rows}
    if len(sizes) != 1 or not sizes <= set(TUPLE_COLUMNS):
        raise RequestError(f"{name}= must hold dicts, or tuples (text, label) or (text, pair, label), all of one kind")
    columns = TUPLE_COLUMNS[sizes.pop()]
    if columns[1] == "pair" and all(isinstance(row[1], list | tuple) for row in rows):
        columns = ("text", "choices", "label")
    cells = {column: [row[index] for row in rows] for index, column in enumerate(columns)}
    return _from_columns(cells, name), {column: column for column in columns if column != "choices"}


def _from_columns(columns: Mapping[str, Any], name: str) -> Any:
    import pyarrow

    arrays = {}
    for column, values in columns.items():
        try:
            arrays[str(column)] = pyarrow.array(values)
        except (pyarrow.ArrowException, TypeError, ValueError) as error:
            raise RequestError(
                f"{name}=: the column '{column}' mixes kinds of values ({error}); give values of one type"
            ) from error
    try:
        return pyarrow.table(arrays)
    except pyarrow.ArrowException as error:
        raise RequestError(f"{name}=: the columns are not equally long ({error})") from error
