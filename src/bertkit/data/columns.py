"""Which column holds the text, the pair and the label: named by the user, or guessed from names and content."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertkit.data.examples import Example
from bertkit.data.glue import LAYOUTS, LabelKind
from bertkit.data.tables import COLUMN_ROLES, Columns, NoLabels, Row, Table
from bertkit.errors import RequestError
from bertkit.settings import read_pairs

# Column names to look for, in this order and ignoring case. GLUE's names are among them.
PAIR_NAMES = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("#1 string", "#2 string"),
    ("sentence_a", "sentence_b"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("question", "sentence"),
    ("question", "passage"),
    ("query", "passage"),
    ("query", "document"),
    ("query", "positive"),
    ("anchor", "positive"),
)
TEXT_NAMES: tuple[str, ...] = (
    "text",
    "sentence",
    "review",
    "comment_text",
    "comment",
    "content",
    "tweet",
    "utterance",
    "document",
    "body",
)
TEXT_NAMES += ("question", "query", "headline", "message", "title")
SCORE_NAMES = ("score", "similarity", "relatedness_score", "similarity_score", "rating", "stars")
LABEL_NAMES: tuple[str, ...] = (
    "gold_label",
    "label",
    "labels",
    "label_text",
    "class",
    "category",
    "sentiment",
    "intent",
    "topic",
    "target",
)
LABEL_NAMES += ("quality", "is_duplicate", "emotion", "emotions", "tags", "categories", "genres", "entailment_label")
WORD_NAMES = ("tokens", "words")
TAG_NAMES = ("ner_tags", "tags", "labels", "label", "pos_tags", "upos")

MAX_LISTED_COLUMNS = 20  # in an error message
MAX_LABEL = 200  # characters of a cell that may be a label

MakeExample = Callable[[Row], Example]
ExampleReader = tuple[Columns, MakeExample]  # the columns to read, and a function that makes an example of a row


@dataclass(frozen=True)
class LabelColumn:
    """What kind of label a column holds, and the column names to look for, in this order."""

    kind: LabelKind
    names: tuple[str, ...]


ONE_LABEL = LabelColumn("name", LABEL_NAMES + SCORE_NAMES)
SEVERAL_LABELS = LabelColumn("names", LABEL_NAMES)
ONE_NUMBER = LabelColumn("number", SCORE_NAMES + LABEL_NAMES)


def named_columns(pairs: Sequence[str]) -> Columns:
    """`["text=review", "label=stars"]` as Columns; unknown names and wrong values are refused."""
    return read_pairs(pairs, Columns(), what="column setting")[0]


def with_trained(table: Table, columns: Columns, trained: Mapping[str, str]) -> Columns:
    """Columns that the user did not name are those of training, by their role, where the table has them."""
    has = set(table.names) if table.header else set()
    known = {role: name for role, name in trained.items() if set(name.split(",")) <= has}
    text, pair, label = (getattr(columns, role) or known.get(role) for role in COLUMN_ROLES)
    return replace(columns, text=text, pair=pair, label=label)


def find_column(table: Table, name: str, role: str) -> str:
    """A named column as the table spells it; a number counts columns from 1."""
    if name in table.names:
        return name
    if ignoring_case := [column for column in table.names if column.casefold() == name.casefold()]:
        return ignoring_case[0]
    if name.isdecimal() and 1 <= int(name) <= len(table.names):
        return table.names[int(name) - 1]
    raise RequestError(f"{table.path} has no column '{name}' ({role}={name}); it has: {_list(table)}")


def find_or_guess(table: Table, name: str | None, role: str, candidates: Sequence[str]) -> str | None:
    """The column that the user named, else the first of `candidates` that the table has."""
    return find_column(table, name, role) if name else first_present(table, candidates)


def missing_column(table: Table, what: str, role: str) -> RequestError:
    """The error for a column that is needed and neither named nor recognized."""
    error = NoLabels if role == "label" else RequestError
    return error(f"{table.path}: no column {what}; name it with {role}=... It has: {_list(table)}")


def find_label_column(table: Table, name: str) -> str:
    """One label column, or several columns of 0 and 1 as one name with commas."""
    folded = {column.casefold() for column in table.names}
    if "," in name and name.casefold() not in folded:
        return ",".join(find_column(table, part.strip(), "label") for part in name.split(","))
    return find_column(table, name, "label")


def first_present(table: Table, names: Sequence[str]) -> str | None:
    """The first of `names` that is a column of the table, as the table spells it."""
    folded = {column.casefold().strip(): column for column in reversed(table.names)}
    return next((folded[name] for name in names if name in folded), None)


def choose_text_columns(table: Table, columns: Columns, label_column: LabelColumn = ONE_LABEL) -> Columns:
    """Text, pair and label columns: named ones are looked up, others are guessed. A missing label stays None."""
    named = replace(
        columns,
        text=find_column(table, columns.text, "text") if columns.text else None,
        pair=find_column(table, columns.pair, "pair") if columns.pair else None,
        label=find_label_column(table, columns.label) if columns.label else None,
    )
    guess = _guess_by_name if table.header else _guess_by_content
    guessed = guess(table, named, label_column)
    if guessed.text is None:
        raise missing_column(table, "looks like the text", "text")
    return guessed


def choose_tag_columns(table: Table, columns: Columns, names: Sequence[str] = TAG_NAMES) -> Columns:
    """The columns of words and of their labels in a table of sentences; `names` are looked for as labels."""
    words = find_or_guess(table, columns.text, "text", WORD_NAMES)
    if words is None:
        raise missing_column(table, "of words", "text")
    return replace(columns, text=words, label=find_or_guess(table, columns.label, "label", names))


def _guess_by_name(table: Table, named: Columns, label_column: LabelColumn) -> Columns:
    text, pair, label = named.text, named.pair, named.label
    used = {_fold(named.label), _fold(named.pair)}
    if text is None and pair is None:
        pairs = ((first_present(table, (a,)), first_present(table, (b,))) for a, b in PAIR_NAMES)
        text, pair = next(((a, b) for a, b in pairs if a and b and not {_fold(a), _fold(b)} & used), (None, None))
    text = text or first_present(table, [name for name in TEXT_NAMES if name not in used])
    label = label or first_present(table, [n for n in label_column.names if n not in {_fold(text), _fold(pair)}])
    if label is None and label_column.kind == "names":
        binary = [name for name in table.names if name not in (text, pair) and _is_binary_column(table, name)]
        label = ",".join(binary) if len(binary) > 1 else None
    return _guess_the_rest(table, replace(named, text=text, pair=pair, label=label), label_column)


def _guess_the_rest(table: Table, chosen: Columns, label_column: LabelColumn) -> Columns:
    """Text and label without a usual name, where no other columns are left: the longer one is the text."""
    free = [name for name in table.names if name not in (chosen.text, chosen.pair, *(chosen.label or "").split(","))]
    rows = [row for row in table.sample if not row.fault]
    if not rows or len(free) > (chosen.text is None) + (chosen.label is None):
        return chosen
    text, label = chosen.text, chosen.label
    texts = [name for name in free if not all(map(is_number, _cells(rows, name)))]
    text = text or max(texts, key=lambda name: _mean_length(rows, name), default=None)
    only = next((name for name in free if name != text), None)
    if label is None and only is not None and _looks_like_labels(label_column, _cells(rows, only)):
        label = only
    return replace(chosen, text=text, label=label) if label or len(table.names) == 1 else chosen


def _looks_like_labels(label_column: LabelColumn, cells: Sequence[str]) -> bool:
    """Whether a column may hold labels: names that repeat, or numbers that are not the numbers of the rows."""
    if label_column.kind == "number":
        is_row_number = len(set(cells)) == len(cells) and all(cell.strip().isdecimal() for cell in cells)
        return all(map(is_number, cells)) and not is_row_number
    return len(set(cells)) <= len(cells) / 2 and all(0 < len(cell.strip()) <= MAX_LABEL for cell in cells)


def _fold(name: str | None) -> str:
    return (name or "").casefold()


def _is_binary_column(table: Table, name: str) -> bool:
    return all(is_binary(row.values.get(name)) for row in table.sample if not row.fault)


def is_binary(value: Any) -> bool:
    """Whether a cell is 0 or 1, also written as true, false, 0.0 or 1.0."""
    return str(value).strip().casefold() in ("0", "1", "true", "false", "0.0", "1.0")


def _guess_by_content(table: Table, named: Columns, label_column: LabelColumn) -> Columns:
    """Without a header: a known layout, or the longest column as text and the one with fewest values as label."""
    rows = [row for row in table.sample if not row.fault]
    any_named = named.text or named.pair or named.label
    for layout in LAYOUTS if not any_named else ():
        if layout.kind == label_column.kind and layout.fits(rows):
            return replace(named, text=layout.text, pair=layout.pair, label=layout.label)
    free = [name for name in table.names if name not in (named.pair, named.label)]
    text = named.text or max(free, key=lambda name: _mean_length(rows, name), default=None)
    free = [name for name in free if name != text]
    label = named.label or _likely_label(label_column, rows, free)
    free = [name for name in free if name != label]
    pair = named.pair or (None if named.text else _likely_pair(rows, text, free))
    if pair and not any_named and table.names.index(pair) < table.names.index(text or pair):
        text, pair = pair, text  # the longer one need not be the first
    return replace(named, text=text, pair=pair, label=label)


def _cells(rows: Sequence[Row], name: str) -> list[str]:
    return [str(row.values.get(name, "")) for row in rows]


def _mean_length(rows: Sequence[Row], name: str) -> float:
    return sum(map(len, _cells(rows, name))) / max(len(rows), 1)


def _likely_label(label_column: LabelColumn, rows: Sequence[Row], free: Sequence[str]) -> str | None:
    """The first column of numbers if labels are numbers; else the column of short cells with fewest values."""
    if label_column.kind == "number":
        return next((name for name in free if all(map(is_number, _cells(rows, name)))), None)
    usable = [name for name in free if all(0 < len(cell) <= MAX_LABEL for cell in _cells(rows, name))]
    return min(usable, key=lambda name: len(set(_cells(rows, name))), default=None)


def _likely_pair(rows: Sequence[Row], text: str | None, free: Sequence[str]) -> str | None:
    """A second column of sentences: most cells have several words and are over a quarter as long as the text."""
    for name in free:
        cells = _cells(rows, name)
        several_words = sum(" " in cell.strip() for cell in cells) > 0.8 * len(cells)
        if text and several_words and _mean_length(rows, name) > 0.25 * _mean_length(rows, text):
            return name
    return None


def is_number(cell: str) -> bool:
    """Whether a cell holds a number in decimal or scientific notation: 3, 3.5, -1e-3."""
    return re.fullmatch(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", cell) is not None


def _list(table: Table) -> str:
    more = len(table.names) - MAX_LISTED_COLUMNS
    return ", ".join([*table.names[:MAX_LISTED_COLUMNS], *([f"and {more} more"] if more > 0 else [])]) or "none"
