"""CoNLL files (a word per line in columns, a blank line between sentences) and CoNLL-U files as tables of sentences."""

import re
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path

from bertkit.data.tables import Location, NoLabels, Row, Table, TableFile
from bertkit.errors import RequestError
from bertkit.settings import pick

CONLL_U_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
Lines = list[tuple[int, str]]


def conll_table(file: TableFile) -> Table:
    """Rows with a list of words and a list of tags: the first and the last column, or those that the user numbered."""
    path, columns = file.path, file.columns
    blocks = _blocks(file.lines(), lambda line: line.startswith("-DOCSTART-"))
    first = list(islice(blocks, 1))
    if not first:
        raise RequestError(f"{path} holds no sentences; give a file that has some")
    number, line = first[0][0]
    width = len(_cells(line))
    if file.labeled and width < 2:
        raise NoLabels(f"{path}, line {number}: one column only, so there are no tags; each line is a word and its tag")
    word = _column_index(path, columns.text, "text", width, 1)
    tag = _column_index(path, columns.label, "label", width, width) if file.labeled else None
    names = tuple(str(index + 1) for index in (word, tag) if index is not None)
    return file.table((_conll_row(path, block, width, word, tag) for block in chain(first, blocks)), names=names)


def conllu_table(file: TableFile) -> Table:
    """Rows with a list of words (FORM) and a list of tags (UPOS, or the column that the user named)."""
    path, columns = file.path, file.columns
    indices = {name: index for index, name in enumerate(CONLL_U_COLUMNS)}
    word = pick(indices, (columns.text or "form").lower(), f"CoNLL-U column of {path}:")
    tag = pick(indices, (columns.label or "upos").lower(), f"CoNLL-U column of {path}:") if file.labeled else None
    names = tuple(CONLL_U_COLUMNS[index] for index in (word, tag) if index is not None)
    rows = (_conllu_row(path, block, word, tag) for block in _blocks(file.lines(), lambda line: False))
    return file.table((row for row in rows if row is not None), names=names, unit="sentences")


def _column_index(path: Path, name: str | None, role: str, width: int, default: int) -> int:
    """The index from 0 of a column that is named by its number from 1."""
    if name is not None and (not name.isdecimal() or not 1 <= int(name) <= width):
        raise RequestError(f"{path} has columns 1 to {width}, and no names for them; {role}={name} is none of them")
    return int(name or default) - 1


def _blocks(lines: Iterator[tuple[int, str]], separates: Callable[[str], bool]) -> Iterator[Lines]:
    """(number, line) of the lines of each sentence; blank lines and those that `separates` accepts end one."""
    block: Lines = []
    for number, line in lines:
        if line.strip() and not separates(line):
            block.append((number, line))
        elif block:
            yield block
            block = []
    if block:
        yield block


def _cells(line: str) -> list[str]:
    # Spaces may be part of a word in lines with tabs; other white space, such as U+00A0, always is part of a word.
    return line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))


def _conll_row(path: Path, block: Lines, width: int, word: int, tag: int | None) -> Row:
    words, tags, location = [], [], Location(path, block[0][0])
    for number, line in block:
        cells = _cells(line)
        if len(cells) != width:
            what = f"{len(cells)} columns where the first line has {width}"
            return Row(location, {}, f"{path}, line {number}: {what}; each line is a word and its tags")
        if not cells[word].strip() or (tag is not None and not cells[tag].strip()):
            which = "tag" if cells[word].strip() else "word"
            return Row(location, {}, f"{path}, line {number}: the {which} is empty; fill it in or remove the line")
        words.append(cells[word].strip())
        tags.append("" if tag is None else cells[tag].strip())
    return Row(location, {str(word + 1): words, **({} if tag is None else {str(tag + 1): tags})})


def _conllu_row(path: Path, block: Lines, word: int, tag: int | None) -> Row | None:
    """One sentence without ranges (1-2), which repeat the following words, and empty nodes (1.1), which are no text."""
    words, tags, location = [], [], Location(path, block[0][0])
    for number, line in block:
        if line.startswith("#"):
            continue
        cells = line.split("\t")
        if len(cells) != len(CONLL_U_COLUMNS):
            what = f"{len(cells)} columns where CoNLL-U has {len(CONLL_U_COLUMNS)}"
            return Row(location, {}, f"{path}, line {number}: {what}, with tabs between them")
        if re.fullmatch(r"\d+[-.]\d+", cells[0]):
            continue
        fault = _conllu_fault(cells, word, tag)
        if fault:
            return Row(location, {}, f"{path}, line {number}: {fault}")
        words.append(cells[word])
        tags.append("" if tag is None else cells[tag])
    if not words:
        return None
    return Row(location, {CONLL_U_COLUMNS[word]: words, **({} if tag is None else {CONLL_U_COLUMNS[tag]: tags})})


def _conllu_fault(cells: list[str], word: int, tag: int | None) -> str:
    if not cells[0].isdecimal():
        return f"'{cells[0]}' is no number of a word"
    if not cells[word].strip():
        return "the word is empty; fill it in"
    if tag is not None and cells[tag].strip() in ("", "_") and CONLL_U_COLUMNS[tag] in ("upos", "xpos", "deprel"):
        return f"no {CONLL_U_COLUMNS[tag]} for '{cells[word]}'; fill it in, or name another column with label=..."
    return ""
