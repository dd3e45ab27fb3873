"""From tokens back to characters of the original text, counted in code points."""

import re
import unicodedata
from collections.abc import Sequence

from bertkit.text.tokenizer import Encoding

Spans = tuple[tuple[int, int], ...]
MAX_WORD = 100  # characters searched for the end of a word
# Scripts without spaces between words, where each character counts as a word: Thai to Tibetan, Burmese, Khmer, Kana,
# ideographs. Korean has spaces between words, but not before the particles at their ends.
UNSPACED = re.compile(
    "[\u0e00-\u109f\u1100-\u11ff\u1780-\u17ff\u19e0-\u1aaf\u3040-\u4dbf\u4e00-\ua4cf\ua960-\ua97f"
    "\uaa60-\uaa7f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff]"
)


def with_marks(spans: Sequence[tuple[int, int]], text: str) -> Spans:
    """Spans in reading order, each extended over the combining marks that follow it and are in no other span.

    Normalization drops combining accents, but for a reader they belong to their letter.
    """
    if text.isascii() or not spans:
        return tuple(spans)
    stops = [*(start for start, _ in spans[1:]), len(text)]
    return tuple((start, _after_marks(text, end, stop)) for (start, end), stop in zip(spans, stops, strict=True))


def word_spans(encoding: Encoding, text: str) -> Spans:
    """Characters [start, end) of each word of a text that was encoded alone, in reading order; spaces are skipped."""
    spans: dict[int, tuple[int, int]] = {}
    for word, (start, end) in zip(encoding.words, encoding.offsets, strict=True):
        if word is not None:
            first, last = spans.get(word, (start, end))
            spans[word] = (min(first, start), max(last, end))
    return with_marks([(start, end) for start, end in spans.values() if start < end], text)


def whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """[start, end) extended to the ends of the words that it splits.

    >>> whole_words("the Pharos stood", 4, 9)
    (4, 10)
    """
    return _word_edge(text, start, -1), _word_edge(text, end, 1)


def _word_edge(text: str, position: int, step: int) -> int:
    """The nearest end of a word in one direction; the position itself if none is within MAX_WORD characters."""
    candidates = range(position, position + step * MAX_WORD, step)
    return next((candidate for candidate in candidates if not _inside_word(text, candidate)), position)


def _inside_word(text: str, position: int) -> bool:
    """Whether the characters on both sides of a position belong to one word."""
    return 0 < position < len(text) and all(in_word(char) for char in text[position - 1 : position + 1])


def in_word(char: str) -> bool:
    """Whether a character is a letter, digit or mark, or an invisible one inside words (soft hyphen, joiner)."""
    category = unicodedata.category(char)
    return (category[0] in "LNM" or category == "Cf") and not UNSPACED.match(char)


def _after_marks(text: str, end: int, stop: int) -> int:
    while end < stop and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return end
