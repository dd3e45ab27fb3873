"""The F1 of tagged spans by seqeval's rules: a span is correct if both its bounds and its label are."""

from collections import Counter
from collections.abc import Sequence

from bertkit.data.schemes import Span, spans_from_tags, strict_spans
from bertkit.errors import RequestError
from bertkit.tasks.metrics.classes import LabelScore, averaged_f1
from bertkit.tasks.metrics.correlation import check_lengths


def span_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str | None = None
) -> dict[str, LabelScore]:
    """Each span label's score; a span is correct if its bounds and label are. `scheme`: count well-formed ones only.

    These are seqeval's rules: without a scheme CoNLL's lenient reading, with one the strict mode.
    """
    check_lengths(gold, predicted)
    for n, (ours, theirs) in enumerate(zip(predicted, gold, strict=True), start=1):
        if len(ours) != len(theirs):
            raise RequestError(f"sentence {n}: {len(ours)} tags predicted for {len(theirs)} words")
    truth, guesses = _spans(gold, scheme), _spans(predicted, scheme)
    tallies = [Counter(span.label for span in spans) for spans in (truth & guesses, guesses, truth)]
    labels = sorted({*tallies[1], *tallies[2]})
    return {label: LabelScore(*(tally[label] for tally in tallies)) for label in labels}


def span_f1(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    scheme: str | None = None,
    average: str = "micro",
) -> float:
    """The F1 of spans over whole sentences of tags, as `span_scores` reads them."""
    return averaged_f1(span_scores(gold, predicted, scheme).values(), average)


def _spans(sentences: Sequence[Sequence[str]], scheme: str | None) -> set[Span]:
    """All spans, as if the sentences were one, with a word between them that is outside."""
    tags = [tag for sentence in sentences for tag in (*sentence, "O")]
    return set(spans_from_tags(tags) if scheme is None else strict_spans(tags, scheme))
