"""Tokens back to characters of the original text, counted in code points."""

import unicodedata
from collections.abc import Sequence

from bertkit.text.tokenizer import Encoding

Spans = tuple[tuple[int, int], ...]


def with_marks(spans: Sequence[tuple[int, int]], text: str) -> Spans:
    """Spans in reading order, each up to behind the accents that follow it and that no other span holds.

    Normalization drops accents that stand apart from their letter, but a reader takes both for one.
    """
    if text.isascii() or not spans:
        return tuple(spans)
    stops = [*(start for start, _ in spans[1:]), len(text)]
    return tuple((start, _behind_marks(text, end, stop)) for (start, end), stop in zip(spans, stops, strict=True))


def word_spans(encoding: Encoding, text: str) -> Spans:
    """Characters [start, end) of each word of a text that was encoded alone, in reading order; space is no word."""
    spans: dict[int, tuple[int, int]] = {}
    for word, (start, end) in zip(encoding.words, encoding.offsets, strict=True):
        if word is not None:
            first, last = spans.get(word, (start, end))
            spans[word] = (min(first, start), max(last, end))
    return with_marks([(start, end) for start, end in spans.values() if start < end], text)


def _behind_marks(text: str, end: int, stop: int) -> int:
    while end < stop and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return end
