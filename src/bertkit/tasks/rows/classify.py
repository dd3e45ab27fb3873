"""The row of `classify`: one of several labels for a text or a pair of texts."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bertkit.data.tables import Columns, Row, Table
from bertkit.tasks.row import TaskMetrics
from bertkit.tasks.rows.texts import TextRow


class ClassifyRow(TextRow):
    """Exactly one label for each text."""

    name = "classify"
    summary = "one label for each text"
    implementation = "bertkit.tasks.classify:Classify"
    metrics = TaskMetrics("accuracy", ("accuracy", "matthews", "macro_f1", "weighted_f1", "f1"))
    problem_type = "single_label_classification"
    labeled = True
    exclusive = True
    abstains = True
    output: ClassVar[Mapping[str, Any]] = {"label": str, "probability": float}

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """Any table: other rows are asked first."""
        return True
