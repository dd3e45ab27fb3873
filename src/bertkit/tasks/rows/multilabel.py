"""Any number of labels for a text or a pair of texts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from bertkit.data.columns import SEVERAL_NAMES, choose_text_columns
from bertkit.data.examples import Example
from bertkit.data.tables import Columns, Row, Table, made_examples
from bertkit.data.texts import separator_of, split_label
from bertkit.tasks.row import Measures
from bertkit.tasks.rows.classify import ClassifyRow
from bertkit.tasks.rows.texts import OFTEN, known_layout, label_cells


class MultilabelRow(ClassifyRow):
    """Each label by itself: sigmoid and a threshold."""

    name = "multilabel"
    summary = "any number of labels for each text"
    written = "labels"
    implementation = "bertkit.tasks.multilabel:Multilabel"
    metrics = Measures("macro_f1", ("micro_f1", "macro_f1", "weighted_f1", "accuracy", "mean_average_precision"))
    problem_type = "multi_label_classification"
    exclusive = False
    abstains = False
    least_labels = 1
    label = SEVERAL_NAMES
    output: ClassVar[Mapping[str, Any]] = {"labels": [str]}

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """Lists of labels, labels with | between them, or several columns of 0 and 1."""
        if layout := known_layout(table, rows, columns):
            return layout == self.label.kind
        label, cells = label_cells(table, rows, columns)
        if label is None:
            return choose_text_columns(table, columns, self.label).label is not None
        several = "," in label and label not in table.names
        marked = sum("|" in str(value) for value in cells) > OFTEN * len(cells)
        return several or marked or any(isinstance(value, list) for value in cells)

    def split_labels(
        self, examples: list[Example], columns: Columns, faults: list[str] | None
    ) -> tuple[list[Example], Columns]:
        """Labels that came as one string are split."""
        separator = columns.separator or separator_of(examples)
        if not separator:
            return examples, columns
        split = made_examples(examples, partial(split_label, separator=separator), faults)
        return split, replace(columns, separator=separator)
