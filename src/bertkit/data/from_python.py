"""Examples that a Python program holds, as a Parquet file for the readers: rows, columns, frames, tables, datasets.

Libraries are recognized by what their objects can do, and never imported for it.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from bertkit.errors import RequestError

# What the cells of a row that is a tuple are called, by their number.
TUPLE_COLUMNS = {2: ("text", "label"), 3: ("text", "pair", "label")}


class ArrowStream(Protocol):
    """What gives its columns by Arrow's C interface: tables of pyarrow, frames of pandas and polars."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The columns, for another library."""


Row: TypeAlias = Mapping[str, object] | Sequence[object]
# A file; rows as dicts, or as tuples (text, label) or (text, pair, label); columns by name; a frame, table or dataset.
Examples: TypeAlias = Path | str | Iterable[Row] | Mapping[str, Sequence[object]] | ArrowStream


def example_file(data: Examples, folder: Path, name: str) -> tuple[Path, dict[str, str]]:
    """The file that holds the examples, and its columns where they have no names of their own.

    A path is taken as it is; anything else becomes `folder/name.parquet`.
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
    """The data as an Arrow table, and the columns of rows without names."""
    import pyarrow

    if hasattr(data, "with_format") and hasattr(data, "features"):  # datasets.Dataset; its schema names the labels
        table = data.with_format("arrow")[:]
        return table.replace_schema_metadata(data.features.arrow_schema.metadata), {}
    if hasattr(data, "iloc"):  # pandas: its index is no column
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
    cells = {column: [row[place] for row in rows] for place, column in enumerate(columns)}
    return _from_columns(cells, name), {column: column for column in columns if column != "choices"}


def _from_columns(columns: Mapping[str, Any], name: str) -> Any:
    import pyarrow

    arrays = {}
    for column, values in columns.items():
        try:
            arrays[str(column)] = pyarrow.array(values)
        except (pyarrow.ArrowException, TypeError, ValueError) as error:
            raise RequestError(
                f"{name}=: the column '{column}' mixes kinds of values ({error}); make them one"
            ) from error
    try:
        return pyarrow.table(arrays)
    except pyarrow.ArrowException as error:
        raise RequestError(f"{name}=: the columns are not equally long ({error})") from error
