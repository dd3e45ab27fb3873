"""Sentence order prediction (ALBERT): two neighboring texts, swapped or not; both are from the same document.

An epoch covers about 95 % of a corpus: all but what is left out of spans by pairs that are made short.
"""

from collections.abc import Sequence

import numpy as np

from bertkit.pretraining.examples.random import Floats, Ints
from bertkit.pretraining.examples.spans import Ranges, Rolls, Spans, fill, shortened, split
from bertkit.pretraining.objectives.pair import PairObjective


def sentence_order(
    rolls: Rolls[float], sentences: Sequence[Sequence[int]], room: int
) -> tuple[list[int], list[int], int]:
    """(a, b, label): label 0 in the order of the document, 1 if swapped. The readable reference, for one span."""
    a, b = split(fill(sentences, room, least=2), rolls.split)
    return (a, b, 0) if rolls.label < 0.5 else (b, a, 1)


class SentenceOrder(PairObjective):
    """Half of the pairs are swapped."""

    name = "sop"
    pair_labels = ("A and B are in order", "A and B are swapped")

    def ranges(self, spans: Spans, numbers: Ints, rolls: Rolls[Floats], short_share: float) -> Ranges:
        """`sentence_order` for many spans at once: the ranges of A and B, and the labels."""
        start, cut, stop = spans.split(numbers, shortened(spans.room, rolls, short_share), rolls.split)
        starts, lengths = np.stack((start, cut), axis=1), np.stack((cut - start, stop - cut), axis=1)
        swapped = rolls.label >= 0.5
        starts[swapped], lengths[swapped] = starts[swapped, ::-1], lengths[swapped, ::-1]
        return Ranges(starts, lengths, swapped.astype(np.int64))
