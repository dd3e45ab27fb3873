"""The row of `regress`: a number for a text or a pair of texts."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from bertkit.data.columns import ONE_NUMBER, SCORE_NAMES, is_number
from bertkit.data.examples import Example
from bertkit.data.tables import Columns, Row, Table
from bertkit.errors import RequestError
from bertkit.tasks.row import TaskMetrics, TaskRow
from bertkit.tasks.rows.texts import MIN_MARKED_SHARE, TextRow, known_layout, label_cells


class NumberRow(TaskRow):
    """Base of the rows with numbers as labels, standardized by `center` and `spread`."""

    metrics = TaskMetrics("spearman", ("pearson", "spearman", "mean_squared_error", "mean_absolute_error"))
    problem_type = "regression"
    numeric = True
    saved_fields = ("center", "spread")
    has_probabilities = False

    def arguments_from_data(self, examples: Sequence[Example], file: Path) -> dict[str, Any]:
        """The mean (center) and standard deviation (spread) of the numbers; equal numbers are refused."""
        numbers = [number for example in examples for number in example.numbers]
        spread = statistics.pstdev(numbers)
        if not spread:
            raise RequestError(f"{file}: every example has the number {numbers[0]:g}; there is nothing to learn")
        return {"center": statistics.fmean(numbers), "spread": spread}


class RegressRow(NumberRow, TextRow):
    """A number, such as a rating or a similarity."""

    name = "regress"
    summary = "a number for each text"
    implementation = "bertkit.tasks.regress:Regress"
    label = ONE_NUMBER
    output: ClassVar[Mapping[str, Any]] = {"value": float}

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """Numbers with decimals, or any numbers in a column with one of SCORE_NAMES."""
        if layout := known_layout(table, rows, columns):
            return layout == self.label.kind
        label, cells = label_cells(table, rows, columns)
        if label is None or not all(is_number(str(value)) for value in cells):
            return False
        fractions = sum("." in str(value).rstrip("0").rstrip(".") for value in cells)
        return fractions > MIN_MARKED_SHARE * len(cells) or label.casefold() in SCORE_NAMES
