"""CSV and TSV files as tables: detection of delimiter, quoting and header line."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from bertkit.data.tables import SAMPLE, Location, Row, Table, TableFile, lines_of
from bertkit.errors import RequestError
from bertkit.text.corpus import MAX_ROW, STDIN

Record = tuple[int, list[str]]
MIN_HEADER_ROWS = 10  # with fewer rows, a header of unknown names is not detected in TSV
# A first line with one of these cells is a header; which column is which is guessed in columns.py.
HEADER_WORDS = {"text", "sentence", "sentence1", "sentence2", "premise", "hypothesis", "question", "question1"}
HEADER_WORDS |= {"question2", "label", "labels", "gold_label", "score", "index", "review", "comment_text", "text_a"}
HEADER_WORDS |= {"text_b", "sentence_a", "sentence_b", "is_duplicate", "quality", "context", "passage"}
HEADER_WORDS |= {"title", "body", "topic", "category", "sentiment", "rating", "stars"}
HEADER_WORDS |= {"source", "target", "src", "tgt", "query", "anchor"}


@dataclass(frozen=True)
class Dialect:
    """The delimiter of cells, and whether cells may be enclosed in double quotes."""

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
    if path is STDIN:  # it can be read only once: the dialect is detected from the first lines
        head = list(islice(lines, SAMPLE))
        inspected, lines = iter(head), chain(head, lines)
    else:
        inspected = lines_of(path, columns.encoding)
    dialect = detect_dialect(inspected, columns.quotes, commas=commas, partial=path is STDIN and len(head) == SAMPLE)
    records = delimited_records(path, lines, dialect)
    first = list(islice(records, SAMPLE))
    if not first:
        raise RequestError(f"{path} holds no rows; give a file that has some")
    named = [name for name in (columns.text, columns.pair, *(columns.label or "").split(",")) if name]
    names, header = column_names(path, [cells for _, cells in first], named, columns.header, dialect)
    if header and len(first) == 1:
        raise RequestError(f"{path} holds a header line and no rows; give a file that has some")
    rows = _rows(path, names, header, chain(first[header:], records), commas=dialect.delimiter != "\t")
    notes = ("quotes read as in CSV",) if dialect.quotes and dialect.delimiter == "\t" else ()
    return file.table(rows, names=names, header=header, notes=notes)


def _rows(
    path: Path, names: Sequence[str], header: bool, records: Iterable[tuple[int, list[str]]], *, commas: bool
) -> Iterator[Row]:
    for line, cells in records:
        location = Location(path, line)
        if header and len(cells) != len(names):
            what = f"{len(cells)} columns where the header has {len(names)}"
        elif not header and commas and any(cell.strip() for cell in cells[len(names) :]):
            what = f"{len(cells)} columns where other rows have {len(names)}"
        else:
            yield Row(location, dict(zip(names, cells, strict=False)))
            continue
        yield Row(
            location, {}, f"{location}: {what}; look for a stray tab, comma or quote, or a line end inside a cell"
        )


def detect_dialect(
    lines: Iterator[tuple[int, str]], quotes: bool | None, *, commas: bool, partial: bool = False
) -> Dialect:
    """The dialect of a file from its lines; `quotes` is detected if None. `commas`: the file name ends in .csv.

    `partial`: more lines follow, so that the last row may be incomplete.
    """
    for _, line in lines:
        if line.strip():
            delimiter = _delimiter(line) if commas else "\t"
            if quotes is None:
                quotes = delimiter != "\t" or _has_csv_quotes(chain([line], (text for _, text in lines)), partial)
            return Dialect(delimiter, quotes)
    return Dialect("\t", False)


def _has_csv_quotes(lines: Iterator[str], partial: bool) -> bool:
    """Whether the quotes of tab-separated lines follow the rules of CSV, in one pass over the lines.

    They do if every quoted cell is valid CSV within its line and some cells need CSV (a doubled quote, or a first line
    with all cells enclosed); or if CSV gives all rows the same number of cells and a split at line ends and tabs does
    not. In GLUE's files neither is true: a quote is an ordinary character there, often without a second one.
    """
    csv.field_size_limit(MAX_ROW)
    split = _TabSplit()
    csv_widths: set[int] = set()
    try:
        for cells in csv.reader(split.inspect(lines), delimiter="\t", strict=True):
            split.complete_lines = 0
            if any(cell.strip() for cell in cells):
                csv_widths.add(len(cells))
                split.row_width = len(cells)
            if len(csv_widths) > 1 and not split.valid_quotes:
                return False
    except _SeveralRows:
        return False
    except csv.Error:
        if not (partial and split.ended):
            return False
    only_csv_is_even = len(csv_widths) == 1 and len(split.widths) > 1 and csv_widths != {1}
    return (split.valid_quotes and split.needs_csv) or only_csv_is_even


class _SeveralRows(Exception):
    """Several lines that are complete rows by themselves would be one quoted cell."""


@dataclass
class _TabSplit:
    """What is seen of lines that are split at tabs and line ends, without regard to quotes."""

    widths: set[int] = field(default_factory=set)  # numbers of cells
    row_width: int = 0  # cells of the first line, then of the last CSV row
    valid_quotes: bool = True  # every cell with a quote is enclosed, and the quotes inside are doubled
    needs_csv: bool = False  # some cells cannot be read without CSV's rules
    complete_lines: int = 0  # lines of `row_width` cells since the last CSV row ended
    ended: bool = False

    def inspect(self, lines: Iterator[str]) -> Iterator[str]:
        """The lines for the CSV reader; each is inspected when it is taken."""
        for line in lines:
            cells = line.split("\t")
            if line.strip():
                self._inspect_line(line, cells)
            yield f"{line}\n"
        self.ended = True

    def _inspect_line(self, line: str, cells: Sequence[str]) -> None:
        if not self.row_width:
            self.row_width = len(cells)
            self.needs_csv = len(cells) > 1 and None not in map(_enclosed, cells)
        self.widths.add(len(cells))
        self.complete_lines += len(cells) == self.row_width > 1
        if self.complete_lines > 1:  # one CSV row for two lines: there is a stray quote here and another one below
            raise _SeveralRows
        for cell in cells if '"' in line else ():
            inner = _enclosed(cell)
            self.valid_quotes = self.valid_quotes and '"' not in (cell if inner is None else inner.replace('""', ""))
            self.needs_csv = self.needs_csv or (inner is not None and '""' in inner)


def _enclosed(cell: str) -> str | None:
    return cell[1:-1] if len(cell) > 1 and cell[0] == cell[-1] == '"' else None


def delimited_records(path: Path, lines: Iterator[tuple[int, str]], dialect: Dialect) -> Iterator[Record]:
    """(line, cells) of every row that is not blank."""
    if dialect.quotes:
        return _quoted(path, lines, dialect.delimiter)
    return ((number, line.split(dialect.delimiter)) for number, line in lines if line.strip())


def _delimiter(first: str) -> str:
    """The delimiter of a .csv file: some have tabs (STS benchmark) or semicolons (spreadsheets in much of Europe)."""
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


def column_names(
    path: Path, records: Sequence[list[str]], named: Sequence[str], header: bool | None, dialect: Dialect
) -> tuple[tuple[str, ...], bool]:
    """(names, whether the first line has them); without a header line they are 1, 2, 3, ...

    `header` is detected if None; `named` are the columns that the user named.
    """
    if header is None:
        header = _has_header(records, named, commas=dialect.delimiter != "\t")
    if not header:
        # Tabs: the widest row, as some files have notes after the last column. Commas: the most frequent width, as
        # texts may have commas that are not quoted.
        widths = [len(cells) for cells in records]
        width = max(widths) if dialect.delimiter == "\t" else Counter(widths).most_common(1)[0][0]
        return tuple(str(number) for number in range(1, width + 1)), False
    names = [cell.strip() for cell in records[0]]
    if repeated := sorted({name for name in names if name and names.count(name) > 1}):
        raise RequestError(f"{path}, line 1: two columns are called '{repeated[0]}'; rename one")
    return tuple(name or str(number) for number, name in enumerate(names, start=1)), True


def _has_header(records: Sequence[list[str]], named: Sequence[str], *, commas: bool) -> bool:
    first = [cell.strip() for cell in records[0]]
    folded = {cell.casefold() for cell in first}
    if any(name.strip().casefold() in folded for name in named) or len(folded & HEADER_WORDS) > 1:
        return True
    below = [{row[column].strip() for row in records[1:] if column < len(row)} for column in range(len(first))]
    if any(cell in values for cell, values in zip(first, below, strict=True) if cell):
        return False  # a column name is not a value of its column
    if folded & HEADER_WORDS:
        return True
    # Nearly every CSV file has a header; with unknown names the user is asked to name the columns.
    enough_rows = len(records) > MIN_HEADER_ROWS
    return _could_be_names(first) and (commas or (enough_rows and _has_categorical_column(below, len(records))))


def _could_be_names(first: Sequence[str]) -> bool:
    names = all(re.fullmatch(r"[A-Za-z_#][\w #./-]{0,39}", cell) for cell in first)
    return names and len(first) == len(set(first)) > 1


def _has_categorical_column(below: Sequence[set[str]], rows: int) -> bool:
    """Whether the values of a column, without the first line, are few or all numbers."""
    return any(len(values) <= rows // 3 or all(map(_is_number, values)) for values in below)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
