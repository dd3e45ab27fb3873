"""An input file of any size as examples: read in blocks of bounded size, each row with its location or its error."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bertkit.data.tables import TABLE_FORMATS, Columns, Row, Table, ending, open_table, present_text
from bertkit.errors import RequestError
from bertkit.settings import pick, read_pairs
from bertkit.text.corpus import STDIN, CorpusReport

if TYPE_CHECKING:
    from bertkit.tasks.row import Detail, TaskRow

# Formats by name and by ending. Files in .txt and .label, which are tables in training data, are lines of text here.
ENDINGS = {end[1:]: name for name, row in TABLE_FORMATS.items() for end in row.endings if end not in (".txt", ".label")}
FORMATS = {**ENDINGS, **{name: name for name in TABLE_FORMATS}}
# A block is computed, written and flushed together; texts are sorted by length within it.
ROWS_PER_BLOCK = 2048
SNIFFED_LINES = 20  # of a file without a known ending, which may be a table
CHARACTERS_PER_BLOCK = 1 << 20  # of all cells: about 250,000 tokens, which take some 50 MB
READ_SETTINGS = ("text", "header", "quotes", "encoding", "format")
EMBED_SETTINGS = (*READ_SETTINGS, "id")
INDEX_SETTINGS = (*EMBED_SETTINGS, "title")
MINE_SETTINGS = (*READ_SETTINGS, "pair")
PREDICT_SETTINGS = (*READ_SETTINGS, "pair", "keep", "probabilities", "best")
MakeExample = Callable[[Row], Any]


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """Columns of the input (None: guessed), its format (None: by its ending), and columns of the output.

    On the command line: `text=review keep=id,text best=5`.
    """

    text: str | None = None
    pair: str | None = None
    header: bool | None = None
    quotes: bool | None = None
    encoding: str = "utf-8"
    format: str | None = None
    id: str | None = None  # embed, index: the column with the ids of rows
    title: str | None = None  # index: the column with the titles of documents
    keep: str | None = None  # predict: columns to copy to the output, with commas between them; None: all
    probabilities: bool = False  # predict: write those of every label or choice
    best: int = 0  # predict, answer: number of candidates to write

    @property
    def columns(self) -> Columns:
        """The settings that readers of tables take."""
        shared = [field.name for field in fields(Columns) if hasattr(self, field.name)]
        return Columns(**{name: getattr(self, name) for name in shared})

    @property
    def detail(self) -> "Detail":
        """How much of each prediction is written."""
        from bertkit.tasks.row import Detail  # not needed to embed

        return Detail(probabilities=self.probabilities, best=self.best)


def read_file_settings(pairs: Sequence[str], names: Sequence[str]) -> FileSettings:
    """Settings from pairs such as "text=review"; a name that is not in `names`, or a wrong value, is refused."""
    return read_pairs(pairs, FileSettings(), names=names)[0]


@dataclass(frozen=True)
class RowSource:
    """An open input file, and the function that makes an example of each row."""

    table: Table
    columns: Columns  # those that are used
    make_example: MakeExample
    note: str  # which columns were guessed; empty for plain lines
    report: CorpusReport  # its count of bytes grows as the file is read

    def done(self, rows: int) -> float:
        """Progress in units of `total`, after this many rows."""
        return rows if self._is_parquet else self.report.bytes

    @property
    def total(self) -> float:
        """Rows of a Parquet file, else bytes; 0 if unknown."""
        if self._is_parquet:
            import pyarrow.parquet

            return float(pyarrow.parquet.ParquetFile(self.table.path).metadata.num_rows)
        return self.table.path.stat().st_size if self.table.path.is_file() else 0

    @property
    def _is_parquet(self) -> bool:
        return ending(self.table.path) == ".parquet"


@dataclass(frozen=True)
class RowBlock:
    """Rows that are computed together."""

    rows: tuple[Row, ...]
    digest: str  # of all rows so far: it shows whether the file has changed when a run is resumed
    full: bool  # False: the last block, which the end of the file cut short


@dataclass(frozen=True)
class Item:
    """One row of the input: its location, the cells that are copied to the output, and the example for the model."""

    location: str
    kept_cells: Mapping[str, Any]
    example: Any


def open_source(
    task: "TaskRow | None",
    path: Path,
    columns: Columns,
    format: str | None = None,
    trained: Mapping[str, str] = MappingProxyType({}),
) -> RowSource:
    """Open a file for a task, or without one for `embed`; `-` is standard input.

    Columns not named are those that the model was `trained` on, by their role, or guessed.
    """
    guessed = format is None
    path, report = STDIN if str(path) == "-" else path, CorpusReport()
    format = _format_of(path, columns) if format is None else pick(FORMATS, format, "format")
    if format == "lines" and task is not None and task.missing_from_lines:
        lacks = f"a question and {task.missing_from_lines}"
        raise RequestError(f"{path}: a plain line has no room for {lacks}; give JSONL, CSV or Parquet")
    if path is STDIN and not TABLE_FORMATS[format].piped:
        raise RequestError(f"standard input cannot be read as {format}; name a file, or give JSONL")
    table = _open(task, path, columns, format, report)
    if all(row.fault for row in table.sample):
        raise RequestError(table.sample[0].fault)
    if trained:  # not needed to embed
        from bertkit.data.columns import with_trained

        columns = with_trained(table, columns, trained)
    used, make_example = text_maker(table, columns) if task is None else task.unlabeled_reader(table, columns)
    note = f"{path}: {', '.join([str(used), *table.notes])}"
    if format == "lines":
        note = _table_note(table) if guessed else ""
    return RowSource(table, used, make_example, note, report)


def _format_of(path: Path, columns: Columns) -> str:
    """The format by the file's ending; an unknown ending is lines of text, or a table where columns are named."""
    named = columns.text or columns.pair or columns.header is not None
    return FORMATS.get(ending(path)[1:], "tsv" if named else "lines")


def _table_note(table: Table) -> str:
    """A note where lines that were read as texts look like a table; else empty."""
    first, *others = [str(row.values["text"]) for row in table.sample[:SNIFFED_LINES] if not row.fault] or [""]
    format = "jsonl" if re.match(r"\s*\{\s*\"", first) else None
    for name, mark in (("tsv", "\t"), ("csv", ",")):
        is_header = mark in first and all(re.fullmatch(r'\s*"?[\w .-]{1,40}"?\s*', cell) for cell in first.split(mark))
        if others and is_header and all(line.count(mark) >= first.count(mark) for line in others if line):
            format = format or name
    return f"{table.path}: each line is read as a text; if this is a table, add format={format}" if format else ""


def _open(task: "TaskRow | None", path: Path, columns: Columns, format: str, report: CorpusReport) -> Table:
    if path is not STDIN and (path.is_dir() or not path.exists()):
        raise RequestError(
            f"{path} cannot be read: {'Is a directory' if path.is_dir() else 'No such file or directory'}"
        )
    if TABLE_FORMATS[format].holds == "words" and (task is None or not task.word_level):
        name = "embed" if task is None else task.name
        raise RequestError(f"{path}: CoNLL files hold words to tag, and this is '{name}'; give a table of texts")
    format = format if task is None else task.formats.get(format, format)
    return open_table(path, columns, format=format, labeled=False, report=report)


class RowsDigest:
    """A checksum of rows, which shows whether a file has changed in the rows that were read before."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)

    def add(self, row: Row) -> int:
        """Take the next row in; returns its size, about in characters."""
        content = f"{row.values!r}{bool(row.fault)}\n".encode("utf-8", "surrogatepass")
        self._hash.update(content)
        return len(content)

    def __str__(self) -> str:
        return self._hash.hexdigest()


def row_blocks(rows: Iterable[Row], digest: RowsDigest | None = None) -> Iterator[RowBlock]:
    """Blocks of up to ROWS_PER_BLOCK rows or about CHARACTERS_PER_BLOCK characters; they depend on the rows alone.

    `digest` is that of rows before these.
    """
    block: list[Row] = []
    size, digest = 0, RowsDigest() if digest is None else digest
    for row in rows:
        size += digest.add(row)
        block.append(row)
        if len(block) == ROWS_PER_BLOCK or size >= CHARACTERS_PER_BLOCK:
            yield RowBlock(tuple(block), str(digest), full=True)
            block, size = [], 0
    if block:
        yield RowBlock(tuple(block), str(digest), full=False)


def items_of(
    block: RowBlock, make_example: MakeExample, kept_cells: Callable[[Row], Mapping[str, Any]]
) -> Iterator[Item | str]:
    """An item for each row, or the message that says why it cannot be used."""
    for row in block.rows:
        try:
            if row.fault:
                raise RequestError(row.fault)
            yield Item(str(row.location), kept_cells(row), make_example(row))
        except RequestError as error:
            yield str(error)


def text_maker(table: Table, columns: Columns) -> tuple[Columns, MakeExample]:
    """The text column to read, and the function that gives a row's text."""
    if columns.pair:
        raise RequestError(f"pair={columns.pair}: a vector is made of one text; leave it out")
    if columns.text is None and table.names == ("text",):  # as in lines of text: there is nothing to guess
        used = replace(columns, text="text")
    else:
        from bertkit.data.columns import choose_text_columns

        used = replace(choose_text_columns(table, columns), pair=None, label=None)
    return used, lambda row: present_text(row, used.text or "")
