"""From a file of texts to a file of embeddings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.checkpoint.bundled import embedding_model
from bertkit.data.tables import Row, Table, cell, checked
from bertkit.engine.embed import embed_blocks
from bertkit.errors import RequestError
from bertkit.model.pooling import EmbedSettings
from bertkit.poolings import TEXT_POOLINGS
from bertkit.predict.bert import Bert
from bertkit.predict.files.outputs import (
    CELL_KINDS,
    STORED,
    VECTOR_ENDINGS,
    StoredAs,
    cell_kind,
    check_ending,
    finish_npy,
    finish_parquet,
    json_text,
    npy_header,
    plain_type,
)
from bertkit.predict.files.pipeline import Computed, Job, Output, RunOptions, describe, long_texts, run_file
from bertkit.predict.files.resume import ROWS_STREAM, State, check_outputs
from bertkit.predict.files.rows import FileSettings, Item, open_source
from bertkit.progress import ShowProgress, silent
from bertkit.settings import pick
from bertkit.text.length import POLICIES, TooLong, report_lengths

IDS_STREAM = "ids"  # becomes vectors.npy.ids.jsonl
ID_COLUMNS = ("id", "_id", "idx", "guid", "uid", "doc_id", "index")


@dataclass(frozen=True, kw_only=True)
class VectorSettings:
    """How embeddings are made and stored; None is the setting of the model's folder."""

    pooling: str | None = None
    layers: Sequence[int] | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    prompt_name: str | None = None
    too_long: TooLong = "truncate"
    vectors: str = "float32"

    def __post_init__(self) -> None:
        pick(POLICIES, self.too_long, "length policy")
        pick(STORED, self.vectors, "type of vectors")
        if self.pooling is not None:
            pick(TEXT_POOLINGS, self.pooling, "pooling of one vector per text")

    def of(self, bert: Bert) -> EmbedSettings:
        """The settings for a model: the folder's, with these changes."""
        names = ("pooling", "layers", "normalize", "dimensions", "prompt_name")
        settings = bert.checkpoint.embed_settings(**{name: getattr(self, name) for name in names})
        return settings.one_vector()


@dataclass(frozen=True)
class EmbeddedFile:
    """The result of `embed_file`."""

    state: State
    width: int  # of an embedding
    note: str  # on texts over the limit; empty if there were none
    model: str  # the name of the model that made them


def embed_file(
    model: Path | None,
    texts: Path,
    out: Path,
    vectors: VectorSettings,
    file: FileSettings,
    options: RunOptions,
    *,
    show: ShowProgress = silent,
    say: Callable[[str], None] = lambda _: None,
) -> EmbeddedFile:
    """Embed each text of a file, or with `-` of standard input, to .npy or .parquet, in constant memory.

    Without a model, pooling and layers, the bundled variant for sentences makes them. `say` is called with a note on
    which columns were guessed.
    """
    check_ending(out, VECTOR_ENDINGS)
    side_files = {IDS_STREAM: out.with_name(f"{out.name}.ids.jsonl")} if out.suffix == ".npy" else {}
    check_outputs(out, side_files, resume=options.resume)
    model = embedding_model(model, pooling=vectors.pooling, layers=vectors.layers, dtype=options.hardware.dtype)
    bert = options.hardware.load(model)
    settings, source = vectors.of(bert), open_source(None, texts, file.columns, file.format)
    say(source.note)
    row_id, width = find_row_id(source.table, file.id), settings.width(bert.model.config.width)
    schema = None if side_files else vector_schema(source.table, row_id, width, vectors.vectors)
    how = (settings, vectors.too_long, vectors.vectors)
    job = EmbedJob(model, options.hardware, options.skip, *how, row_id, width, schema)
    in_common = {"id": str(row_id.column), "vectors": f"{settings}, {vectors.too_long}, {vectors.vectors}"}
    output = Output("embedding", out, {**describe(bert, source, options), **in_common}, side_files)
    state = run_file(source, job, bert, output, options, show)
    done = "cut to" if vectors.too_long == "truncate" else "read through windows of"
    note = long_texts(state, done, bert.checkpoint.max_length)
    remedy = "; --too-long window reads whole texts" if note and vectors.too_long == "truncate" else ""
    return EmbeddedFile(state, width, f"{note}{remedy}", bert.name)


@dataclass(frozen=True)
class RowId:
    """The id of a row in the output: a column of the input, or else the number of its line."""

    column: str | None
    kind: str  # of its cells: string, int64 or input

    def of(self, row: Row) -> dict[str, Any]:
        """The row's id."""
        if self.column is None:
            return {"id": row.location.line}
        value = cell(row, self.column)
        if value is None or isinstance(value, list | dict):
            raise RequestError(
                f"{row.location}: the id in '{self.column}' is {json_text(value)[:40]}; give the row one"
            )
        # A column of the output has one type: in one of strings, ids of other types are written as JSON.
        value = json_text(value) if self.kind == "string" and not isinstance(value, str) else value
        if self.kind == "int64" and not CELL_KINDS["int64"](value):
            raise RequestError(
                f"{row.location}: the id {json_text(value)[:40]} is no whole number as in the first rows"
            )
        return {"id": checked(value, self.column, row.location) if isinstance(value, str) else value}


def find_row_id(table: Table, named: str | None) -> RowId:
    """The named column, or one with a usual name for ids."""
    if named is None and len(table.names) == 1:
        return RowId(None, "int64")
    from bertkit.data.columns import find_column, first_present

    column = find_column(table, named, "id") if named else first_present(table, ID_COLUMNS)
    if column is None:
        return RowId(None, "int64")
    kind = cell_kind(table, column)
    return RowId(column, kind if kind in ("input", "int64") else "string")


def vector_schema(table: Table, row_id: RowId, width: int, stored: str) -> Any:
    """The columns of a Parquet file of embeddings."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if row_id.kind == "input":
        id_type = plain_type(pq.read_schema(table.path).field(row_id.column).type)
    else:
        id_type = {"string": pa.string(), "int64": pa.int64()}[row_id.kind]
    vector = pa.list_(pa.from_numpy_dtype(np.dtype(STORED[stored].dtype)), STORED[stored].width(width))
    return pa.schema([("id", id_type), ("text", pa.string()), ("cut", pa.int64()), ("vector", vector)])


@dataclass(frozen=True)
class EmbedJob(Job):
    """Texts to embeddings, in .npy with ids beside it, or in Parquet."""

    settings: EmbedSettings
    too_long: TooLong
    vectors: str  # a key of STORED
    row_id: RowId
    width: int
    schema: Any  # of Parquet; None: .npy

    @property
    def head(self) -> bytes:
        """A .npy header, still without the number of rows, or the schema."""
        return npy_header(0, *self._shape) if self.schema is None else bytes(self.schema.serialize())

    @property
    def _stored(self) -> StoredAs:
        return STORED[self.vectors]

    @property
    def _shape(self) -> tuple[int, str]:
        """Numbers in a row on disk, and their type."""
        return self._stored.width(self.width), self._stored.dtype

    def kept_cells(self, row: Row) -> dict[str, Any]:
        """The row's id."""
        return self.row_id.of(row)

    def compute(self, bert: Bert, items: Sequence[Item]) -> Computed:
        """The embeddings of a block of texts as bytes of the output."""
        items, faults = self._usable(bert, items)
        texts = [item.example for item in items]
        how = (self.settings, bert.checkpoint.max_length, self.too_long, lambda number: items[number].location)
        blocks = list(embed_blocks(bert.model, bert.tokenizer, texts, *how))
        long = {number: tokens for block in blocks for number, tokens in block.lengths.long}
        vectors = [np.zeros((0, self.width), dtype=np.float32), *(np.asarray(block.vectors) for block in blocks)]
        vectors_ND = np.ascontiguousarray(self._stored.encode(np.concatenate(vectors)), dtype=self._stored.dtype)
        parts = self._npy(items, vectors_ND) if self.schema is None else self._parquet(bert, items, vectors_ND, long)
        return Computed(parts, len(items), faults, tuple((items[n].location, tokens) for n, tokens in long.items()))

    def finish(self, stream: Path, rows: int) -> Path:
        """Write the number of rows into the header, or convert record batches to Parquet."""
        return finish_npy(stream, rows, *self._shape) if self.schema is None else finish_parquet(stream)

    def _usable(self, bert: Bert, items: Sequence[Item]) -> tuple[Sequence[Item], tuple[str, ...]]:
        """The items without long texts, where these are refused and faulty rows are skipped; and their messages."""
        if not (self.skip and self.too_long == "refuse"):
            return items, ()
        limit, usable, faults = bert.checkpoint.max_length, [], []
        encodings = bert.tokenizer.encode_batch([self.settings.prefix + item.example for item in items])
        for item, encoding in zip(items, encodings, strict=True):
            try:
                report_lengths([len(encoding.ids)], limit, "refuse", where=[item.location].__getitem__)
                usable.append(item)
            except RequestError as error:
                faults.append(str(error))
        return usable, tuple(faults)

    def _npy(self, items: Sequence[Item], vectors_ND: np.ndarray) -> dict[str, bytes]:
        """Bytes of the vectors, and of the ids where these are not just the numbers of the rows."""
        with_ids = self.row_id.column is not None or self.skip
        ids = "".join(f"{json_text(item.kept_cells['id'])}\n" for item in items) if with_ids else ""
        return {ROWS_STREAM: vectors_ND.tobytes(), IDS_STREAM: ids.encode()}

    def _parquet(
        self, bert: Bert, items: Sequence[Item], vectors_ND: np.ndarray, long: Mapping[int, int]
    ) -> dict[str, bytes]:
        import pyarrow as pa

        limit = bert.checkpoint.max_length
        cut = {n: tokens - limit for n, tokens in long.items()} if self.too_long == "truncate" else {}
        arrays = [
            pa.array([item.kept_cells["id"] for item in items], self.schema.field("id").type),
            pa.array([item.example for item in items], pa.string()),
            pa.array([cut.get(n, 0) for n in range(len(items))], pa.int64()),
            pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.reshape(-1)), vectors_ND.shape[1]),
        ]
        return {ROWS_STREAM: bytes(pa.RecordBatch.from_arrays(arrays, schema=self.schema).serialize())}
