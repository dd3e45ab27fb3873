"""Rows to multiple choice: CommonsenseQA and ARC, SWAG and HellaSwag, story endings, COPA, and rows like them."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from bertkit.data.columns import first_known, named_or_known, no_column
from bertkit.data.examples import ChoiceExample, Example
from bertkit.data.tables import Columns, Row, Table, cell, checked, text_cell
from bertkit.errors import RequestError

QUESTIONS = ("startphrase", "ctx", "question", "premise", "context", "prompt", "stem", "text", "sentence")
LISTS = ("choices", "endings", "options", "answers")
LABELS = ("answerkey", "label", "answer", "gold", "answerrightending")
FROM_ONE = ("answerrightending",)  # story endings count from 1, the others from 0
NUMBERED = re.compile(r"(ending|choice|option|answer|randomfifthsentencequiz)[_ ]?([0-9]+|[a-z])", re.IGNORECASE)
# COPA says in a column of its own what is asked about the premise.
ASKED = {"cause": "What was the cause?", "effect": "What happened as a result?"}
STORY = ("InputSentence1", "InputSentence2", "InputSentence3", "InputSentence4")


def choice_maker(table: Table, columns: Columns, labeled: bool) -> tuple[Columns, Callable[[Row], Example]]:
    """The columns that are used, and what makes a question with choices of a row."""
    # The dev file's columns are named as they were found in the training file: a premise is asked about there, too.
    asks = _asks(table) if columns.text is None or columns.text.casefold() == "premise" else None
    question = named_or_known(table, columns.text, "text", ("premise",) if asks else QUESTIONS)
    label = named_or_known(table, columns.label, "label", LABELS)
    if question is None and not set(STORY) <= set(table.names):
        raise no_column(table, "looks like the question", "text")
    if labeled and label is None:
        raise no_column(table, "says which choice is correct", "label")
    used = replace(columns, text=question, label=label if labeled else None)
    numbered = tuple(sorted(filter(NUMBERED.fullmatch, table.names), key=_number))
    by_text = _names_choices(table, used, numbered)

    def make(row: Row) -> Example:
        asked, names, choices = _read(row, used, numbered)
        asked = f"{asked} {_asked(row, asks)}" if asks else asked
        correct = _correct(row, used.label, names, choices, by_text) if used.label else None
        return ChoiceExample(asked, choices, correct, row.place)

    return used, make


def _asks(table: Table) -> str | None:
    """The column that says cause or effect, mostly, where there is a premise beside it."""
    column = first_known(table, ("question",)) if first_known(table, ("premise",)) else None
    cells = [str(row.values.get(column)).strip().casefold() for row in table.sample if not row.fault] if column else []
    return column if 2 * sum(text in ASKED for text in cells) > len(cells) else None


def _asked(row: Row, column: str) -> str:
    text = text_cell(row, column).strip().casefold()
    if text not in ASKED:
        raise RequestError(f"{row.place}: '{column}' is {text[:40]!r}, not cause or effect; repair or remove the row")
    return ASKED[text]


def _names_choices(table: Table, columns: Columns, numbered: Sequence[str]) -> bool:
    """Whether the answers are choices, not their numbers: "4" may be either, so all rows are looked at."""
    if columns.label is None or columns.label.casefold() != "answer":
        return False
    is_choice = []
    for row in table.sample:
        with suppress(RequestError):
            value, (_, _, choices) = row.values.get(columns.label), _read(row, columns, numbered)
            is_choice.append(isinstance(value, str) and value.strip() in choices)
    return bool(is_choice) and all(is_choice)


def _number(name: str) -> tuple[str, int, str]:
    """In the order of their numbers: choice2 before choice10."""
    match = NUMBERED.fullmatch(name)
    assert match is not None  # only such names are sorted
    stem, number = match.groups()
    return stem.casefold(), int(number) if number.isdigit() else 0, name


def has_choices(table: Table, row: Row) -> bool:
    """Whether a row looks like a question with choices."""
    nested = any(isinstance(value, dict) and "choices" in value for value in row.values.values())
    listed = any(isinstance(row.values.get(name), list | dict) for name in LISTS)
    return nested or listed or sum(NUMBERED.fullmatch(name) is not None for name in table.names) > 1


def _read(row: Row, columns: Columns, numbered: Sequence[str]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The question, the names of the choices (A, B, ... or none), the choices."""
    holder = row.values.get(columns.text or "")
    nested = holder if isinstance(holder, dict) else None  # CommonsenseQA and ARC: the choices are inside
    if nested is not None:
        asked = nested.get("stem")
        if not isinstance(asked, str):
            raise RequestError(f"{row.place}: the question has no 'stem'; repair or remove the row")
        checked(asked, "stem", row.place)
    else:
        asked = text_cell(row, columns.text) if columns.text else " ".join(text_cell(row, name) for name in STORY)
    source = row.values if nested is None or "choices" not in nested else nested
    listed = next((source[name] for name in LISTS if name in source), None)
    if listed is None:
        listed = [cell(row, name) for name in numbered]
    names, choices = _choices(row, listed)
    return asked, names, choices


def _choices(row: Row, listed: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if isinstance(listed, dict) and isinstance(listed.get("text"), list):  # as `datasets` turns lists of objects
        texts, labels = listed["text"], listed.get("label")
        if labels is not None and (not isinstance(labels, list) or len(labels) != len(texts)):
            raise RequestError(f"{row.place}: the choices have other labels than texts; repair or remove the row")
        listed = [{"text": t, "label": n} for t, n in zip(texts, labels, strict=True)] if labels else texts
    if not isinstance(listed, list) or len(listed) < 2:
        raise RequestError(f"{row.place}: fewer than two choices; repair or remove the row")
    texts = [choice.get("text") if isinstance(choice, dict) else choice for choice in listed]
    names = tuple(str(choice.get("label", "")) for choice in listed if isinstance(choice, dict))
    return names, tuple(_choice(row, text) for text in texts)


def _choice(row: Row, text: Any) -> str:
    if not isinstance(text, str) or not text.strip():
        raise RequestError(f"{row.place}: a choice is {text!r}, not a text; repair or remove the row")
    return checked(text, "choice", row.place)


def _correct(row: Row, column: str, names: Sequence[str], choices: Sequence[str], by_text: bool) -> int:
    """The index of the correct choice, which rows give as a name (A), a number from 0, or the choice itself."""
    value = cell(row, column)
    text = "" if value is None else str(value).strip()
    first = 1 if column.casefold() in FROM_ONE else 0
    if names and text in names:
        return names.index(text)
    if by_text and text in choices:
        return choices.index(text)
    if text.isdecimal() and first <= int(text) < len(choices) + first:
        return int(text) - first
    if text in choices:
        return choices.index(text)
    if re.fullmatch("[A-Z]", text) and ord(text) - ord("A") < len(choices):
        return ord(text) - ord("A")
    known = ", ".join(names) if names else f"{first} to {len(choices) - 1 + first}"
    raise RequestError(f"{row.place}: the answer {text!r} is not among the choices ({known}); repair or remove the row")
