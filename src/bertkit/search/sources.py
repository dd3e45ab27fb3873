"""Documents from files and from Python, in blocks, each with how far its source was read."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit.data.columns import find_column, first_present
from bertkit.data.tables import Columns, Row, Table, TableFile, text_cell
from bertkit.errors import RequestError
from bertkit.predict.files.embed import find_row_id
from bertkit.predict.files.rows import (
    FileSettings,
    Item,
    RowsDigest,
    RowSource,
    items_of,
    open_source,
    row_blocks,
    text_maker,
)
from bertkit.progress import ShowProgress, silent
from bertkit.search.manifest import SourceRecord
from bertkit.text.corpus import STDIN, CorpusReport
from bertkit.text_inputs import refuse_unlisted

PYTHON = Path("texts")  # what documents that come from Python are called in messages
NO_ID = ""  # of a document whose file has no ids: its number in the index is its id


@dataclass(frozen=True)
class HowToRead:
    """How files of documents are read."""

    settings: FileSettings = FileSettings()  # noqa: RUF009 - it is frozen
    skip: bool = False  # whether rows that cannot be used are left out
    show: ShowProgress = silent
    say: Callable[[str], None] = lambda _: None  # called with notes on what was guessed


@dataclass(frozen=True)
class DocumentBlock:
    """Documents that are indexed together, and how far their file was read with them; `record` is None without one."""

    texts: list[str]
    ids: list[str]  # as JSON, or NO_ID
    faults: list[str]  # messages of rows that could not be used
    name: str
    record: SourceRecord | None


def file_blocks(path: Path, reading: HowToRead, record: SourceRecord | None) -> Iterator[DocumentBlock]:
    """The documents of a file after those that `record` says are in the index."""
    name, size = source_name(path), path.stat().st_size if path.is_file() else 0
    if path == STDIN:
        if record is not None and record.size < 0:
            raise RequestError(
                "a pipe was indexed in part, and cannot be read again; build the index again, from a file"
            )
        record = None  # what comes now is another one
    elif record is not None and record.size == size:
        reading.say(f"{path} is in the index already")
        return
    source = open_source(None, path, reading.settings.columns, reading.settings.format)
    reading.say(source.note)
    title = _title(source.table, source.columns.text, reading.settings.title)
    columns = f"{source.columns}, id = {reading.settings.id}, title = {title}"
    if record is not None and record.columns != columns:
        raise RequestError(f"{path} was read with {record.columns}, and now it is {columns}; use the columns of before")
    yield from _blocks(source, title, reading, name, record or SourceRecord(columns), size)


def python_blocks(texts: Iterable[Any], reading: HowToRead) -> Iterator[DocumentBlock]:
    """Documents that are str, or mappings with a text and perhaps an id and a title."""
    refuse_unlisted(texts)
    report = CorpusReport()
    file = TableFile(PYTHON, Columns(), report=report)
    rows = (Row(file.location(number, "row"), _values(text, number)) for number, text in enumerate(texts, start=1))
    table = file.table(rows)
    columns, make_text = text_maker(table, reading.settings.columns)
    title = _title(table, columns.text, reading.settings.title)
    source = RowSource(table, columns, make_text, "", report)
    for block in _blocks(source, title, reading, str(PYTHON), SourceRecord(""), -1):
        yield replace(block, record=None)


def source_name(path: Path) -> str:
    """What a file is called in the index, wherever the command is run."""
    return str(path) if path == STDIN else str(path.resolve())


def _values(text: Any, number: int) -> Mapping[str, Any]:
    if isinstance(text, str):
        return {"text": text}
    if isinstance(text, Mapping):
        return {str(name): value for name, value in text.items()}
    raise RequestError(
        f"{PYTHON}, row {number} is {type(text).__name__}; give str, or dicts with 'text' and perhaps 'id' and 'title'"
    )


def _blocks(
    source: RowSource, title: str | None, reading: HowToRead, name: str, record: SourceRecord, size: int
) -> Iterator[DocumentBlock]:
    row_id = find_row_id(source.table, reading.settings.id)
    make, digest = partial(_document, source, title), RowsDigest()
    _pass_over(source, record, digest)
    done = record.rows
    with reading.show(f"indexing {source.table.path.name}", source.total) as meter:
        for block in row_blocks(source.table.rows, digest):
            done += len(block.rows)
            items = list(items_of(block, make, row_id.of))
            record = replace(record, rows=done, digest=block.digest)
            yield _documents(items, reading, name, record, has_ids=row_id.column is not None)
            meter.update(source.done(done), {"documents": f"{done:,}"})
    yield DocumentBlock([], [], [], name, replace(record, size=size))


def _documents(
    items: list[Item | str], reading: HowToRead, name: str, record: SourceRecord, *, has_ids: bool
) -> DocumentBlock:
    faults = [item for item in items if isinstance(item, str)]
    if faults and not reading.skip:
        raise RequestError(f"{faults[0]} (--on-error skip leaves such rows out)")
    usable = [item for item in items if isinstance(item, Item)]
    ids = [json.dumps(item.kept_cells["id"], ensure_ascii=False, default=str) if has_ids else NO_ID for item in usable]
    return DocumentBlock([item.example for item in usable], ids, faults, name, record)


def _document(source: RowSource, title: str | None, row: Row) -> str:
    """The title, a space, and the text, as in BEIR."""
    text = str(source.make_example(row))
    if title is not None and title in row.values:
        text = f"{text_cell(row, title)} {text}"
    if not text.strip():
        raise RequestError(f"{row.location}: the document has no text; fill it in or remove the row")
    return text.strip()


def _title(table: Table, text: str | None, named: str | None) -> str | None:
    """The column of titles: the named one, or one of that name; `title=` the column of texts is none."""
    column = find_column(table, named, "title") if named else first_present(table, ("title",))
    return None if column == text else column


def _pass_over(source: RowSource, record: SourceRecord, digest: RowsDigest) -> None:
    """Read past the rows that are in the index, which must not have changed since."""
    passed = 0
    for row in islice(source.table.rows, record.rows):
        digest.add(row)
        passed += 1
    if passed < record.rows or (record.rows and str(digest) != record.digest):
        raise RequestError(
            f"{source.table.path} has changed in the {record.rows:,} rows that are in the index; put it back, write "
            "new documents to another file, or build the index again"
        )
