"""Table rows to queries with texts to rank.

A row holds a query and one text with its relevance, lists of both, or positives and negatives.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from bertkit.data.columns import ExampleReader, find_or_guess, first_present, is_number, missing_column
from bertkit.data.examples import Example
from bertkit.data.tables import Columns, Location, Row, Table, cell, checked, text_cell
from bertkit.data.texts import number_cell
from bertkit.errors import RequestError

QUERY_NAMES = ("query", "question", "anchor")
TEXT_NAMES = ("texts", "documents", "passages", "text", "document", "passage")
RELEVANCE_NAMES = ("relevance", "scores", "score", "labels", "label")
POSITIVE_NAMES, NEGATIVE_NAMES = ("positives", "positive"), ("negatives", "negative")


@dataclass(frozen=True, slots=True)
class RankExample(Example):
    """A query, the texts to rank, and the relevance of each (None: unlabeled)."""

    query: str
    documents: tuple[str, ...]
    relevance: tuple[float, ...] | None
    location: Location
    rows: tuple[Location, ...] = ()  # of a table with several rows for a query: where each of them is

    @property
    def texts(self) -> tuple[str, ...]:
        """The query, then the texts."""
        return (self.query, *self.documents)

    @property
    def sequences(self) -> list[tuple[str, str | None]]:
        """A pair for each text."""
        return [(self.query, document) for document in self.documents]

    @property
    def outcome(self) -> object:
        """The relevance of each text."""
        return self.relevance

    @property
    def numbers(self) -> tuple[float, ...]:
        """The relevance of each text."""
        return self.relevance or ()

    @property
    def compares(self) -> bool:
        """Whether some of the texts are more relevant than others."""
        return len(set(self.numbers)) > 1

    def part(self, chosen: Iterable[int]) -> "RankExample":
        """The query with some of its texts."""
        indices = tuple(chosen)
        relevance = None if self.relevance is None else tuple(self.relevance[n] for n in indices)
        return replace(self, documents=tuple(self.documents[n] for n in indices), relevance=relevance)


def has_ranked_texts(table: Table, rows: Iterable[Row]) -> bool:
    """Whether a table has queries with texts and their relevance in numbers, or with positives and negatives."""
    if first_present(table, QUERY_NAMES[:1]) is None:
        return False
    if first_present(table, POSITIVE_NAMES):
        return True
    texts, relevance = (first_present(table, names) for names in (TEXT_NAMES, RELEVANCE_NAMES))
    cells = [row.values.get(relevance) for row in rows] if texts and relevance else []
    numbers = [number for value in cells for number in (value if isinstance(value, list) else [value])]
    return bool(numbers) and all(is_number(str(number)) for number in numbers)


def rank_reader(table: Table, columns: Columns, labeled: bool) -> ExampleReader:
    """The columns to read, and a function that makes a query with texts of a row."""
    query = find_or_guess(table, columns.text, "text", QUERY_NAMES)
    texts = find_or_guess(table, columns.pair, "pair", (*TEXT_NAMES, *POSITIVE_NAMES))
    if query is None:
        raise missing_column(table, "looks like the query", "text")
    if texts is None:
        raise missing_column(table, "looks like the texts to rank", "pair")
    negatives = first_present(table, NEGATIVE_NAMES) if texts.casefold() in POSITIVE_NAMES else None
    if negatives or texts.casefold() in POSITIVE_NAMES:
        used = replace(columns, text=query, pair=texts, label=None)
        return used, lambda row: _of_sides(row, used, negatives, labeled)
    relevance = find_or_guess(table, columns.label, "label", RELEVANCE_NAMES) if labeled else None
    if labeled and relevance is None:
        raise missing_column(table, "looks like the relevance of the texts", "label")
    used = replace(columns, text=query, pair=texts, label=relevance)
    return used, lambda row: _of_texts(row, used)


def grouped_by_query(examples: Iterable[Example]) -> list[Example]:
    """One example for each query, with the texts of all its rows in order."""
    groups: dict[str, list[RankExample]] = {}
    for example in examples:
        assert isinstance(example, RankExample)
        groups.setdefault(example.query, []).append(example)
    return [_joined(group) for group in groups.values()]


def _joined(group: list[RankExample]) -> RankExample:
    first = group[0]
    if len(group) == 1:
        return first
    relevance = None if first.relevance is None else tuple(n for example in group for n in example.numbers)
    documents = tuple(document for example in group for document in example.documents)
    return RankExample(first.query, documents, relevance, first.location, tuple(e.location for e in group))


def _of_texts(row: Row, used: Columns) -> RankExample:
    """Of a text and its relevance, or a list of each."""
    texts = _texts(row, used.pair or "")
    numbers = None if used.label is None else _numbers(row, used.label)
    if numbers is not None and len(numbers) != len(texts):
        counts = f"{len(texts)} texts came with {len(numbers)} numbers in '{used.label}'"
        raise RequestError(f"{row.location}: {counts}; give one for each text")
    return _example(row, used, texts, numbers)


def _of_sides(row: Row, used: Columns, negatives: str | None, labeled: bool) -> RankExample:
    """Of positives, whose relevance is 1, and negatives, whose relevance is 0."""
    relevant = _texts(row, used.pair or "")
    others = _texts(row, negatives) if negatives else ()
    numbers = (*[1.0] * len(relevant), *[0.0] * len(others))
    return _example(row, used, (*relevant, *others), numbers if labeled else None)


def _example(row: Row, used: Columns, texts: tuple[str, ...], numbers: tuple[float, ...] | None) -> RankExample:
    query = text_cell(row, used.text or "")
    if not query.strip():
        raise RequestError(f"{row.location}: the query in '{used.text}' is empty; fill it in or remove the row")
    if not texts:
        raise RequestError(f"{row.location}: the query has no texts in '{used.pair}'; add some or remove the row")
    return RankExample(query, texts, numbers, row.location)


def _texts(row: Row, column: str) -> tuple[str, ...]:
    value = cell(row, column)
    texts = value if isinstance(value, list) else [text_cell(row, column)]
    return tuple(_text(row, column, number, text) for number, text in enumerate(texts, start=1))


def _text(row: Row, column: str, number: int, text: Any) -> str:
    text = text.get("text") if isinstance(text, dict) else text
    if not isinstance(text, str) or not text.strip():
        shown = "empty" if isinstance(text, str) or text is None else f"{type(text).__name__}, not a text"
        raise RequestError(f"{row.location}: text {number} in '{column}' is {shown}; fill it in or remove it")
    return checked(text, column, row.location)


def _numbers(row: Row, column: str) -> tuple[float, ...]:
    value = cell(row, column)
    return tuple(number_cell(row, column, number) for number in (value if isinstance(value, list) else [value]))
