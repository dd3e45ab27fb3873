"""A tag for each word of a sentence: names, parts of speech."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bertkit.data.examples import Example, TaggedExample
from bertkit.data.schemes import check_tags, recognize
from bertkit.data.tagged import TAG_LABELS
from bertkit.tasks.row import Detail, Measures
from bertkit.tasks.rows.words import WordRow

SPAN = {"label": str, "text": str, "start": int, "end": int, "first_word": int, "end_word": int, "probability": float}


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
    label_unit = "tags"
    word_labels = TAG_LABELS
    output: ClassVar[Mapping[str, Any]] = {"words": [str], "characters": [[int]], "tags": [str], "spans": [SPAN]}

    def check(self, examples: Sequence[Example]) -> None:
        """Stop at the first tag that the file's own scheme forbids."""
        tagged = [(e.tags, e.place) for e in examples if isinstance(e, TaggedExample) and e.tags]
        check_tags([tags for tags, _ in tagged], recognize(tags for tags, _ in tagged), [place for _, place in tagged])

    def own_cells(self, example: Example, prediction: Any, detail: Detail) -> dict[str, Any]:
        """Words, tags, and spans with their characters in a plain text."""
        spans = []
        for span in prediction.spans:
            start, end = span.characters or (None, None)
            cells: dict[str, Any] = {"label": span.label, "text": span.text, "start": start, "end": end}
            cells |= {"first_word": span.words[0], "end_word": span.words[1], "probability": span.probability}
            spans.append(cells)
        return super().own_cells(example, prediction, detail) | {"spans": spans}
