"""Rows of words and their labels to sentences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertkit.data.columns import TAGS, choose_tag_columns, no_column
from bertkit.data.examples import Example, TaggedExample
from bertkit.data.tables import Columns, Place, Row, Table, cell, checked
from bertkit.data.texts import label_name
from bertkit.errors import RequestError


@dataclass(frozen=True)
class WordLabels:
    """What the labels of words are: what they are called, columns that are guessed, how one is read, the example."""

    label: str
    names: Sequence[str]
    read: Callable[[Row, str, Any, Table], Any]
    make: Callable[[tuple[str, ...], tuple[Any, ...] | None, Place, str | None], Example]  # words, labels, place, text


TAG_LABELS = WordLabels("tag", TAGS, label_name, TaggedExample)


def tagged_maker(
    table: Table, columns: Columns, labeled: bool, kind: WordLabels = TAG_LABELS
) -> tuple[Columns, Callable[[Row], Example]]:
    """The columns that are used, and what makes a sentence of a row."""
    chosen = choose_tag_columns(table, columns, kind.names)
    if not labeled:
        chosen = replace(chosen, label=None)
    elif chosen.label is None:
        raise no_column(table, f"of {kind.label}s", "label")

    def make(row: Row) -> Example:
        words = tuple(_word(row, word) for word in _list(row, chosen.text or "", kind))
        if chosen.label is None:
            return kind.make(words, None, row.place, None)
        found = tuple(kind.read(row, chosen.label, each, table) for each in _list(row, chosen.label, kind))
        if len(words) != len(found):
            counts = f"{len(words)} words and {len(found)} {kind.label}s; give one {kind.label} to each word"
            raise RequestError(f"{row.place}: {counts}")
        return kind.make(words, found, row.place, None)

    return chosen, make


def _list(row: Row, name: str, kind: WordLabels) -> list[Any]:
    values = cell(row, name)
    if not isinstance(values, list) or not values:
        what = "empty" if values in ([], None, "") else f"{type(values).__name__}, not a list"
        wanted = f"a list of words and a list of {kind.label}s are needed"
        raise RequestError(f"{row.place}: '{name}' is {what}; {wanted}")
    return values


def _word(row: Row, word: Any) -> str:
    if not isinstance(word, str) or not word.strip():
        raise RequestError(f"{row.place}: {word!r} is no word; repair or remove the row")
    return checked(word, "word", row.place)
