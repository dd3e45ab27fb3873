"""A file of any size as rows to answer: read in blocks of bounded size, each row with its place or its fault."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bertkit.data.choices import choice_maker
from bertkit.data.columns import WORDS, choose_text_columns, find, first_known
from bertkit.data.conll import open_conll, open_conllu
from bertkit.data.examples import Place
from bertkit.data.squad import open_squad, question_maker
from bertkit.data.tables import SAMPLE, Columns, Row, Table, cell, checked, ending, lines_of, open_table, text_cell
from bertkit.data.texts import text_maker
from bertkit.errors import RequestError
from bertkit.settings import pick
from bertkit.text.corpus import STDIN, CorpusReport

EMBED = "embed"  # stands beside the names of tasks: a text, and nothing is asked
KINDS = ("lines", "jsonl", "ndjson", "csv", "tsv", "tab", "json", "parquet", "conll", "conllu", "squad")
OTHER_ENDINGS = {".bio": "conll", ".iob": "conll", ".iob2": "conll"}
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


def open_source(task: str, path: Path, columns: Columns, kind: str | None = None) -> Source:
    """Open a file for a task, or for `EMBED`; `-` is standard input. Columns that were not named are guessed."""
    path, report = STDIN if str(path) == "-" else path, CorpusReport()
    if kind is None:
        kind = _kind(path, columns)
    pick(dict.fromkeys(KINDS), kind, "format")
    if kind == "lines" and task in ("answer", "choose"):
        needs = "a passage" if task == "answer" else "choices"
        raise RequestError(f"{path}: a plain line has no room for a question and {needs}; give JSONL, CSV or Parquet")
    if path is STDIN and kind in ("parquet", "json", "squad"):
        raise RequestError(f"standard input cannot be read as {kind}; name a file, or give JSONL")
    table = _open(task, path, columns, kind, report)
    if all(row.fault for row in table.sample):
        raise RequestError(table.sample[0].fault)
    used, make = MAKERS.get(task, _texts(task))(table, columns)
    said = "" if kind == "lines" else f"{path}: {', '.join([str(used), *table.said])}"
    return Source(table, used, make, said, report)


def _kind(path: Path, columns: Columns) -> str:
    """By the ending; what is in no table is lines, unless columns of it are named."""
    kind = OTHER_ENDINGS.get(ending(path), ending(path)[1:])
    named = columns.text or columns.pair or columns.header is not None
    return kind if kind in KINDS else "tsv" if named else "lines"


def _open(task: str, path: Path, columns: Columns, kind: str, report: CorpusReport) -> Table:
    if path is not STDIN and (path.is_dir() or not path.exists()):
        raise RequestError(
            f"{path} cannot be read: {'Is a directory' if path.is_dir() else 'No such file or directory'}"
        )
    if kind == "lines":
        return _lines_table(path, columns, report)
    if kind in ("conll", "conllu"):
        if task != "tag":
            raise RequestError(f"{path}: CoNLL files hold words to tag, and this is '{task}'; give a table of texts")
        return (open_conll if kind == "conll" else open_conllu)(path, columns, False)
    if kind == "squad" or (kind == "json" and task == "answer"):
        return open_squad(path, columns)
    return open_table(path, columns, kind=f".{kind}", report=report)


def _lines_table(path: Path, columns: Columns, report: CorpusReport) -> Table:
    """Each line is a text, blank ones too, so that line n of the input is row n of the output."""
    lines = lines_of(path, columns.encoding, report)
    rows = (Row(Place(path, number), {"text": line}) for number, line in lines)
    sample = tuple(islice(rows, SAMPLE))
    return Table(path, ("text",), True, sample, chain(sample, rows))


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
            yield Item(str(row.place), keep(row), make(row))
        except RequestError as error:
            yield str(error)


def _present(row: Row, name: str) -> str:
    """A text that must be there: null is none, unlike in training data, where it stands for an empty one."""
    if cell(row, name) is None:
        raise RequestError(f"{row.place}: '{name}' is null, not a text; repair or remove the row")
    return text_cell(row, name)


def _texts(task: str) -> Callable[[Table, Columns], tuple[Columns, Make]]:
    def maker(table: Table, columns: Columns) -> tuple[Columns, Make]:
        used, make = text_maker(task, table, columns, False)

        def made(row: Row) -> Any:
            for name in filter(None, (used.text, used.pair)):
                _present(row, name)
            return make(row)

        return used, made

    return maker


def _embed_maker(table: Table, columns: Columns) -> tuple[Columns, Make]:
    if columns.pair:
        raise RequestError(f"pair={columns.pair}: a vector is made of one text; leave it out")
    used = replace(choose_text_columns("classify", table, columns), pair=None, label=None)
    return used, lambda row: _present(row, used.text or "")


def _tag_maker(table: Table, columns: Columns) -> tuple[Columns, Make]:
    """Sentences in words where the file has lists of them, else plain texts."""
    if columns.text is None and (words := first_known(table, WORDS) or _only_list(table)):
        columns = replace(columns, text=words)
    if columns.text is None:
        used = replace(choose_text_columns("classify", table, columns), pair=None, label=None)
    else:
        used = replace(columns, text=find(table, columns.text, "text"), label=None)
    return used, lambda row: _words_or_text(row, used.text or "")


def _only_list(table: Table) -> str | None:
    """CoNLL files have one column, of words, which is called by its number or as the user named it."""
    return (
        table.names[0] if len(table.names) == 1 and isinstance(table.sample[0].values[table.names[0]], list) else None
    )


def _words_or_text(row: Row, name: str) -> str | tuple[str, ...]:
    value = cell(row, name)
    if not isinstance(value, list):
        return _present(row, name)
    for word in value:
        if not isinstance(word, str) or not word.strip():
            raise RequestError(f"{row.place}: {json.dumps(word)[:40]} is no word; repair or remove the row")
        checked(word, name, row.place)
    return tuple(value)


def _question_maker(table: Table, columns: Columns) -> tuple[Columns, Make]:
    used, make = question_maker(table, columns, False)

    def made(row: Row) -> Any:
        for name in (used.text, used.pair):
            _present(row, name or "")
        return make(row)

    return used, made


MAKERS: dict[str, Callable[[Table, Columns], tuple[Columns, Make]]] = {
    EMBED: _embed_maker,
    "tag": _tag_maker,
    "answer": _question_maker,
    "choose": lambda table, columns: choice_maker(table, columns, False),
}
