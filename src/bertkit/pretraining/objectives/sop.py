"""Sentence order: two neighboring texts, swapped or not. ALBERT's harder question: both are from one place.

An epoch sees about 95 % of a corpus: all but what pairs that are made short leave out of their spans.
"""

from collections.abc import Sequence

import numpy as np

from bertkit.pretraining.examples.random import Floats, Ints
from bertkit.pretraining.examples.spans import Ranges, Rolls, Spans, fill, shortened, split
from bertkit.pretraining.objectives.pair import PairObjective


def sentence_order(
    rolls: Rolls[float], sentences: Sequence[Sequence[int]], room: int
) -> tuple[list[int], list[int], int]:
    """(a, b, label): label 0 in the order of the document, 1 when swapped. The readable twin, for one span."""
    a, b = split(fill(sentences, room, least=2), rolls.split)
    return (a, b, 0) if rolls.label < 0.5 else (b, a, 1)


def sentence_order_ranges(spans: Spans, numbers: Ints, rolls: Rolls[Floats], short_share: float) -> Ranges:
    """The same for many spans at once: where A and B lie, and the labels."""
    start, cut, stop = spans.split(numbers, shortened(spans.room, rolls, short_share), rolls.split)
    starts, lengths = np.stack((start, cut), axis=1), np.stack((cut - start, stop - cut), axis=1)
    swapped = rolls.label >= 0.5
    starts[swapped], lengths[swapped] = starts[swapped, ::-1], lengths[swapped, ::-1]
    return Ranges(starts, lengths, swapped.astype(np.int64))


class SentenceOrder(PairObjective):
    """Half of the pairs are swapped."""

    name = "sop"
    pair_labels = ("A and B are in order", "A and B are swapped")

    def ranges(self, spans: Spans, numbers: Ints, rolls: Rolls[Floats], short_share: float) -> Ranges:
        """Where A and B lie, and the labels."""
        return sentence_order_ranges(spans, numbers, rolls, short_share)
