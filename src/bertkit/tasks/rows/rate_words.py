"""The row of `rate-words`: a number for each word of a sentence, such as reading time or complexity."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from bertkit.data.columns import first_present, is_number
from bertkit.data.examples import WordsExample
from bertkit.data.tables import Columns, Row, Table, ending, open_table
from bertkit.data.tagged import WordLabels
from bertkit.data.texts import number_cell
from bertkit.errors import RequestError
from bertkit.tasks.rows.regress import NumberRow
from bertkit.tasks.rows.texts import MIN_MARKED_SHARE
from bertkit.tasks.rows.words import WordRow

NUMBER_COLUMNS = ("ratings", "scores", "values", "numbers", "complexities", "reading_times", "times", "labels")


class RatedWordsExample(WordsExample):
    """A sentence with a number for each word."""

    __slots__ = ()

    @property
    def numbers(self) -> tuple[float, ...]:
        """The labels."""
        return self.labels or ()


def _read_number(row: Row, column: str, value: Any, table: Table) -> float:
    return number_cell(row, column, value)


class RateWordsRow(NumberRow, WordRow):
    """Token regression: a number for each word, predicted at its first piece."""

    name = "rate-words"
    summary = "a number for each word"
    implementation = "bertkit.tasks.rate_words:RateWords"
    route = "rate-words"
    request_example: ClassVar[Mapping[str, object]] = {"texts": ["The committee deliberated at length."]}
    output: ClassVar[Mapping[str, Any]] = {"words": [str], "characters": [[int]], "values": [float]}
    word_labels = WordLabels("number", NUMBER_COLUMNS, _read_number, RatedWordsExample)

    def terminal_text(self, cells: Mapping[str, Any]) -> str:
        """Each word with its number."""
        return ", ".join(f"{word} {value:.2f}" for word, value in zip(cells["words"], cells["values"], strict=True))

    def fits_file(self, path: Path, columns: Columns) -> bool:
        """CoNLL columns, with numbers in the last one."""
        if ending(path) == ".conllu" or not super().fits_file(path, columns):
            return False
        try:
            table = open_table(path, columns, format="conll")
        except RequestError:
            return False
        return _are_measurements([cell for row in table.sample for cell in row.values.get(table.names[-1], ())])

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """A list of words and a list of numbers in each row."""
        label = columns.label or first_present(table, NUMBER_COLUMNS)
        if label is None or not super().fits_table(table, rows, columns):
            return False
        lists = [row.values.get(label) for row in rows]
        numbers = [number for cells in lists if isinstance(cells, list) for number in cells]
        return all(isinstance(cells, list) for cells in lists) and _are_measurements(numbers)


def _are_measurements(cells: Sequence[object]) -> bool:
    """Whether cells are numbers, some of them with decimals: integers alone may be class names."""
    fractions = sum("." in str(cell) for cell in cells)
    return bool(cells) and all(is_number(str(cell)) for cell in cells) and fractions > MIN_MARKED_SHARE * len(cells)
