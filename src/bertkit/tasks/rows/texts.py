"""What the tasks on a text or a pair of texts share: one route, one way to read files."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from bertkit.data.columns import choose_text_columns
from bertkit.data.examples import Example, TextExample
from bertkit.data.glue import LAYOUTS, LabelKind
from bertkit.data.tables import Columns, Row, Table
from bertkit.data.texts import text_maker
from bertkit.tasks.row import Maker, RequestField, TaskRow, request_place, same_count

OFTEN = 0.05  # of the labels with a mark say that the mark means something


class TextRow(TaskRow):
    """A text or a pair in; a label, several, or a number out."""

    head = "classify"
    route = "classify"
    fields = (RequestField("texts"), RequestField("pairs", optional=True, about="The second text of each pair."))
    request_summary = "Texts, or pairs of texts."
    request_example: ClassVar[Mapping[str, object]] = {"texts": ["a fine film", "a dull film"]}
    reports_length = True

    def maker(self, table: Table, columns: Columns, labeled: bool) -> Maker:
        """Text, pair and label of a row."""
        return text_maker(self.label, table, columns, labeled)

    def examples(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Example]:  # type: ignore[override]
        """A text, or a text with its pair, each."""
        seconds: Sequence[str | None] = [None] * len(texts) if pairs is None else list(pairs)
        same_count(texts, seconds, "texts and pairs")
        both = enumerate(zip(texts, seconds, strict=True))
        return [TextExample(text, pair, None, request_place(number)) for number, (text, pair) in both]


def known_layout(table: Table, rows: Sequence[Row], columns: Columns) -> LabelKind | None:
    """The kind of labels of a published file without a header, where it is known."""
    if table.header or columns.text or columns.label:
        return None
    return next((layout.kind for layout in LAYOUTS if layout.fits(rows)), None)


def label_cells(table: Table, rows: Sequence[Row], columns: Columns) -> tuple[str | None, list[object]]:
    """The column that looks like one label for each text, and its first cells."""
    label = choose_text_columns(table, columns).label
    return label, [] if label is None else [row.values.get(label) for row in rows]
