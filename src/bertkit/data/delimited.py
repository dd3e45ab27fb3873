"""CSV and TSV: where a row ends, where a cell ends, and whether the first line names the columns."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from bertkit.data.tables import SAMPLE, Place, Row, Table, TableFile, lines_of
from bertkit.errors import RequestError
from bertkit.text.corpus import MAX_ROW, STDIN

Record = tuple[int, list[str]]
ENOUGH_ROWS = 10  # to tell from the cells alone that the first line is a header
# A first line with one of these cells is a header; the rest of the guessing is in columns.py.
HEADER_WORDS = {"text", "sentence", "sentence1", "sentence2", "premise", "hypothesis", "question", "question1"}
HEADER_WORDS |= {"question2", "label", "labels", "gold_label", "score", "index", "review", "comment_text", "text_a"}
HEADER_WORDS |= {"text_b", "sentence_a", "sentence_b", "is_duplicate", "quality", "context", "passage"}
HEADER_WORDS |= {"title", "body", "topic", "category", "sentiment", "rating", "stars"}


@dataclass(frozen=True)
class Dialect:
    """What ends a cell, and whether "..." encloses one."""

    delimiter: str
    quotes: bool


def csv_table(file: TableFile) -> Table:
    """The rows of a CSV file."""
    return delimited_table(file, commas=True)


def tsv_table(file: TableFile) -> Table:
    """The rows of a TSV file."""
    return delimited_table(file, commas=False)


def delimited_table(file: TableFile, *, commas: bool) -> Table:
    """The rows of a CSV file (`commas`) or a TSV file."""
    path, columns, lines = file.path, file.columns, file.lines()
    if path is STDIN:  # it can be read but once: the first lines speak for all
        head = list(islice(lines, SAMPLE))
        every, lines = iter(head), chain(head, lines)
    else:
        every = lines_of(path, columns.encoding)
    dialect = dialect_of(every, columns.quotes, commas=commas, partial=path is STDIN and len(head) == SAMPLE)
    records = delimited_records(path, lines, dialect)
    first = list(islice(records, SAMPLE))
    if not first:
        raise RequestError(f"{path} holds no rows; give a file that has some")
    named = [name for name in (columns.text, columns.pair, *(columns.label or "").split(",")) if name]
    names, header = name_the_columns(path, [cells for _, cells in first], named, columns.header, dialect)
    if header and len(first) == 1:
        raise RequestError(f"{path} holds a header line and no rows; give a file that has some")
    rows = _rows(path, names, header, chain(first[header:], records), commas=dialect.delimiter != "\t")
    notes = ("quotes read as in CSV",) if dialect.quotes and dialect.delimiter == "\t" else ()
    return file.table(rows, names=names, header=header, notes=notes)


def _rows(
    path: Path, names: Sequence[str], header: bool, records: Iterable[tuple[int, list[str]]], *, commas: bool
) -> Iterator[Row]:
    for line, cells in records:
        place = Place(path, line)
        if header and len(cells) != len(names):
            what = f"{len(cells)} columns where the header has {len(names)}"
        elif not header and commas and any(cell.strip() for cell in cells[len(names) :]):
            what = f"{len(cells)} columns where other rows have {len(names)}"
        else:
            yield Row(place, dict(zip(names, cells, strict=False)))
            continue
        yield Row(place, {}, f"{place}: {what}; look for a stray tab, comma or quote, or a line end inside a cell")


def dialect_of(
    lines: Iterator[tuple[int, str]], quotes: bool | None, *, commas: bool, partial: bool = False
) -> Dialect:
    """The dialect of a file, from all of its lines where it takes them; `commas` if its name says CSV.

    `partial`: more lines follow, so that the last row may be incomplete.
    """
    for _, line in lines:
        if line.strip():
            delimiter = _delimiter(line) if commas else "\t"
            if quotes is None:
                quotes = delimiter != "\t" or _quoted_as_csv(chain([line], (text for _, text in lines)), partial)
            return Dialect(delimiter, quotes)
    return Dialect("\t", False)


def _quoted_as_csv(lines: Iterator[str], partial: bool) -> bool:
    """Whether the quotes of tab-separated lines are those of CSV, in one pass over them.

    They are where every quoted cell follows CSV's rules within its line and some need them (a doubled quote, or all
    names enclosed); and where CSV gives every row the same columns and a split at line ends and tabs does not. GLUE's
    files do neither: a quote there is a character like any other, and often stands alone.
    """
    csv.field_size_limit(MAX_ROW)
    seen = _Literal()
    widths: set[int] = set()
    try:
        for cells in csv.reader(seen.watched(lines), delimiter="\t", strict=True):
            seen.complete = 0
            if any(cell.strip() for cell in cells):
                widths.add(len(cells))
                seen.width = len(cells)
            if len(widths) > 1 and not seen.tidy:
                return False
    except _SeveralRows:
        return False
    except csv.Error:
        if not (partial and seen.ended):
            return False
    return (seen.tidy and seen.used) or (len(widths) == 1 and len(seen.widths) > 1 and widths != {1})


class _SeveralRows(Exception):
    """A quoted cell would swallow lines that are complete rows by themselves."""


@dataclass
class _Literal:
    """What lines are like if they are split at their tabs, whatever quotes they hold."""

    widths: set[int] = field(default_factory=set)
    width: int = 0  # cells of the first line, then of the last row of CSV
    tidy: bool = True  # every cell with a quote is enclosed, and the quotes inside are doubled
    used: bool = False  # some cells need CSV's rules
    complete: int = 0  # lines of `width` cells since the last row of CSV ended
    ended: bool = False

    def watched(self, lines: Iterator[str]) -> Iterator[str]:
        """The lines, each looked at on its way to the CSV reader."""
        for line in lines:
            cells = line.split("\t")
            if line.strip():
                self._look(line, cells)
            yield f"{line}\n"
        self.ended = True

    def _look(self, line: str, cells: Sequence[str]) -> None:
        if not self.width:
            self.width = len(cells)
            self.used = len(cells) > 1 and None not in map(_enclosed, cells)
        self.widths.add(len(cells))
        self.complete += len(cells) == self.width > 1
        if self.complete > 1:  # two rows for one of CSV: a stray quote here, another one further on
            raise _SeveralRows
        for cell in cells if '"' in line else ():
            inner = _enclosed(cell)
            self.tidy = self.tidy and '"' not in (cell if inner is None else inner.replace('""', ""))
            self.used = self.used or (inner is not None and '""' in inner)


def _enclosed(cell: str) -> str | None:
    return cell[1:-1] if len(cell) > 1 and cell[0] == cell[-1] == '"' else None


def delimited_records(path: Path, lines: Iterator[tuple[int, str]], dialect: Dialect) -> Iterator[Record]:
    """(line, cells) of every row that is not blank."""
    if dialect.quotes:
        return _quoted(path, lines, dialect.delimiter)
    return ((number, line.split(dialect.delimiter)) for number, line in lines if line.strip())


def _delimiter(first: str) -> str:
    """Files called .csv hold tabs (the STS benchmark) or semicolons (a spreadsheet in half of Europe) as well."""
    if "\t" in first:
        return "\t"
    return ";" if first.count(";") > first.count(",") else ","


def _quoted(path: Path, lines: Iterator[tuple[int, str]], delimiter: str) -> Iterator[Record]:
    csv.field_size_limit(MAX_ROW)  # the default refuses documents over 131,072 characters
    reader = csv.reader((f"{line}\n" for _, line in lines), delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise RequestError(
                f"{path}, line {line}: the quotes of this row are not balanced ({error}); double a quote inside "
                'a quoted cell, or say quotes=false if " is part of the text'
            ) from error
        if any(cell.strip() for cell in cells):
            yield line, cells


def name_the_columns(
    path: Path, records: Sequence[list[str]], named: Sequence[str], header: bool | None, dialect: Dialect
) -> tuple[tuple[str, ...], bool]:
    """The names and whether they came from the first line; else they are 1, 2, 3, ..."""
    if header is None:
        header = _has_header(records, named, commas=dialect.delimiter != "\t")
    if not header:
        # A tab too many does not happen, and some files have notes after their last column; commas stand in texts, too.
        widths = [len(cells) for cells in records]
        width = max(widths) if dialect.delimiter == "\t" else Counter(widths).most_common(1)[0][0]
        return tuple(str(number) for number in range(1, width + 1)), False
    names = [cell.strip() for cell in records[0]]
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        raise RequestError(f"{path}, line 1: two columns are called '{twice[0]}'; rename one")
    return tuple(name or str(number) for number, name in enumerate(names, start=1)), True


def _has_header(records: Sequence[list[str]], named: Sequence[str], *, commas: bool) -> bool:
    first = [cell.strip() for cell in records[0]]
    folded = {cell.casefold() for cell in first}
    if any(name.strip().casefold() in folded for name in named) or len(folded & HEADER_WORDS) > 1:
        return True
    below = [{row[at].strip() for row in records[1:] if at < len(row)} for at in range(len(first))]
    if any(cell in others for cell, others in zip(first, below, strict=True) if cell):
        return False  # a name does not come again as a value
    if folded & HEADER_WORDS:
        return True
    # CSV comes with a header nearly always; names that mean nothing to us end in a question, not in a wrong guess.
    return _could_be_names(first) and (commas or (len(records) > ENOUGH_ROWS and _stand_out(below, len(records))))


def _could_be_names(first: Sequence[str]) -> bool:
    names = all(re.fullmatch(r"[A-Za-z_#][\w #./-]{0,39}", cell) for cell in first)
    return names and len(first) == len(set(first)) > 1


def _stand_out(below: Sequence[set[str]], rows: int) -> bool:
    """Whether a column under the names holds numbers, or few values."""
    return any(len(values) <= rows // 3 or all(map(_is_number, values)) for values in below)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
