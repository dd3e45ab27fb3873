"""Base row of the tasks on a text or a pair of texts."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from bertkit.data.columns import ExampleReader, choose_text_columns
from bertkit.data.examples import Example, TextExample
from bertkit.data.glue import LAYOUTS, LabelKind
from bertkit.data.tables import Columns, Row, Table
from bertkit.data.texts import text_reader
from bertkit.tasks.row import RequestField, TaskRow, check_same_count, request_location

MIN_MARKED_SHARE = 0.05  # of labels with a separator or decimals, from which on these decide the task of a file


class TextRow(TaskRow):
    """One label, several labels or a number for a text or a pair."""

    head = "classify"
    route = "classify"
    fields = (RequestField("texts"), RequestField("pairs", optional=True, description="The second text of each pair."))
    request_summary = "Texts, or pairs of texts."
    request_example: ClassVar[Mapping[str, object]] = {"texts": ["a fine film", "a dull film"]}
    takes_labels = True
    reports_length = True

    def reader(self, table: Table, columns: Columns, labeled: bool) -> ExampleReader:
        """Reads text, pair and label."""
        return text_reader(self.label, table, columns, labeled)

    def examples(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Example]:  # type: ignore[override]
        """An example for each text, or for each text and its pair."""
        seconds: Sequence[str | None] = [None] * len(texts) if pairs is None else list(pairs)
        check_same_count(texts, seconds, "texts and pairs")
        rows = enumerate(zip(texts, seconds, strict=True))
        return [TextExample(text, pair, None, request_location(number)) for number, (text, pair) in rows]


def known_layout(table: Table, rows: Sequence[Row], columns: Columns) -> LabelKind | None:
    """The kind of labels of a published file without a header, if its layout is known."""
    if table.header or columns.text or columns.label:
        return None
    return next((layout.kind for layout in LAYOUTS if layout.fits(rows)), None)


def label_cells(table: Table, rows: Sequence[Row], columns: Columns) -> tuple[str | None, list[object]]:
    """(the column that looks like one label for each text, its cells in `rows`)."""
    label = choose_text_columns(table, columns).label
    return label, [] if label is None else [row.values.get(label) for row in rows]
