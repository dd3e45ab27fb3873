"""Table rows to text examples with a label: a name, several names, or a number."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.data.columns import ExampleReader, LabelColumn, choose_text_columns, is_binary, missing_column
from bertkit.data.examples import Example, Label, TextExample
from bertkit.data.tables import Columns, Row, Table, cell, checked, text_cell
from bertkit.errors import RequestError
from bertkit.text.corpus import CorpusReport, read_lines

SEPARATORS = ("|", ";", ",")  # between labels in one cell: the first of these that occurs in the file
LARGEST_NUMBER = 1e100  # of a regression label: the square of a larger error would overflow


def text_reader(label_column: LabelColumn, table: Table, columns: Columns, labeled: bool) -> ExampleReader:
    """The columns to read, and a function that makes a text example of a row."""
    chosen = choose_text_columns(table, columns, label_column)
    if not labeled:
        chosen = replace(chosen, label=None)
    elif chosen.label is None:
        raise missing_column(table, "looks like the label", "label")

    def make(row: Row) -> Example:
        pair = text_cell(row, chosen.pair) if chosen.pair else None
        label = _label(label_column, row, table, chosen.label) if chosen.label else None
        return TextExample(text_cell(row, chosen.text or ""), pair, label, row.location)

    return chosen, make


def _label(label_column: LabelColumn, row: Row, table: Table, name: str) -> Label:
    several = label_column.kind == "names"
    if several and name not in table.names:
        return _binary_labels(row, name.split(","))
    value = cell(row, name)
    if label_column.kind == "number":
        return number_cell(row, name, value)
    if several and isinstance(value, list | tuple):
        return tuple(label_name(row, name, part, table) for part in value)
    if several and (value is None or value == ""):
        return ()
    return label_name(row, name, value, table)


def label_name(row: Row, column: str, value: Any, table: Table) -> str:
    """A label as a string; a number becomes the class name that the file's schema has for it, or its digits."""
    classes = table.classes.get(column)
    if classes and isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < len(classes):
            raise RequestError(
                f"{row.location}: label {value} is not one of the file's {len(classes)} names; repair it"
            )
        return classes[value]
    if isinstance(value, list | dict):
        raise RequestError(f"{row.location}: the label '{column}' is a {type(value).__name__}; is the task multilabel?")
    name = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    if not name.strip():
        raise RequestError(f"{row.location}: the label in '{column}' is empty; fill it in or remove the row")
    return checked(name.strip(), column, row.location)


def _binary_labels(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    """The names of the columns that are 1 in this row."""
    for name in names:
        if not is_binary(cell(row, name)):
            raise RequestError(
                f"{row.location}: '{name}' holds {cell(row, name)!r}, not 0 or 1; repair or remove the row"
            )
    return tuple(name for name in names if str(cell(row, name)).strip().casefold() in ("1", "true", "1.0"))


def number_cell(row: Row, name: str, value: Any) -> float:
    """A cell as a finite number; a string that spells a number is accepted."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except OverflowError:  # an integer with hundreds of digits
        number = math.inf
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number) or abs(number) > LARGEST_NUMBER:
        expected = "a number such as 3.5" if math.isnan(number) else f"a number up to {LARGEST_NUMBER:g}"
        shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}..."
        raise RequestError(f"{row.location}: '{name}' holds {shown}, not {expected}; repair or remove the row")
    return number


def separator_of(examples: Iterable[Example]) -> str | None:
    """The separator of labels that are still one string; None if all labels came as lists."""
    joined = [e.label for e in examples if isinstance(e, TextExample) and isinstance(e.label, str)]
    if not joined:
        return None
    return next((separator for separator in SEPARATORS if any(separator in label for label in joined)), ",")


def split_label(example: Example, separator: str) -> Example:
    """`a|b` as (a, b)."""
    if not isinstance(example, TextExample) or not isinstance(example.label, str):
        return example
    parts = tuple(part.strip() for part in example.label.split(separator))
    if "" in parts:
        raise RequestError(f"{example.location}: an empty label in {example.label!r}; remove the extra '{separator}'")
    return replace(example, label=parts)


def names_from_labels_txt(path: Path, examples: Sequence[Example]) -> tuple[str, ...]:
    """The label names in a labels.txt beside the file, if the file's labels are line numbers of it, from 0.

    At least half of the names must occur: a labels.txt with 28 names does not belong to a file of 0 and 1.
    """
    labels_file = path.parent / "labels.txt"
    if path == labels_file or not labels_file.is_file():
        return ()
    names = tuple(line.strip() for _, line in read_lines(labels_file, report=CorpusReport()) if line.strip())
    used = set(label_names(examples))
    fits = all(label.isdecimal() and int(label) < len(names) for label in used)
    return names if fits and 2 * len(used) >= len(names) and len(set(names)) == len(names) else ()


def replace_label_numbers(examples: Sequence[Example], names: Sequence[str]) -> list[Example]:
    """Examples with label numbers replaced by names; a label without a name stays, for the task to refuse."""
    used = set(label_names(examples))
    renamed = {label: names[int(label)] for label in used if label.isdecimal() and int(label) < len(names)}
    return [example.renamed(renamed) for example in examples]


def label_names(examples: Iterable[Example]) -> Iterable[str]:
    """All label names of all examples, with repetitions."""
    for example in examples:
        yield from example.names
