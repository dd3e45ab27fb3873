"""Exactly one of several labels for a text or a pair of texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.examples import Example
from bertkit.data.tables import Columns, Row, Table
from bertkit.tasks.labels import labels_of, learned_labels
from bertkit.tasks.row import Detail, Measures
from bertkit.tasks.rows.texts import TextRow

if TYPE_CHECKING:
    import pyarrow


class ClassifyRow(TextRow):
    """One label of several: softmax."""

    name = "classify"
    summary = "one label for each text"
    written = "label, probability"
    implementation = "bertkit.tasks.classify:Classify"
    metrics = Measures("accuracy", ("accuracy", "matthews", "macro_f1", "weighted_f1", "f1"))
    problem_type = "single_label_classification"
    labeled = True
    exclusive = True
    abstains = True

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """What no other task takes."""
        return True

    def counts(self, examples: Sequence[Example], labeled: bool) -> list[str]:
        """Labels and rows."""
        return [*([f"{len(labels_of(examples))} labels"] if labeled else []), f"{len(examples)} rows"]

    def content(self, examples: Sequence[Example], file: Path) -> dict[str, Any]:
        """The labels."""
        return {"labels": learned_labels(examples, file, self.least_labels)}

    def own_columns(self, detail: Detail) -> "dict[str, pyarrow.DataType]":
        """The label and its probability."""
        import pyarrow as pa

        return {"label": pa.string(), "probability": pa.float64()}

    def own_cells(self, example: Example, prediction: Any, detail: Detail) -> dict[str, Any]:
        """The same of one prediction."""
        return {"label": prediction.label, "probability": prediction.probability}
