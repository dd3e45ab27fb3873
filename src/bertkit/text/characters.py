"""Tokens back to characters of the original text, counted in code points."""

import re
import unicodedata
from collections.abc import Sequence

from bertkit.text.tokenizer import Encoding

Spans = tuple[tuple[int, int], ...]
LONGEST_WORD = 100  # characters: what is longer is no word
# Scripts without spaces between words, each character a word: Thai to Tibetan, Burmese, Khmer, Kana, ideographs.
# Korean sets words apart, but not the particles at their ends.
UNSPACED = re.compile(
    "[\u0e00-\u109f\u1100-\u11ff\u1780-\u17ff\u19e0-\u1aaf\u3040-\u4dbf\u4e00-\ua4cf\ua960-\ua97f"
    "\uaa60-\uaa7f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff]"
)


def with_marks(spans: Sequence[tuple[int, int]], text: str) -> Spans:
    """Spans in reading order, each extended over the accents that follow it and that are in no other span.

    Normalization drops combining accents, but for a reader they belong to their letter.
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


def whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """[start, end) widened to the ends of the words that it cuts through.

    >>> whole_words("the Pharos stood", 4, 9)
    (4, 10)
    """
    return _word_edge(text, start, -1), _word_edge(text, end, 1)


def _word_edge(text: str, at: int, step: int) -> int:
    """The nearest end of a word in one direction; the position itself if none is near."""
    positions = range(at, at + step * LONGEST_WORD, step)
    return next((position for position in positions if not _inside_word(text, position)), at)


def _inside_word(text: str, at: int) -> bool:
    """Whether the characters on both sides of a position belong to one word."""
    return 0 < at < len(text) and all(_in_word(char) for char in text[at - 1 : at + 1])


def _in_word(char: str) -> bool:
    """Letters and digits, their marks, and invisible characters inside words: soft hyphens, joiners."""
    kind = unicodedata.category(char)
    return (kind[0] in "LNM" or kind == "Cf") and not UNSPACED.match(char)


def _behind_marks(text: str, end: int, stop: int) -> int:
    while end < stop and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return end
