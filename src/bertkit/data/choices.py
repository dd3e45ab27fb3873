"""Table rows to multiple-choice examples: the layouts of CommonsenseQA, ARC, SWAG, HellaSwag, story endings, COPA."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from bertkit.data.columns import ExampleReader, find_or_guess, first_present, missing_column
from bertkit.data.examples import ChoiceExample, Example
from bertkit.data.tables import Columns, Row, Table, cell, checked, text_cell
from bertkit.errors import RequestError

QUESTION_NAMES = ("startphrase", "ctx", "question", "premise", "context", "prompt", "stem", "text", "sentence")
CHOICE_LIST_NAMES = ("choices", "endings", "options", "answers")
CHOICE_LABEL_NAMES = ("answerkey", "label", "answer", "gold", "answerrightending")
COUNTED_FROM_ONE = ("answerrightending",)  # label columns whose numbers count from 1, not from 0
NUMBERED_CHOICE = re.compile(r"(ending|choice|option|answer|randomfifthsentencequiz)[_ ]?([0-9]+|[a-z])", re.IGNORECASE)
# COPA has a column that says what is asked about the premise.
COPA_QUESTIONS = {"cause": "What was the cause?", "effect": "What happened as a result?"}
STORY_COLUMNS = ("InputSentence1", "InputSentence2", "InputSentence3", "InputSentence4")


def choice_reader(table: Table, columns: Columns, labeled: bool) -> ExampleReader:
    """The columns to read, and a function that makes a question with choices of a row."""
    # text=premise: the columns of a COPA dev file are named as they were recognized in the training file.
    copa_column = _copa_column(table) if columns.text is None or columns.text.casefold() == "premise" else None
    question = find_or_guess(table, columns.text, "text", ("premise",) if copa_column else QUESTION_NAMES)
    label = find_or_guess(table, columns.label, "label", CHOICE_LABEL_NAMES)
    if question is None and not set(STORY_COLUMNS) <= set(table.names):
        raise missing_column(table, "looks like the question", "text")
    if labeled and label is None:
        raise missing_column(table, "says which choice is correct", "label")
    used = replace(columns, text=question, label=label if labeled else None)
    numbered = tuple(sorted(filter(NUMBERED_CHOICE.fullmatch, table.names), key=_column_order))
    label_is_text = _label_is_text(table, used, numbered)

    def make(row: Row) -> Example:
        text, names, choices = _read(row, used, numbered)
        text = f"{text} {_copa_question(row, copa_column)}" if copa_column else text
        correct = _correct(row, used.label, names, choices, label_is_text) if used.label else None
        return ChoiceExample(text, choices, correct, row.location)

    return used, make


def _copa_column(table: Table) -> str | None:
    """The column `question` of a table with premises, if most of its cells are cause or effect."""
    column = first_present(table, ("question",)) if first_present(table, ("premise",)) else None
    cells = [str(row.values.get(column)).strip().casefold() for row in table.sample if not row.fault] if column else []
    return column if 2 * sum(text in COPA_QUESTIONS for text in cells) > len(cells) else None


def _copa_question(row: Row, column: str) -> str:
    text = text_cell(row, column).strip().casefold()
    if text not in COPA_QUESTIONS:
        raise RequestError(
            f"{row.location}: '{column}' is {text[:40]!r}, not cause or effect; repair or remove the row"
        )
    return COPA_QUESTIONS[text]


def _label_is_text(table: Table, columns: Columns, numbered: Sequence[str]) -> bool:
    """Whether labels are the texts of choices, not their numbers: "4" may be either, so the whole sample is read."""
    if columns.label is None or columns.label.casefold() != "answer":
        return False
    is_choice = []
    for row in table.sample:
        with suppress(RequestError):
            value, (_, _, choices) = row.values.get(columns.label), _read(row, columns, numbered)
            is_choice.append(isinstance(value, str) and value.strip() in choices)
    return bool(is_choice) and all(is_choice)


def _column_order(name: str) -> tuple[str, int, str]:
    """Sort key: choice2 before choice10."""
    match = NUMBERED_CHOICE.fullmatch(name)
    assert match is not None  # the caller filters names
    stem, number = match.groups()
    return stem.casefold(), int(number) if number.isdigit() else 0, name


def has_choices(table: Table, row: Row) -> bool:
    """Whether a row looks like a question with choices."""
    nested = any(isinstance(value, dict) and "choices" in value for value in row.values.values())
    listed = any(isinstance(row.values.get(name), list | dict) for name in CHOICE_LIST_NAMES)
    return nested or listed or sum(NUMBERED_CHOICE.fullmatch(name) is not None for name in table.names) > 1


def _read(row: Row, columns: Columns, numbered: Sequence[str]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """(question, names of the choices such as A, B or empty, choices)."""
    value = row.values.get(columns.text or "")
    nested = value if isinstance(value, dict) else None  # CommonsenseQA and ARC: the choices are inside
    if nested is not None:
        text = nested.get("stem")
        if not isinstance(text, str):
            raise RequestError(f"{row.location}: the question has no 'stem'; repair or remove the row")
        checked(text, "stem", row.location)
    else:
        text = " ".join(text_cell(row, name) for name in ((columns.text,) if columns.text else STORY_COLUMNS))
    source = row.values if nested is None or "choices" not in nested else nested
    listed = next((source[name] for name in CHOICE_LIST_NAMES if name in source), None)
    if listed is None:
        listed = [cell(row, name) for name in numbered]
    names, choices = _choices(row, listed)
    return text, names, choices


def _choices(row: Row, listed: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if isinstance(listed, dict) and isinstance(listed.get("text"), list):  # how `datasets` stores lists of objects
        texts, labels = listed["text"], listed.get("label")
        if labels is not None and (not isinstance(labels, list) or len(labels) != len(texts)):
            raise RequestError(f"{row.location}: the choices have more or fewer labels than texts; repair the row")
        listed = [{"text": t, "label": n} for t, n in zip(texts, labels, strict=True)] if labels else texts
    if not isinstance(listed, list) or len(listed) < 2:
        raise RequestError(f"{row.location}: fewer than two choices; repair or remove the row")
    texts = [choice.get("text") if isinstance(choice, dict) else choice for choice in listed]
    names = tuple(str(choice.get("label", "")) for choice in listed if isinstance(choice, dict))
    return names, tuple(_choice(row, text) for text in texts)


def _choice(row: Row, text: Any) -> str:
    if not isinstance(text, str) or not text.strip():
        raise RequestError(f"{row.location}: a choice is {text!r}, not a text; repair or remove the row")
    return checked(text, "choice", row.location)


def _correct(row: Row, column: str, names: Sequence[str], choices: Sequence[str], label_is_text: bool) -> int:
    """The index of the correct choice; the cell holds its name (A), its number, or its text."""
    value = cell(row, column)
    text = "" if value is None else str(value).strip()
    first = 1 if column.casefold() in COUNTED_FROM_ONE else 0
    if names and text in names:
        return names.index(text)
    if label_is_text and text in choices:
        return choices.index(text)
    if text.isdecimal() and first <= int(text) < len(choices) + first:
        return int(text) - first
    if text in choices:
        return choices.index(text)
    if re.fullmatch("[A-Z]", text) and ord(text) - ord("A") < len(choices):
        return ord(text) - ord("A")
    valid = ", ".join(names) if names else f"{first} to {len(choices) - 1 + first}"
    raise RequestError(
        f"{row.location}: the answer {text!r} is not among the choices ({valid}); repair or remove the row"
    )
