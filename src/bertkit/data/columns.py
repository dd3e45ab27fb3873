"""Which column holds what: named by the user, or guessed from the names and the content."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertkit.data.glue import LAYOUTS, LabelKind
from bertkit.data.tables import Columns, NoLabels, Row, Table
from bertkit.errors import RequestError
from bertkit.settings import read_pairs

# Guessed in this order, without regard to case. GLUE's own names are among them.
PAIRS = (
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
)
TEXTS: tuple[str, ...] = (
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
TEXTS += ("question", "query", "headline", "message", "title")
NUMBERS = ("score", "similarity", "relatedness_score", "similarity_score", "rating", "stars")
NAMES: tuple[str, ...] = (
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
NAMES += ("quality", "is_duplicate", "emotion", "emotions", "tags", "categories", "genres", "entailment_label")
WORDS = ("tokens", "words")
TAGS = ("ner_tags", "tags", "labels", "label", "pos_tags", "upos")


MOST_LISTED = 20  # names of columns in a message


@dataclass(frozen=True)
class LabelColumn:
    """What kind of label a column holds, and the names of columns that are guessed, in this order."""

    kind: LabelKind
    names: tuple[str, ...]


ONE_NAME = LabelColumn("name", NAMES + NUMBERS)
SEVERAL_NAMES = LabelColumn("names", NAMES)
ONE_NUMBER = LabelColumn("number", NUMBERS + NAMES)


def named_columns(pairs: Sequence[str]) -> Columns:
    """`["text=review", "label=stars"]` as Columns; unknown names and wrong values stop here."""
    return read_pairs(pairs, Columns(), what="column setting")[0]


def find(table: Table, name: str, role: str) -> str:
    """The table's own spelling of a named column; a number counts columns from 1."""
    for known in table.names:
        if known == name:
            return known
    if by_case := [known for known in table.names if known.casefold() == name.casefold()]:
        return by_case[0]
    if name.isdecimal() and 1 <= int(name) <= len(table.names):
        return table.names[int(name) - 1]
    raise RequestError(f"{table.path} has no column '{name}' ({role}={name}); it has: {_list(table)}")


def named_or_known(table: Table, name: str | None, role: str, known: Sequence[str]) -> str | None:
    """The column that was named, else the first of `known` that the table has."""
    return find(table, name, role) if name else first_known(table, known)


def no_column(table: Table, what: str, role: str) -> RequestError:
    """The error for a column that is needed and neither named nor recognized."""
    error = NoLabels if role == "label" else RequestError
    return error(f"{table.path}: no column {what}; name it with {role}=... It has: {_list(table)}")


def find_labels(table: Table, name: str) -> str:
    """One label column, or several of 0 and 1 as one name with commas."""
    folded = {known.casefold() for known in table.names}
    if "," in name and name.casefold() not in folded:
        return ",".join(find(table, part.strip(), "label") for part in name.split(","))
    return find(table, name, "label")


def first_known(table: Table, names: Sequence[str]) -> str | None:
    """The first of `names` that the table has, in the table's spelling."""
    folded = {known.casefold().strip(): known for known in reversed(table.names)}
    return next((folded[name] for name in names if name in folded), None)


def choose_text_columns(table: Table, columns: Columns, wanted: LabelColumn = ONE_NAME) -> Columns:
    """Text, pair and label: what was named is looked up, the rest is guessed. A label that is not there stays None."""
    chosen = replace(
        columns,
        text=find(table, columns.text, "text") if columns.text else None,
        pair=find(table, columns.pair, "pair") if columns.pair else None,
        label=find_labels(table, columns.label) if columns.label else None,
    )
    guess = _by_name(table, chosen, wanted) if table.header else _by_content(table, chosen, wanted)
    if guess.text is None:
        raise no_column(table, "looks like the text", "text")
    return guess


def choose_tag_columns(table: Table, columns: Columns, names: Sequence[str] = TAGS) -> Columns:
    """The columns of words and of their labels in a table of sentences; `names` are guessed for labels."""
    words = named_or_known(table, columns.text, "text", WORDS)
    if words is None:
        raise no_column(table, "of words", "text")
    return replace(columns, text=words, label=named_or_known(table, columns.label, "label", names))


def _by_name(table: Table, chosen: Columns, wanted: LabelColumn) -> Columns:
    text, pair, label = chosen.text, chosen.pair, chosen.label
    taken = {_fold(chosen.label), _fold(chosen.pair)}
    if text is None and pair is None:
        both = ((first_known(table, (a,)), first_known(table, (b,))) for a, b in PAIRS)
        text, pair = next(((a, b) for a, b in both if a and b and not {_fold(a), _fold(b)} & taken), (None, None))
    text = text or first_known(table, [name for name in TEXTS if name not in taken])
    label = label or first_known(table, [n for n in wanted.names if n not in {_fold(text), _fold(pair)}])
    if label is None and wanted.kind == "names":
        switches = [name for name in table.names if name not in (text, pair) and _all_switches(table, name)]
        label = ",".join(switches) if len(switches) > 1 else None
    return replace(chosen, text=text, pair=pair, label=label)


def _fold(name: str | None) -> str:
    return (name or "").casefold()


def _all_switches(table: Table, name: str) -> bool:
    return all(is_switch(row.values.get(name)) for row in table.sample if not row.fault)


def is_switch(value: Any) -> bool:
    """Whether a cell is 0 or 1, in any of the ways files write that."""
    return str(value).strip().casefold() in ("0", "1", "true", "false", "0.0", "1.0")


def _by_content(table: Table, chosen: Columns, wanted: LabelColumn) -> Columns:
    """Without a header: a layout that is known, or the longest column as text and the least various as label."""
    rows = [row for row in table.sample if not row.fault]
    named = chosen.text or chosen.pair or chosen.label
    for layout in LAYOUTS if not named else ():
        if layout.kind == wanted.kind and layout.fits(rows):
            return replace(chosen, text=layout.text, pair=layout.pair, label=layout.label)
    free = [name for name in table.names if name not in (chosen.pair, chosen.label)]
    text = chosen.text or max(free, key=lambda name: _mean_length(rows, name), default=None)
    free = [name for name in free if name != text]
    label = chosen.label or _likely_label(wanted, rows, free)
    free = [name for name in free if name != label]
    pair = chosen.pair or (None if chosen.text else _likely_pair(rows, text, free))
    if pair and not named and table.names.index(pair) < table.names.index(text or pair):
        text, pair = pair, text  # the longer one need not be the first
    return replace(chosen, text=text, pair=pair, label=label)


def _cells(rows: Sequence[Row], name: str) -> list[str]:
    return [str(row.values.get(name, "")) for row in rows]


def _mean_length(rows: Sequence[Row], name: str) -> float:
    return sum(map(len, _cells(rows, name))) / max(len(rows), 1)


def _likely_label(wanted: LabelColumn, rows: Sequence[Row], free: Sequence[str]) -> str | None:
    """A column of numbers where those are wanted; else the least various one whose cells are short and never empty."""
    if wanted.kind == "number":
        return next((name for name in free if all(map(is_number, _cells(rows, name)))), None)
    usable = [name for name in free if all(0 < len(cell) <= 200 for cell in _cells(rows, name))]
    return min(usable, key=lambda name: len(set(_cells(rows, name))), default=None)


def _likely_pair(rows: Sequence[Row], text: str | None, free: Sequence[str]) -> str | None:
    """A second column of sentences: many words, nearly as long as the text, hardly ever the same."""
    for name in free:
        cells = _cells(rows, name)
        wordy = sum(" " in cell.strip() for cell in cells) > 0.8 * len(cells)
        if text and wordy and _mean_length(rows, name) > 0.25 * _mean_length(rows, text):
            return name
    return None


def is_number(cell: str) -> bool:
    """Whether a cell holds a number as people write it: 3, 3.5, -1e-3."""
    return re.fullmatch(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", cell) is not None


def _list(table: Table) -> str:
    more = len(table.names) - MOST_LISTED
    return ", ".join([*table.names[:MOST_LISTED], *([f"and {more} more"] if more > 0 else [])]) or "none"
