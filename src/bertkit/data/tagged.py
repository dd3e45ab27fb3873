"""Rows of words and tags to sentences: tag."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bertkit.data.columns import choose_tag_columns
from bertkit.data.examples import Example, TaggedExample
from bertkit.data.tables import Columns, NoLabels, Row, Table, cell, checked
from bertkit.data.texts import label_name
from bertkit.errors import RequestError


def tagged_maker(table: Table, columns: Columns, labelled: bool) -> tuple[Columns, Callable[[Row], Example]]:
    """The columns that are used, and what makes a sentence of a row."""
    chosen = choose_tag_columns(table, columns)
    if not labelled:
        chosen = replace(chosen, label=None)
    elif chosen.label is None:
        has = ", ".join(table.names[:20])
        raise NoLabels(f"{table.path}: no column of tags; name it with label=... It has: {has}")

    def make(row: Row) -> Example:
        words = tuple(_word(row, word) for word in _list(row, chosen.text or ""))
        if chosen.label is None:
            return TaggedExample(words, None, row.place)
        tags = tuple(label_name(row, chosen.label, tag, table) for tag in _list(row, chosen.label))
        if len(words) != len(tags):
            raise RequestError(f"{row.place}: {len(words)} words and {len(tags)} tags; give one tag to each word")
        return TaggedExample(words, tags, row.place)

    return chosen, make


def _list(row: Row, name: str) -> list[Any]:
    values = cell(row, name)
    if not isinstance(values, list) or not values:
        what = "empty" if values in ([], None, "") else f"{type(values).__name__}, not a list"
        raise RequestError(f"{row.place}: '{name}' is {what}; tag needs a list of words and a list of tags")
    return values


def _word(row: Row, word: Any) -> str:
    if not isinstance(word, str) or not word.strip():
        raise RequestError(f"{row.place}: {word!r} is no word; repair or remove the row")
    return checked(word, "word", row.place)
