"""Next sentence prediction (BERT): whether text B follows text A, or is from another document.

In half of the pairs B follows A. A is cut in the same way in both halves, so that its length gives nothing away. An
epoch covers about 80 % of a corpus: where B is from another document, the true B is left out, and other tokens are used
twice.
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
    """(a, b, label): label 0 if b follows a, 1 if b is from another document. The readable reference, for one span."""
    a, b = split(fill(documents[number][span], room, least=2), rolls.split)
    if rolls.label < 0.5:
        return a, b, 0
    other = (number + 1 + int(rolls.document * (len(documents) - 1))) % len(documents)
    start = int(rolls.sentence * len(documents[other]))
    return a, [token for part in fill(documents[other][start:], room - len(a)) for token in part], 1


class NextSentence(PairObjective):
    """Half of the pairs are from different documents."""

    name = "nsp"
    pair_labels = ("B follows A", "B is from another document")

    def check_spans(self, spans: Spans) -> None:
        """Refuse a corpus with fewer than two documents."""
        count = len(spans.documents) - 1
        if count < 2:
            raise RequestError(
                f"objective nsp takes texts from other documents, but the shards hold {count} with text; "
                "put a blank line between documents, or use sop"
            )

    def ranges(self, spans: Spans, numbers: Ints, rolls: Rolls[Floats], short_share: float) -> Ranges:
        """`next_sentence` for many spans at once: the ranges of A and B, and the labels."""
        room = shortened(spans.room, rolls, short_share)
        start, cut, stop = spans.split(numbers, room, rolls.split)
        other_start, other_stop = _random_text(spans, numbers, rolls, room - (cut - start))
        label = rolls.label >= 0.5
        b_start, b_stop = np.where(label, other_start, cut), np.where(label, other_stop, stop)
        starts, stops = np.stack((start, b_start), axis=1), np.stack((cut, b_stop), axis=1)
        return Ranges(starts, stops - starts, label.astype(np.int64))


def _random_text(spans: Spans, numbers: Ints, rolls: Rolls[Floats], room: Ints) -> tuple[Ints, Ints]:
    """(start, stop) of a text that starts at a random sentence of a random other document."""
    count = len(spans.documents) - 1
    # 1 to count - 1 documents ahead, modulo count: never the same document.
    document = (spans.document(numbers) + 1 + below(rolls.document, count - 1)) % count
    first, stop = spans.documents[document], spans.documents[document + 1]
    start = spans.borders[first + below(rolls.sentence, stop - first)]
    return start, spans.fill(start, spans.borders[stop], room)[0]
