"""Which task a file is for, where nobody said."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit.data import choices as choice_examples
from bertkit.data import squad as question_examples
from bertkit.data.columns import NUMBERS, WORDS, choose_text_columns, first_known, is_number
from bertkit.data.glue import LAYOUTS
from bertkit.data.tables import SAMPLE, Columns, Row, Table, ending, lines_of, open_table
from bertkit.errors import RequestError

COLUMN_FILES = (".conllu", ".conll", ".iob", ".iob2", ".bio", ".bioes")
SQUAD_START = 5000  # characters in which a SQuAD file shows its shape
OFTEN = 0.05  # of the labels holding a "|" mean several labels to a text


def guess_task(path: Path, columns: Columns | None = None) -> str:
    """One of TASKS, from the ending, the columns and the labels."""
    columns = columns or Columns()
    kind = ending(path)
    if kind in COLUMN_FILES or (kind in (".txt", ".tsv", ".tab") and _in_blocks(path, columns)):
        return "tag"
    if kind == ".json" and _is_squad(path, columns):
        return "answer"
    table = open_table(path, columns)
    rows = [row for row in table.sample if not row.fault]
    if not rows:
        raise RequestError(table.sample[0].fault)
    return _by_columns(table, rows, columns)


def _in_blocks(path: Path, columns: Columns) -> bool:
    """Lines of as many cells each, with a blank line somewhere between them."""
    lines = [line for _, line in islice(lines_of(path, columns.encoding), SAMPLE)]
    if lines and lines[0].startswith("-DOCSTART-"):
        return True
    text = "\n".join(lines).strip()
    widths = {len(line.split("\t" if "\t" in line else " ")) for line in lines if line.strip()}
    return "\n\n" in text and len(widths) == 1 and widths.pop() > 1


def _is_squad(path: Path, columns: Columns) -> bool:
    lines = (line for _, line in islice(lines_of(path, columns.encoding), 200))
    start = "".join(lines)[:SQUAD_START]
    return start.lstrip().startswith("{") and '"data"' in start


def _by_columns(table: Table, rows: Sequence[Row], columns: Columns) -> str:
    words = first_known(table, WORDS)
    if words and isinstance(rows[0].values.get(words), list):
        return "tag"
    asks = first_known(table, question_examples.QUESTIONS) and first_known(table, question_examples.PASSAGES)
    if asks and first_known(table, ("answers", "human_ans_indices", "answer_text", "answer_start")):
        return "answer"
    if choice_examples.has_choices(table, rows[0]):
        return "choose"
    return _by_labels(table, rows, columns)


def _by_labels(table: Table, rows: Sequence[Row], columns: Columns) -> str:
    if not table.header and not (columns.text or columns.label):
        for layout in LAYOUTS:
            if layout.fits(rows):
                return layout.tasks[0]
    label = choose_text_columns("classify", table, columns).label
    if label is None:
        return "multilabel" if choose_text_columns("multilabel", table, columns).label else "classify"
    values = [row.values.get(label) for row in rows]
    if "," in label and label not in table.names:
        return "multilabel"
    if any(isinstance(value, list) for value in values):
        return "multilabel"
    if sum("|" in str(value) for value in values) > OFTEN * len(values):
        return "multilabel"
    return "regress" if _measures(label, values) else "classify"


def _measures(label: str, values: Sequence[Any]) -> bool:
    """Numbers with fractions, or any numbers in a column whose name says that they are a scale."""
    if not all(is_number(str(value)) for value in values):
        return False
    fractions = sum("." in str(value).rstrip("0").rstrip(".") for value in values)
    return fractions > OFTEN * len(values) or label.casefold() in NUMBERS
