"""The row of `tag`: a tag for each word of a sentence, such as named entities or parts of speech."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bertkit.data.examples import Example, TaggedExample
from bertkit.data.schemes import check_tags, recognize
from bertkit.data.tagged import TAG_LABELS
from bertkit.tasks.row import TaskMetrics
from bertkit.tasks.rows.words import WordRow

SPAN_FIELDS = {"label": str, "text": str, "start": int, "end": int, "first_word": int, "end_word": int}


class TagRow(WordRow):
    """One tag for each word; tags of a scheme such as BIO encode spans."""

    name = "tag"
    summary = "a tag for each word"
    implementation = "bertkit.tasks.tag:Tag"
    route = "tag"
    metrics = TaskMetrics("f1", ("accuracy", "f1", "precision", "recall", "macro_f1"))
    labeled = True
    exclusive = True
    label_unit = "tags"
    word_labels = TAG_LABELS
    output: ClassVar[Mapping[str, Any]] = {
        "words": [str],
        "characters": [[int]],
        "tags": [str],
        "spans": [{**SPAN_FIELDS, "probability": float}],
    }

    def check(self, examples: Sequence[Example]) -> None:
        """Refuse the first tag that is invalid in the scheme of the file."""
        tagged = [(e.tags, e.location) for e in examples if isinstance(e, TaggedExample) and e.tags]
        check_tags(
            [tags for tags, _ in tagged], recognize(tags for tags, _ in tagged), [location for _, location in tagged]
        )

    def output_cells(self, example: Example, prediction: Any) -> dict[str, Any]:
        """Words, tags, and spans; characters are None if the words do not come from a plain text."""
        spans = []
        for span in prediction.spans:
            start, end = span.characters or (None, None)
            cells: dict[str, Any] = {"label": span.label, "text": span.text, "start": start, "end": end}
            cells |= {"first_word": span.words[0], "end_word": span.words[1], "probability": span.probability}
            spans.append(cells)
        return super().output_cells(example, prediction) | {"spans": spans}

    def terminal_text(self, cells: Mapping[str, Any]) -> str:
        """The spans with their labels; for tags that are no spans each word with its tag."""
        spans = [f"{span['text']} ({span['label']} {span['probability']:.2f})" for span in cells["spans"]]
        if spans or set(cells["tags"]) <= {"O"}:
            return ", ".join(spans) or "-"
        return " ".join(f"{word}/{tag}" for word, tag in zip(cells["words"], cells["tags"], strict=True))
