"""A tag for each word of a sentence: names, parts of speech."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.examples import Example, TaggedExample
from bertkit.data.schemes import check_tags, recognize
from bertkit.data.tables import Columns, Row, Table, ending
from bertkit.data.tagged import TAG_LABELS
from bertkit.tasks.labels import labels_of, learned_labels
from bertkit.tasks.row import Detail, Measures
from bertkit.tasks.rows.words import COLUMN_FILES, WordRow, has_word_lists, in_blocks, places_of

if TYPE_CHECKING:
    import pyarrow


class TagRow(WordRow):
    """One tag of several for each word; tags of a scheme (BIO and its kin) mark spans."""

    name = "tag"
    summary = "a tag for each word"
    written = "words, tags, spans with characters"
    implementation = "bertkit.tasks.tag:Tag"
    route = "tag"
    metrics = Measures("f1", ("accuracy", "f1", "precision", "recall", "macro_f1"))
    labeled = True
    exclusive = True
    word_labels = TAG_LABELS

    def fits_file(self, path: Path, columns: Columns) -> bool:
        """CoNLL columns."""
        kind = ending(path)
        return kind in COLUMN_FILES or (kind in (".txt", ".tsv", ".tab") and in_blocks(path, columns))

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """Lists of words."""
        return has_word_lists(table, rows)

    def check(self, examples: Sequence[Example]) -> None:
        """Stop at the first tag that the file's own scheme forbids."""
        tagged = [(e.tags, e.place) for e in examples if isinstance(e, TaggedExample) and e.tags]
        check_tags([tags for tags, _ in tagged], recognize(tags for tags, _ in tagged), [place for _, place in tagged])

    def counts(self, examples: Sequence[Example], labeled: bool) -> list[str]:
        """Tags and sentences."""
        return [*([f"{len(labels_of(examples))} tags"] if labeled else []), f"{len(examples)} sentences"]

    def content(self, examples: Sequence[Example], file: Path) -> dict[str, Any]:
        """The tags."""
        return {"labels": learned_labels(examples, file, self.least_labels)}

    def own_columns(self, detail: Detail) -> "dict[str, pyarrow.DataType]":
        """Words, their places in a plain text, tags and spans."""
        import pyarrow as pa

        text, whole = pa.string(), pa.int64()
        span = {"label": text, "text": text, "start": whole, "end": whole}
        span |= {"first_word": whole, "end_word": whole, "probability": pa.float64()}
        columns = {"words": pa.list_(text), "characters": pa.list_(pa.list_(whole)), "tags": pa.list_(text)}
        return columns | {"spans": pa.list_(pa.struct(list(span.items())))}

    def probability_type(self, labels: Sequence[str]) -> "pyarrow.DataType":
        """A number for each word: its tag's."""
        import pyarrow as pa

        return pa.list_(pa.float64())

    def own_cells(self, example: Example, prediction: Any, detail: Detail) -> dict[str, Any]:
        """The same of one prediction."""
        spans = []
        for span in prediction.spans:
            start, end = span.characters or (None, None)
            cells: dict[str, Any] = {"label": span.label, "text": span.text, "start": start, "end": end}
            cells |= {"first_word": span.words[0], "end_word": span.words[1], "probability": span.probability}
            spans.append(cells)
        found = {"words": list(prediction.words), "characters": places_of(example)}
        return found | {"tags": list(prediction.tags), "spans": spans}
