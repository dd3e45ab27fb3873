"""The F1 of tagged spans by the rules of seqeval: a span is correct if both its bounds and its label are."""

from collections import Counter
from collections.abc import Sequence

from bertkit.data.schemes import Span, spans_from_tags, strict_spans
from bertkit.errors import RequestError
from bertkit.tasks.metrics.classes import LabelScore, averaged_f1
from bertkit.tasks.metrics.correlation import check_lengths


def span_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str | None = None
) -> dict[str, LabelScore]:
    """The score of each span label, from the tags of each sentence.

    As in seqeval: without `scheme` spans are read leniently, as CoNLL's scorer does; with it only valid spans count.
    """
    check_lengths(gold, predicted)
    for n, (predicted_tags, gold_tags) in enumerate(zip(predicted, gold, strict=True), start=1):
        if len(predicted_tags) != len(gold_tags):
            raise RequestError(f"sentence {n}: {len(predicted_tags)} tags predicted for {len(gold_tags)} words")
    gold_spans, predicted_spans = _spans(gold, scheme), _spans(predicted, scheme)
    sets = (gold_spans & predicted_spans, predicted_spans, gold_spans)
    counts = [Counter(span.label for span in spans) for spans in sets]
    return {label: LabelScore(*(count[label] for count in counts)) for label in sorted({*counts[1], *counts[2]})}


def span_f1(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    scheme: str | None = None,
    average: str = "micro",
) -> float:
    """The F1 over all span labels, by an average of AVERAGES; see `span_scores`."""
    return averaged_f1(span_scores(gold, predicted, scheme).values(), average)


def _spans(sentences: Sequence[Sequence[str]], scheme: str | None) -> set[Span]:
    """All spans of the sentences, joined to one with an O after each."""
    tags = [tag for sentence in sentences for tag in (*sentence, "O")]
    return set(spans_from_tags(tags) if scheme is None else strict_spans(tags, scheme))
