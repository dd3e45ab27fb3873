"""Texts of a file to vectors in a file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.tables import Row, Table, cell, checked
from bertkit.errors import RequestError
from bertkit.model.pooling import EmbedSettings
from bertkit.poolings import TEXT_POOLINGS
from bertkit.predict.bert import Bert
from bertkit.predict.files.outputs import (
    KINDS,
    VECTORS,
    cell_kind,
    check_ending,
    finish_npy,
    finish_parquet,
    json_text,
    npy_header,
    plain_type,
)
from bertkit.predict.files.pipeline import Computed, Job, Output, RunOptions, describe, long_texts, run_file
from bertkit.predict.files.resume import ROWS, State, check_outputs
from bertkit.predict.files.rows import Item, open_source
from bertkit.predict.files.settings import FileSettings
from bertkit.progress import ShowProgress, silent
from bertkit.settings import pick
from bertkit.text.length import POLICIES, TooLong, report_lengths

IDS = "ids"  # the stream that becomes vectors.npy.ids.jsonl
ID_NAMES = ("id", "_id", "idx", "guid", "uid", "doc_id", "index")


@dataclass(frozen=True, kw_only=True)
class VectorSettings:
    """How vectors are made where it is not as the model's folder says, which is None."""

    pooling: str | None = None
    layers: Sequence[int] | None = None
    normalize: bool | None = None
    too_long: TooLong = "truncate"

    def __post_init__(self) -> None:
        pick(POLICIES, self.too_long, "length policy")
        if self.pooling is not None:
            pick(TEXT_POOLINGS, self.pooling, "pooling of one vector per text")

    def of(self, bert: Bert) -> EmbedSettings:
        """With what the folder says."""
        settings = bert.embed_settings(pooling=self.pooling, layers=self.layers, normalize=self.normalize)
        return settings.one_vector()


@dataclass(frozen=True)
class EmbeddedFile:
    """What was done: where the work ended, numbers in a vector, what became of texts over the limit."""

    state: State
    width: int
    note: str


def embed_file(
    model: Path | None,
    texts: Path,
    out: Path,
    wanted: VectorSettings,
    reading: FileSettings,
    how: RunOptions,
    *,
    show: ShowProgress = silent,
    say: Callable[[str], None] = lambda _: None,
) -> EmbeddedFile:
    """A vector for each text of a file or, with `-`, of standard input, to .npy or .parquet, in little memory.

    `say` hears which columns were guessed.
    """
    check_ending(out, VECTORS)
    sides = {IDS: out.with_name(f"{out.name}.ids.jsonl")} if out.suffix == ".npy" else {}
    check_outputs(out, sides, resume=how.resume)
    bert = how.hardware.load(model)
    settings, source = wanted.of(bert), open_source(None, texts, reading.columns, reading.format)
    say(source.said)
    identity, width = identity_of(source.table, reading.id), bert.width(settings)
    schema = None if sides else vector_schema(source.table, identity, width)
    job = EmbedJob(model, how.hardware, how.skip, settings, wanted.too_long, identity, width, schema)
    begun = {"id": str(identity.column), "vectors": f"{settings}, {wanted.too_long}"}
    output = Output("embedding", out, {**describe(bert, source, how), **begun}, sides)
    state = run_file(source, job, bert, output, how, show)
    done = "cut to" if wanted.too_long == "truncate" else "read through windows of"
    return EmbeddedFile(state, width, long_texts(state, done, bert.checkpoint.max_length))


@dataclass(frozen=True)
class Identity:
    """What names a row of the output: a column of the input, or else the row's number there."""

    column: str | None
    kind: str  # of its cells: string, int64, double, bool, own

    def of(self, row: Row) -> dict[str, Any]:
        """The row's id."""
        if self.column is None:
            return {"id": row.location.line}
        value = cell(row, self.column)
        if value is None or isinstance(value, list | dict):
            raise RequestError(
                f"{row.location}: the id in '{self.column}' is {json_text(value)[:40]}; give the row one"
            )
        # Strings hold any id, as digits if need be; a column of the output is of one kind.
        value = json_text(value) if self.kind == "string" and not isinstance(value, str) else value
        if self.kind == "int64" and not KINDS["int64"](value):
            raise RequestError(
                f"{row.location}: the id {json_text(value)[:40]} is no whole number as in the first rows"
            )
        return {"id": checked(value, self.column, row.location) if isinstance(value, str) else value}


def identity_of(table: Table, named: str | None) -> Identity:
    """The id column that was named, or one that is called so."""
    if named is None and len(table.names) == 1:
        return Identity(None, "int64")
    from bertkit.data.columns import find_column, first_present

    column = find_column(table, named, "id") if named else first_present(table, ID_NAMES)
    if column is None:
        return Identity(None, "int64")
    kind = cell_kind(table, column)
    return Identity(column, kind if kind in ("own", "int64") else "string")


def vector_schema(table: Table, identity: Identity, width: int) -> Any:
    """The columns of a Parquet file of vectors."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    simple = {"string": pa.string(), "int64": pa.int64()}
    own = plain_type(pq.read_schema(table.path).field(identity.column).type) if identity.kind == "own" else None
    vector = pa.list_(pa.float32(), width)
    return pa.schema(
        [("id", simple.get(identity.kind, own)), ("text", pa.string()), ("cut", pa.int64()), ("vector", vector)]
    )


@dataclass(frozen=True)
class EmbedJob(Job):
    """How texts become vectors, in .npy with ids beside it, or in Parquet."""

    settings: EmbedSettings
    too_long: TooLong
    identity: Identity
    width: int
    schema: Any  # of Parquet; None: .npy

    @property
    def head(self) -> bytes:
        """A header without the number of rows, or the schema."""
        return npy_header(0, self.width) if self.schema is None else bytes(self.schema.serialize())

    def kept(self, row: Row) -> dict[str, Any]:
        """The row's id."""
        return self.identity.of(row)

    def compute(self, bert: Bert, items: Sequence[Item]) -> Computed:
        """A block of texts as bytes of the output."""
        items, faults = self._usable(bert, items)
        texts = [item.example for item in items]
        blocks = list(bert.embed_blocks(texts, self.settings, self.too_long, lambda number: items[number].place))
        long = {number: tokens for block in blocks for number, tokens in block.lengths.long}
        vectors = [np.zeros((0, self.width), dtype=np.float32), *(np.asarray(block.vectors) for block in blocks)]
        vectors_ND = np.ascontiguousarray(np.concatenate(vectors), dtype="<f4")
        parts = self._npy(items, vectors_ND) if self.schema is None else self._parquet(bert, items, vectors_ND, long)
        return Computed(parts, len(items), faults, tuple((items[n].place, tokens) for n, tokens in long.items()))

    def finish(self, stream: Path, rows: int) -> Path:
        """The header gets the number of rows, or record batches become Parquet."""
        return finish_npy(stream, rows, self.width) if self.schema is None else finish_parquet(stream)

    def _usable(self, bert: Bert, items: Sequence[Item]) -> tuple[Sequence[Item], tuple[str, ...]]:
        """Where long texts are refused and faults are skipped, long texts are faults."""
        if not (self.skip and self.too_long == "refuse"):
            return items, ()
        limit, usable, faults = bert.checkpoint.max_length, [], []
        encodings = bert.tokenizer.encode_batch([self.settings.prefix + item.example for item in items])
        for item, encoding in zip(items, encodings, strict=True):
            try:
                report_lengths([len(encoding.ids)], limit, "refuse", where=[item.place].__getitem__)
                usable.append(item)
            except RequestError as error:
                faults.append(str(error))
        return usable, tuple(faults)

    def _npy(self, items: Sequence[Item], vectors_ND: np.ndarray) -> dict[str, bytes]:
        """The ids are written where they are not just the numbers of the rows."""
        named = self.identity.column is not None or self.skip
        ids = "".join(f"{json_text(item.kept['id'])}\n" for item in items) if named else ""
        return {ROWS: vectors_ND.tobytes(), IDS: ids.encode()}

    def _parquet(
        self, bert: Bert, items: Sequence[Item], vectors_ND: np.ndarray, long: Mapping[int, int]
    ) -> dict[str, bytes]:
        import pyarrow as pa

        limit = bert.checkpoint.max_length
        cut = {n: tokens - limit for n, tokens in long.items()} if self.too_long == "truncate" else {}
        arrays = [
            pa.array([item.kept["id"] for item in items], self.schema.field("id").type),
            pa.array([item.example for item in items], pa.string()),
            pa.array([cut.get(n, 0) for n in range(len(items))], pa.int64()),
            pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.reshape(-1)), self.width),
        ]
        return {ROWS: bytes(pa.RecordBatch.from_arrays(arrays, schema=self.schema).serialize())}
