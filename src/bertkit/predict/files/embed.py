"""Texts of a file to vectors in a file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.columns import find, first_known
from bertkit.data.tables import Row, Table, cell, checked
from bertkit.errors import RequestError
from bertkit.model.pooling import NAMES, EmbedSettings
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
from bertkit.predict.files.resume import ROWS, State, check_outputs
from bertkit.predict.files.rows import EMBED, Item, open_source
from bertkit.predict.files.settings import FileSettings
from bertkit.predict.files.work import (
    Hardware,
    HowToRun,
    Plan,
    describe,
    long_texts,
    pool_for,
    run_file,
)
from bertkit.predict.files.workers import Compute, Computed
from bertkit.predict.length import POLICIES, TooLong, report_lengths
from bertkit.progress import ShowProgress, silent
from bertkit.settings import pick

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
            pick(NAMES, self.pooling, "pooling of one vector per text")

    def of(self, bert: Bert) -> EmbedSettings:
        """With what the folder says."""
        settings = bert.embed_settings(pooling=self.pooling, layers=self.layers, normalize=self.normalize)
        pick(NAMES, settings.pooling, "pooling of one vector per text")
        return settings


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
    how: HowToRun,
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
    settings, source = wanted.of(bert), open_source(EMBED, texts, reading.columns, reading.format)
    say(source.said)
    identity, width = identity_of(source.table, reading.id), bert.width(settings)
    schema = None if sides else vector_schema(source.table, identity, width)
    ids = bool(sides) and (identity.column is not None or how.skip)
    job = EmbedJob(model, settings, wanted.too_long, ids, how.skip, how.hardware, schema)
    made = {"id": str(identity.column), "vectors": f"{settings}, {wanted.too_long}"}
    head = npy_header(0, width) if schema is None else bytes(schema.serialize())
    plan = Plan(
        "embedding",
        out,
        identity.of,
        head,
        partial(_finish, width, out),
        {**describe(bert, source, how), **made},
        sides,
    )
    state = run_file(source, plan, pool_for(job, how, job.with_model(bert)), how, show)
    done = "cut to" if wanted.too_long == "truncate" else "read through windows of"
    return EmbeddedFile(state, width, long_texts(state, done, bert.checkpoint.max_length))


def _finish(width: int, out: Path, stream: Path, state: State) -> Path:
    return finish_npy(stream, state.written, width) if out.suffix == ".npy" else finish_parquet(stream)


@dataclass(frozen=True)
class Identity:
    """What names a row of the output: a column of the input, or else the row's number there."""

    column: str | None
    kind: str  # of its cells: string, int64, double, bool, own

    def of(self, row: Row) -> dict[str, Any]:
        """The row's id."""
        if self.column is None:
            return {"id": row.place.line}
        value = cell(row, self.column)
        if value is None or isinstance(value, list | dict):
            raise RequestError(f"{row.place}: the id in '{self.column}' is {json_text(value)[:40]}; give the row one")
        # Strings hold any id, as digits if need be; a column of the output is of one kind.
        value = json_text(value) if self.kind == "string" and not isinstance(value, str) else value
        if self.kind == "int64" and not KINDS["int64"](value):
            raise RequestError(f"{row.place}: the id {json_text(value)[:40]} is no whole number as in the first rows")
        return {"id": checked(value, self.column, row.place) if isinstance(value, str) else value}


def identity_of(table: Table, named: str | None) -> Identity:
    """The id column that was named, or one that is called so."""
    column = find(table, named, "id") if named else first_known(table, ID_NAMES)
    if column is None:
        return Identity(None, "int64")
    kind = cell_kind(table, column)
    return Identity(column, kind if kind in ("own", "int64") else "string")


@dataclass(frozen=True)
class EmbedJob:
    """How texts become vectors, for every process that works on them."""

    model: Path | None  # None: the bundled one
    settings: EmbedSettings
    too_long: TooLong
    ids: bool  # .npy only: ids are written to a stream of their own
    skip: bool
    hardware: Hardware
    schema: Any = field(default=None, hash=False, compare=False)  # Parquet's; None: .npy

    @property
    def token(self) -> str:
        """Tells jobs apart."""
        return repr((self.model, self.settings, self.too_long, self.ids, self.skip, self.schema, self.hardware))

    def open(self) -> Compute:
        """Load the model."""
        return self.with_model(self.hardware.load(self.model))

    def with_model(self, bert: Bert) -> Compute:
        """With a model that is loaded already."""
        return lambda items: embed_items(self, bert, items)


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


def embed_items(job: EmbedJob, bert: Bert, items: Sequence[Item]) -> Computed:
    """A block of texts as bytes of the output."""
    items, faults = _sifted(job, bert, items)
    texts = [item.example for item in items]
    blocks = list(bert.embed_blocks(texts, job.settings, job.too_long, lambda number: items[number].place))
    long = {number: tokens for block in blocks for number, tokens in block.lengths.long}
    found = [np.asarray(block.vectors) for block in blocks]
    vectors = np.concatenate(found) if found else np.zeros((0, bert.width(job.settings)), dtype=np.float32)
    cut = [max(0, long.get(n, 0) - bert.checkpoint.max_length) for n in range(len(items))]
    parts = _parts(job, items, np.ascontiguousarray(vectors, dtype="<f4"), cut if job.too_long == "truncate" else None)
    return Computed(parts, len(items), faults, tuple((items[n].place, tokens) for n, tokens in long.items()))


def _sifted(job: EmbedJob, bert: Bert, items: Sequence[Item]) -> tuple[Sequence[Item], tuple[str, ...]]:
    """Where long texts are refused and faults are skipped, long texts are faults."""
    if not (job.skip and job.too_long == "refuse"):
        return items, ()
    limit, kept, faults = bert.checkpoint.max_length, [], []
    encodings = bert.tokenizer.encode_batch([job.settings.prefix + item.example for item in items])
    for item, encoding in zip(items, encodings, strict=True):
        try:
            report_lengths([len(encoding.ids)], limit, "refuse", where=[item.place].__getitem__)
            kept.append(item)
        except RequestError as error:
            faults.append(str(error))
    return kept, tuple(faults)


def _parts(job: EmbedJob, items: Sequence[Item], vectors: np.ndarray, cut: Sequence[int] | None) -> dict[str, bytes]:
    ids = [item.kept["id"] for item in items]
    if job.schema is None:
        lines = "".join(f"{json_text(each)}\n" for each in ids) if job.ids else ""
        return {ROWS: vectors.tobytes(), IDS: lines.encode()}
    import pyarrow as pa

    schema = job.schema
    vector = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    arrays = [
        pa.array(ids, schema.field("id").type),
        pa.array([item.example for item in items], pa.string()),
        pa.array([0] * len(items) if cut is None else cut, pa.int64()),
        vector,
    ]
    return {ROWS: bytes(pa.RecordBatch.from_arrays(arrays, schema=schema).serialize())}
