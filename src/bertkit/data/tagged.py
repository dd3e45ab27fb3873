"""Table rows to sentences: a list of words and a list of their labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertkit.data.columns import TAG_NAMES, ExampleReader, choose_tag_columns, missing_column
from bertkit.data.examples import Example, TaggedExample
from bertkit.data.tables import Columns, Location, Row, Table, cell, checked
from bertkit.data.texts import label_name
from bertkit.errors import RequestError


@dataclass(frozen=True)
class WordLabels:
    """One kind of word labels, such as tags: how they are read and which examples they make."""

    label: str  # what one label is called in messages
    names: Sequence[str]  # names of label columns to look for
    read: Callable[[Row, str, Any, Table], Any]  # (row, column, cell, table) to a label
    make: Callable[
        [tuple[str, ...], tuple[Any, ...] | None, Location, str | None], Example
    ]  # words, labels, location, text


TAG_LABELS = WordLabels("tag", TAG_NAMES, label_name, TaggedExample)


def word_reader(table: Table, columns: Columns, labeled: bool, kind: WordLabels = TAG_LABELS) -> ExampleReader:
    """The columns to read, and a function that makes a sentence of a row."""
    chosen = choose_tag_columns(table, columns, kind.names)
    if not labeled:
        chosen = replace(chosen, label=None)
    elif chosen.label is None:
        raise missing_column(table, f"of {kind.label}s", "label")

    def make(row: Row) -> Example:
        words = tuple(_word(row, word) for word in _list(row, chosen.text or "", kind))
        if chosen.label is None:
            return kind.make(words, None, row.location, None)
        labels = tuple(kind.read(row, chosen.label, label, table) for label in _list(row, chosen.label, kind))
        if len(words) != len(labels):
            counts = f"{len(words)} words and {len(labels)} {kind.label}s; give one {kind.label} to each word"
            raise RequestError(f"{row.location}: {counts}")
        return kind.make(words, labels, row.location, None)

    return chosen, make


def _list(row: Row, name: str, kind: WordLabels) -> list[Any]:
    values = cell(row, name)
    if not isinstance(values, list) or not values:
        what = "empty" if values in ([], None, "") else f"{type(values).__name__}, not a list"
        needed = f"a list of words and a list of {kind.label}s are needed"
        raise RequestError(f"{row.location}: '{name}' is {what}; {needed}")
    return values


def _word(row: Row, word: Any) -> str:
    if not isinstance(word, str) or not word.strip():
        raise RequestError(f"{row.location}: {word!r} is no word; repair or remove the row")
    return checked(word, "word", row.location)
