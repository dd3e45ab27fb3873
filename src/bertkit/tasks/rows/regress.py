"""A number for a text or a pair of texts."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.columns import NUMBERS, ONE_NUMBER, is_number
from bertkit.data.examples import Example, TextExample
from bertkit.data.tables import Columns, Row, Table
from bertkit.errors import RequestError
from bertkit.tasks.row import Detail, Measures
from bertkit.tasks.rows.texts import OFTEN, TextRow, known_layout, label_cells

if TYPE_CHECKING:
    import pyarrow


class RegressRow(TextRow):
    """A number, such as a rating or a similarity."""

    name = "regress"
    summary = "a number for each text"
    written = "value"
    implementation = "bertkit.tasks.regress:Regress"
    metrics = Measures("spearman", ("pearson", "spearman", "mean_squared_error", "mean_absolute_error"))
    problem_type = "regression"
    numeric = True
    saved = ("center", "spread")
    label = ONE_NUMBER
    has_probabilities = False

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """Numbers with fractions, or any numbers in a column whose name says that they are a scale."""
        if layout := known_layout(table, rows, columns):
            return layout == self.label.kind
        label, cells = label_cells(table, rows, columns)
        if label is None or not all(is_number(str(value)) for value in cells):
            return False
        fractions = sum("." in str(value).rstrip("0").rstrip(".") for value in cells)
        return fractions > OFTEN * len(cells) or label.casefold() in NUMBERS

    def content(self, examples: Sequence[Example], file: Path) -> dict[str, Any]:
        """Center and spread of the numbers."""
        labels = [example.label for example in examples if isinstance(example, TextExample)]
        return scale_of([float(label) for label in labels if isinstance(label, int | float)], file)

    def own_columns(self, detail: Detail) -> "dict[str, pyarrow.DataType]":
        """The number."""
        import pyarrow as pa

        return {"value": pa.float64()}

    def own_cells(self, example: Example, prediction: Any, detail: Detail) -> dict[str, Any]:
        """The same of one prediction."""
        return {"value": prediction.value}


def scale_of(numbers: Sequence[float], file: Path) -> dict[str, Any]:
    """Center and spread of a file's numbers; numbers that are all the same are refused."""
    spread = statistics.pstdev(numbers)
    if not spread:
        raise RequestError(f"{file}: every example has the number {numbers[0]:g}; there is nothing to learn")
    return {"center": statistics.fmean(numbers), "spread": spread}
