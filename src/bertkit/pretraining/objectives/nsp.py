"""Next sentence: does B follow A, or is it from somewhere else? The label of BERT's second objective.

Half of the pairs are real. A is cut the same way in both halves, so that its length tells nothing. An epoch sees about
80 % of a corpus: where B is from elsewhere, the true one is left out, and other tokens are seen twice in its place.
"""

from collections.abc import Sequence

import numpy as np

from bertkit.errors import RequestError
from bertkit.pretraining.examples.random import Floats, Ints, below
from bertkit.pretraining.examples.spans import Ranges, Rolls, Spans, fill, shortened, split
from bertkit.pretraining.objectives.pair import PairObjective

Sentences = Sequence[Sequence[int]]


def next_sentence(
    rolls: Rolls[float], documents: Sequence[Sentences], number: int, span: slice, room: int
) -> tuple[list[int], list[int], int]:
    """(a, b, label): label 0 when b really follows a, 1 when b comes from another document. The readable twin."""
    a, b = split(fill(documents[number][span], room, least=2), rolls.split)
    if rolls.label < 0.5:
        return a, b, 0
    other = (number + 1 + int(rolls.document * (len(documents) - 1))) % len(documents)
    start = int(rolls.sentence * len(documents[other]))
    return a, [token for part in fill(documents[other][start:], room - len(a)) for token in part], 1


def next_sentence_ranges(spans: Spans, numbers: Ints, rolls: Rolls[Floats], short_share: float) -> Ranges:
    """The same for many spans at once: where A and B lie, and the labels."""
    room = shortened(spans.room, rolls, short_share)
    start, cut, stop = spans.split(numbers, room, rolls.split)
    other_start, other_stop = _elsewhere(spans, numbers, rolls, room - (cut - start))
    label = rolls.label >= 0.5
    b_start, b_stop = np.where(label, other_start, cut), np.where(label, other_stop, stop)
    starts, stops = np.stack((start, b_start), axis=1), np.stack((cut, b_stop), axis=1)
    return Ranges(starts, stops - starts, label.astype(np.int64))


def check_documents(spans: Spans) -> None:
    """Another document must exist for a text to come from."""
    count = len(spans.documents) - 1
    if count < 2:
        raise RequestError(
            f"objective nsp takes texts from other documents, but the shards hold {count} with text; "
            "put a blank line between documents, or use sop"
        )


class NextSentence(PairObjective):
    """Half of the pairs are from different documents."""

    name = "nsp"
    pair_labels = ("B follows A", "B is from another document")

    def check_spans(self, spans: Spans) -> None:
        """One document has no other to take a text from."""
        check_documents(spans)

    def ranges(self, spans: Spans, numbers: Ints, rolls: Rolls[Floats], short_share: float) -> Ranges:
        """Where A and B lie, and the labels."""
        return next_sentence_ranges(spans, numbers, rolls, short_share)


def _elsewhere(spans: Spans, numbers: Ints, rolls: Rolls[Floats], room: Ints) -> tuple[Ints, Ints]:
    """(start, stop) of a text that begins with any sentence of any other document."""
    count = len(spans.documents) - 1
    # From 1 to count - 1 documents on, and around: never the same document, by arithmetic.
    document = (spans.document(numbers) + 1 + below(rolls.document, count - 1)) % count
    first, behind = spans.documents[document], spans.documents[document + 1]
    start = spans.borders[first + below(rolls.sentence, behind - first)]
    return start, spans.fill(start, spans.borders[behind], room)[0]
