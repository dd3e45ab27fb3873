"""Exactly one of several labels for a text or a pair of texts."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bertkit.data.tables import Columns, Row, Table
from bertkit.tasks.row import Measures
from bertkit.tasks.rows.texts import TextRow


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
    output: ClassVar[Mapping[str, Any]] = {"label": str, "probability": float}

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """What no other task takes."""
        return True
