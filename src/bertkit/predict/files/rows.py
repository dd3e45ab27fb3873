"""A file of any size as rows to answer: read in blocks of bounded size, each row with its place or its fault."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.formats import TABLE_FORMATS, open_table
from bertkit.data.tables import Columns, Row, Table, ending, present_text
from bertkit.errors import RequestError
from bertkit.settings import pick
from bertkit.text.corpus import STDIN, CorpusReport

if TYPE_CHECKING:
    from bertkit.tasks.row import TaskRow

# Formats by name and by ending; those of .txt and .label, which hold tables in training data, are texts here.
ENDINGS = {end[1:]: name for name, row in TABLE_FORMATS.items() for end in row.endings if end not in (".txt", ".label")}
FORMATS = {**ENDINGS, **{name: name for name in TABLE_FORMATS}}
# A block is what is computed, written and flushed together. Texts are sorted by length within it.
ROWS = 2048
CHARACTERS = 1 << 20  # of all cells: about 250,000 tokens, some 50 MB of them while they are worked on
Make = Callable[[Row], Any]


@dataclass(frozen=True)
class Source:
    """An open file: its rows, and what makes a question to the model of each."""

    table: Table
    columns: Columns  # those that are used
    make: Make
    said: str  # what was guessed; empty for plain lines
    report: CorpusReport  # its bytes run along

    def done(self, rows: int) -> float:
        """How much of `total` is read."""
        return rows if self._counted else self.report.bytes

    @property
    def total(self) -> float:
        """Rows of a Parquet file, else bytes; 0 where nobody knows."""
        if self._counted:
            import pyarrow.parquet

            return float(pyarrow.parquet.ParquetFile(self.table.path).metadata.num_rows)
        return self.table.path.stat().st_size if self.table.path.is_file() else 0

    @property
    def _counted(self) -> bool:
        return ending(self.table.path) == ".parquet"


@dataclass(frozen=True)
class RowBlock:
    """Rows that are worked on together. The digest is over all rows so far, so that a change shows."""

    rows: tuple[Row, ...]
    digest: str
    full: bool  # False: the file ended here


@dataclass(frozen=True)
class Item:
    """One row on its way through the model: what is kept of it, and what is asked."""

    place: str
    kept: Mapping[str, Any]
    example: Any


def open_source(task: "TaskRow | None", path: Path, columns: Columns, kind: str | None = None) -> Source:
    """Open a file for a task, or without one to embed; `-` is standard input. Columns not named are guessed."""
    path, report = STDIN if str(path) == "-" else path, CorpusReport()
    kind = _kind(path, columns) if kind is None else pick(FORMATS, kind, "format")
    if kind == "lines" and task is not None and task.missing_from_lines:
        lacks = f"a question and {task.missing_from_lines}"
        raise RequestError(f"{path}: a plain line has no room for {lacks}; give JSONL, CSV or Parquet")
    if path is STDIN and not TABLE_FORMATS[kind].piped:
        raise RequestError(f"standard input cannot be read as {kind}; name a file, or give JSONL")
    table = _open(task, path, columns, kind, report)
    if all(row.fault for row in table.sample):
        raise RequestError(table.sample[0].fault)
    used, make = _embed_maker(table, columns) if task is None else task.unlabeled_reader(table, columns)
    said = "" if kind == "lines" else f"{path}: {', '.join([str(used), *table.notes])}"
    return Source(table, used, make, said, report)


def _kind(path: Path, columns: Columns) -> str:
    """By the ending; what is in no table is lines, unless columns of it are named."""
    named = columns.text or columns.pair or columns.header is not None
    return FORMATS.get(ending(path)[1:], "tsv" if named else "lines")


def _open(task: "TaskRow | None", path: Path, columns: Columns, kind: str, report: CorpusReport) -> Table:
    if path is not STDIN and (path.is_dir() or not path.exists()):
        raise RequestError(
            f"{path} cannot be read: {'Is a directory' if path.is_dir() else 'No such file or directory'}"
        )
    if TABLE_FORMATS[kind].holds == "words" and (task is None or not task.word_level):
        name = "embed" if task is None else task.name
        raise RequestError(f"{path}: CoNLL files hold words to tag, and this is '{name}'; give a table of texts")
    kind = kind if task is None else task.formats.get(kind, kind)
    return open_table(path, columns, format=kind, labeled=False, report=report)


def row_blocks(rows: Iterable[Row]) -> Iterator[RowBlock]:
    """Blocks of up to ROWS rows or about CHARACTERS characters: how they fall depends on the rows alone."""
    held: list[Row] = []
    size, digest = 0, blake2b(digest_size=16)
    for row in rows:
        content = f"{row.values!r}{bool(row.fault)}\n".encode("utf-8", "surrogatepass")
        digest.update(content)
        held.append(row)
        size += len(content)
        if len(held) == ROWS or size >= CHARACTERS:
            yield RowBlock(tuple(held), digest.hexdigest(), full=True)
            held, size = [], 0
    if held:
        yield RowBlock(tuple(held), digest.hexdigest(), full=False)


def items_of(block: RowBlock, make: Make, keep: Callable[[Row], Mapping[str, Any]]) -> Iterator[Item | str]:
    """An item for each row, or the sentence that says why it cannot be used."""
    for row in block.rows:
        try:
            if row.fault:
                raise RequestError(row.fault)
            yield Item(str(row.location), keep(row), make(row))
        except RequestError as error:
            yield str(error)


def _embed_maker(table: Table, columns: Columns) -> tuple[Columns, Make]:
    if columns.pair:
        raise RequestError(f"pair={columns.pair}: a vector is made of one text; leave it out")
    if columns.text is None and table.names == ("text",):  # as lines have it: nothing is to be guessed
        used = replace(columns, text="text")
    else:
        from bertkit.data.columns import choose_text_columns

        used = replace(choose_text_columns(table, columns), pair=None, label=None)
    return used, lambda row: present_text(row, used.text or "")
