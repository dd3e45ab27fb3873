"""The row of `multilabel`: any number of labels for a text or a pair of texts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from bertkit.data.columns import SEVERAL_LABELS, choose_text_columns
from bertkit.data.examples import Example
from bertkit.data.tables import Columns, Row, Table, made_examples
from bertkit.data.texts import separator_of, split_label
from bertkit.tasks.row import TaskMetrics
from bertkit.tasks.rows.classify import ClassifyRow
from bertkit.tasks.rows.texts import MIN_MARKED_SHARE, known_layout, label_cells


class MultilabelRow(ClassifyRow):
    """Any number of labels for each text."""

    name = "multilabel"
    summary = "any number of labels for each text"
    implementation = "bertkit.tasks.multilabel:Multilabel"
    metrics = TaskMetrics("macro_f1", ("micro_f1", "macro_f1", "weighted_f1", "accuracy", "mean_average_precision"))
    problem_type = "multi_label_classification"
    exclusive = False
    abstains = False
    min_labels = 1
    label = SEVERAL_LABELS
    output: ClassVar[Mapping[str, Any]] = {"labels": [str]}

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """Lists of labels, labels separated by |, or several columns of 0 and 1."""
        if layout := known_layout(table, rows, columns):
            return layout == self.label.kind
        label, cells = label_cells(table, rows, columns)
        if label is None:
            return choose_text_columns(table, columns, self.label).label is not None
        several_columns = "," in label and label not in table.names
        separated = sum("|" in str(value) for value in cells) > MIN_MARKED_SHARE * len(cells)
        return several_columns or separated or any(isinstance(value, list) for value in cells)

    def split_labels(
        self, examples: list[Example], columns: Columns, faults: list[str] | None
    ) -> tuple[list[Example], Columns]:
        """Splits labels in one string at the given or guessed separator."""
        separator = columns.separator or separator_of(examples)
        if not separator:
            return examples, columns
        split = made_examples(examples, partial(split_label, separator=separator), faults)
        return split, replace(columns, separator=separator)
