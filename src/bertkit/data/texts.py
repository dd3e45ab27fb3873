"""Rows to texts with a label: a name, several names, or a number."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.data.columns import LabelColumn, choose_text_columns, is_switch, no_column
from bertkit.data.examples import Example, Label, TextExample
from bertkit.data.tables import Columns, Row, Table, cell, checked, text_cell
from bertkit.errors import RequestError
from bertkit.text.corpus import CorpusReport, read_lines

SEPARATORS = ("|", ";", ",")  # the first of them that occurs splits the labels
LARGEST_NUMBER = 1e100  # of a regression: beyond it, squared errors are no longer finite numbers


def text_maker(
    wanted: LabelColumn, table: Table, columns: Columns, labeled: bool
) -> tuple[Columns, Callable[[Row], Example]]:
    """The columns that are used, and what makes an example of a row."""
    chosen = choose_text_columns(table, columns, wanted)
    if not labeled:
        chosen = replace(chosen, label=None)
    elif chosen.label is None:
        raise no_column(table, "looks like the label", "label")

    def make(row: Row) -> Example:
        pair = text_cell(row, chosen.pair) if chosen.pair else None
        label = _label(wanted, row, table, chosen.label) if chosen.label else None
        return TextExample(text_cell(row, chosen.text or ""), pair, label, row.place)

    return chosen, make


def _label(wanted: LabelColumn, row: Row, table: Table, name: str) -> Label:
    several = wanted.kind == "names"
    if several and name not in table.names:
        return _switched(row, name.split(","))
    value = cell(row, name)
    if wanted.kind == "number":
        return number_cell(row, name, value)
    if several and isinstance(value, list | tuple):
        return tuple(label_name(row, name, part, table) for part in value)
    if several and (value is None or value == ""):
        return ()
    return label_name(row, name, value, table)


def label_name(row: Row, column: str, value: Any, table: Table) -> str:
    """A label as a name: text as it stands, numbers by the names the file keeps for them, else by their digits."""
    classes = table.classes.get(column)
    if classes and isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < len(classes):
            raise RequestError(f"{row.place}: label {value} is not one of the file's {len(classes)} names; repair it")
        return classes[value]
    if isinstance(value, list | dict):
        raise RequestError(f"{row.place}: the label '{column}' is a {type(value).__name__}; is the task multilabel?")
    name = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    if not name.strip():
        raise RequestError(f"{row.place}: the label in '{column}' is empty; fill it in or remove the row")
    return checked(name.strip(), column, row.place)


def _switched(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    """The names of the columns that hold 1."""
    for name in names:
        if not is_switch(cell(row, name)):
            raise RequestError(f"{row.place}: '{name}' holds {cell(row, name)!r}, not 0 or 1; repair or remove the row")
    return tuple(name for name in names if str(cell(row, name)).strip().casefold() in ("1", "true", "1.0"))


def number_cell(row: Row, name: str, value: Any) -> float:
    """A finite number; text that spells one counts."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except OverflowError:  # a whole number with hundreds of digits
        number = math.inf
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number) or abs(number) > LARGEST_NUMBER:
        wanted = "a number such as 3.5" if math.isnan(number) else f"a number up to {LARGEST_NUMBER:g}"
        shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}..."
        raise RequestError(f"{row.place}: '{name}' holds {shown}, not {wanted}; repair or remove the row")
    return number


def separator_of(examples: Iterable[Example]) -> str | None:
    """What splits the labels that are still one string; None if all came as lists."""
    joined = [e.label for e in examples if isinstance(e, TextExample) and isinstance(e.label, str)]
    if not joined:
        return None
    return next((mark for mark in SEPARATORS if any(mark in label for label in joined)), ",")


def split_label(example: Example, separator: str) -> Example:
    """`a|b` as (a, b)."""
    if not isinstance(example, TextExample) or not isinstance(example.label, str):
        return example
    parts = tuple(part.strip() for part in example.label.split(separator))
    if "" in parts:
        raise RequestError(f"{example.place}: an empty label in {example.label!r}; take out the extra '{separator}'")
    return replace(example, label=parts)


def beside_names(path: Path, examples: Sequence[Example]) -> tuple[str, ...]:
    """The lines of a labels.txt beside the file, if the file's labels are their numbers, from 0.

    At least half of the names must occur: a file of 0 and 1 beside 28 names is another task's.
    """
    beside = path.parent / "labels.txt"
    if path == beside or not beside.is_file():
        return ()
    names = tuple(line.strip() for _, line in read_lines(beside, report=CorpusReport()) if line.strip())
    used = set(label_names(examples))
    fits = all(label.isdecimal() and int(label) < len(names) for label in used)
    return names if fits and 2 * len(used) >= len(names) and len(set(names)) == len(names) else ()


def by_name(examples: Sequence[Example], names: Sequence[str]) -> list[Example]:
    """Numbered labels by name; what is no number of a name stays, for the task to refuse."""
    used = set(label_names(examples))
    known = {label: names[int(label)] for label in used if label.isdecimal() and int(label) < len(names)}
    return [example.renamed(known) for example in examples]


def label_names(examples: Iterable[Example]) -> Iterable[str]:
    """Every label name, as often as it is given."""
    for example in examples:
        yield from example.names
