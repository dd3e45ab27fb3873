"""WordPiece in plain Python: the slow twin of tokenizer.py, to read and to test against.

Text becomes words (cleaned, split at spaces, punctuation and Chinese characters), and a word the longest pieces of the
vocabulary from left to right. Training finds those pieces by merging frequent neighbors.
"""

import re
import string
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from typing import Protocol

from bertkit.errors import RequestError

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

Span = tuple[int, int]
Pair = tuple[str, str]
Letter = tuple[str, Span]  # a normalized character, and the original characters [start, end) it comes from

# The ideographs that Google's BERT and the fast tokenizer split, without Hangul and Kana.
CJK_RANGES = "3400-4dbf 4e00-9fff f900-faff 20000-2a6df 2a700-2b81f 2b920-2ceaf 2f800-2fa1f"

# The fast tokenizer has its own Unicode tables, of three versions; Python's depend on the version of Python.
# The differences are listed, up to Unicode 18, as ranges that may include the characters between them.
# Categories are those of Unicode 8: marks, punctuation and controls that were added later, in these ranges, are
# ordinary characters there, and four characters have another category today.
ADDED_AFTER_8 = (
    "5c8-5c9 61d 7fd 890-8e2 9fd-9fe a76 afa-aff b53-b55 c04-c3c c77 c84 d00 d3b-d3c d81 eba ece 180f-1886 "
    "1abf-1af0 1b4e-1b4f 1b7d-1b7f 1df6-1dfb 2e43-2e63 a82c a8c5 a8ff a9bd 10d24-10f89 11070-11074 "
    "110c2-110cd 111cf 1123e-11241 1133b 113bb-1145e 11660-1166c 116b9 1182f-11fff 12ff1-1612f 16d6d-16f4f "
    "16fe2-16fe4 1cf00-1d128 1d25b-1d25c 1e000-1e6f5 1e944-1e95f"
)
RECATEGORIZED = {"\u166d": "Po", "\u1734": "Mn", "\U000111c9": "Po", "\U0001171e": "Mn"}
# Decompositions and combining classes are those of Unicode 9: characters in these ranges have none there.
ADDED_AFTER_9 = (
    "5c8-5c9 7fd 897-8d3 9fe c3c d3b-d3c eba 1715 1abf-1af0 1df6-1dfa a82c 105c9-105e4 10d24-10f85 11070 "
    "1133b 11383-113d0 1145e 11839-11a99 11d42-1612f 16d68-16ff1 1d127-1d128 1d250-1d281 1e08f-1e6f5"
)
# Lower case is that of Unicode 17, newer than Python's: ranges of capitals, and the lower case of the first.
LOWERCASE = {"1c89": 0x1C8A, "a7cb": 0x264, "a7cc": 0xA7CD, "a7ce": 0xA7CF, "a7d2": 0xA7D3, "a7d4": 0xA7D5}
LOWERCASE |= {"a7da": 0xA7DB, "a7dc": 0x19B, "10d50-10d65": 0x10D70, "16ea0-16eb8": 0x16EBB}


@dataclass(frozen=True, slots=True)
class Word:
    """A normalized word, and the characters [start, end) of the original text it comes from."""

    text: str
    start: int
    end: int
    spans: tuple[Span, ...]  # one for each character of `text`


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the vocabulary, the original characters [start, end) that it covers, and its word's number."""

    text: str
    start: int
    end: int
    word: int


def basic_words(text: str, *, lowercase: bool, strip_accents: bool | None = None, split_cjk: bool = True) -> list[Word]:
    """The words of a text before WordPiece; `strip_accents=None` is the same as `lowercase`."""
    letters = _cleaned(text)
    if split_cjk:
        letters = _spaced(letters)
    if lowercase if strip_accents is None else strip_accents:
        letters = [letter for letter in _decomposed(letters) if _category(letter[0]) != "Mn"]
    if lowercase:
        letters = [(small, span) for char, span in letters for small in _lower(char)]
    return [_word(run) for run in _runs(letters)]


def longest_match(word: str, vocab: Container[str], unknown: str = "[UNK]", limit: int = 100) -> list[str]:
    """The longest pieces from left to right; only `unknown` if none matches or the word is over the limit."""
    if len(word) > limit:
        return [unknown]
    pieces: list[str] = []
    start = 0
    while start < len(word):
        prefix = "##" if start else ""
        ends = range(len(word), start, -1)
        end = next((end for end in ends if prefix + word[start:end] in vocab), None)
        if end is None:
            return [unknown]
        pieces.append(prefix + word[start:end])
        start = end
    return pieces


def wordpieces(
    text: str,
    vocab: Container[str],
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    split_cjk: bool = True,
    specials: Sequence[str] = SPECIALS,
) -> list[Piece]:
    """The pieces of a text with their offsets; a special token written in it, like [MASK], stays one piece."""
    pieces: list[Piece] = []
    start, word_number = 0, 0
    for part in _split_at(specials, text):
        if part in specials:
            pieces.append(Piece(part, start, start + len(part), word_number))
            word_number += 1
        else:
            words = basic_words(part, lowercase=lowercase, strip_accents=strip_accents, split_cjk=split_cjk)
            for word in words:
                pieces.extend(_pieces(word, vocab, start, word_number))
                word_number += 1
        start += len(part)
    return pieces


class PairCounts(Protocol):
    """The pieces of all words, and the counts of neighboring pairs."""

    def most_frequent(self) -> Pair | None:
        """The pair with the highest count, of equal ones the first in order; None below the minimum count."""

    def merge(self, left: str, right: str, /) -> str:
        """Replace the pair by one piece everywhere, and return that piece."""


class SlowPairCounts:
    """Counts all pairs again for every merge."""

    def __init__(self, word_counts: Mapping[str, int], alphabet: Sequence[str], min_count: int) -> None:
        known, self.min_count = set(alphabet), max(min_count, 1)
        self.words = [
            ([word[0], *(f"##{char}" for char in word[1:])], count)
            for word, count in word_counts.items()
            if word and known.issuperset(word)
        ]

    def most_frequent(self) -> Pair | None:
        """See `PairCounts`."""
        counts: Counter[Pair] = Counter()
        for pieces, count in self.words:
            for pair in pairwise(pieces):
                counts[pair] += count
        best = min(counts, key=lambda pair: (-counts[pair], pair), default=None)
        return None if best is None or counts[best] < self.min_count else best

    def merge(self, left: str, right: str) -> str:
        """See `PairCounts`."""
        self.words = [(_merge(pieces, (left, right)), count) for pieces, count in self.words]
        return joined((left, right))


def train(
    word_counts: Mapping[str, int],
    size: int,
    *,
    specials: Sequence[str] = SPECIALS,
    alphabet_limit: int = 1000,
    min_count: int = 2,
    watch: Callable[[int], None] | None = None,
    count_pairs: Callable[[Mapping[str, int], Sequence[str], int], PairCounts] = SlowPairCounts,
) -> list[str]:
    """A vocabulary of exactly `size` pieces: specials, alphabet, then merges of the most frequent neighbors.

    Ties go to the pair of strings that sorts first. Words with a character cut from the alphabet are skipped.
    `vocabulary/merges.py` has the fast twin of `SlowPairCounts`; `watch` is called with the number of pieces so far.
    """
    alphabet = sorted(by_count(character_counts(word_counts))[:alphabet_limit])
    vocabulary = dict.fromkeys([*specials, *(piece for char in alphabet for piece in (char, f"##{char}"))])
    if len(vocabulary) > size:
        raise RequestError(
            f"a vocabulary of {size:,} cannot hold {len(specials)} special pieces and two forms of "
            f"{len(alphabet):,} characters; ask for at least {len(vocabulary):,} or lower the alphabet limit"
        )
    pairs = count_pairs(word_counts, alphabet, min_count)
    while len(vocabulary) < size:
        pair = pairs.most_frequent()
        if pair is None:
            raise RequestError(
                f"this corpus gives at most {len(vocabulary):,} pieces and {size:,} were asked for; "
                f"ask for {len(vocabulary):,} or fewer, give more text or lower the minimum count"
            )
        vocabulary.setdefault(pairs.merge(*pair))
        if watch:
            watch(len(vocabulary))
    return list(vocabulary)


def character_counts(word_counts: Mapping[str, int]) -> Counter[str]:
    """The count of each character in all words."""
    counts: Counter[str] = Counter()
    for word, count in word_counts.items():
        for char in word:
            counts[char] += count
    return counts


def by_count(counts: Counter[str]) -> list[str]:
    """The most frequent first; ties in code point order."""
    return sorted(counts, key=lambda char: (-counts[char], char))


def joined(pair: Pair) -> str:
    """The piece that two neighbors make: ("play", "##ing") -> "playing", ("##a", "##b") -> "##ab"."""
    return pair[0] + pair[1].removeprefix("##")


def _merge(pieces: list[str], pair: Pair) -> list[str]:
    """The pieces with every occurrence of the pair merged, from left to right."""
    merged: list[str] = []
    i = 0
    while i < len(pieces):
        matches = tuple(pieces[i : i + 2]) == pair
        merged.append(joined(pair) if matches else pieces[i])
        i += 2 if matches else 1
    return merged


def _pieces(word: Word, vocab: Container[str], shift: int, number: int) -> list[Piece]:
    texts = longest_match(word.text, vocab)
    ends = list(accumulate(len(text) - 2 if i else len(text) for i, text in enumerate(texts)))
    ends[-1] = len(word.text)  # the unknown piece covers the whole word
    pieces, start = [], 0
    for text, end in zip(texts, ends, strict=True):
        pieces.append(Piece(text, shift + word.spans[start][0], shift + word.spans[end - 1][1], number))
        start = end
    return pieces


def _split_at(specials: Sequence[str], text: str) -> list[str]:
    longest_first = sorted(specials, key=len, reverse=True)
    return re.split(f"({'|'.join(map(re.escape, longest_first))})", text) if specials else [text]


def _runs(letters: list[Letter]) -> list[list[Letter]]:
    """Split at spaces, which are dropped, and around punctuation, which is kept."""
    runs: list[list[Letter]] = []
    in_word = False
    for letter in letters:
        is_separate = letter[0] == " " or _is_punctuation(letter[0])
        if letter[0] != " ":
            if in_word and not is_separate:
                runs[-1].append(letter)
            else:
                runs.append([letter])
        in_word = not is_separate
    return runs


def _word(run: list[Letter]) -> Word:
    chars, spans = zip(*run, strict=True)
    return Word("".join(chars), spans[0][0], spans[-1][1], spans)


def _cleaned(text: str) -> list[Letter]:
    """All white space is converted to spaces; control and private characters, NUL and U+FFFD are dropped."""
    letters = ((_clean(char), (i, i + 1)) for i, char in enumerate(text))
    return [letter for letter in letters if letter[0]]


def _spaced(letters: list[Letter]) -> list[Letter]:
    return [(char, span) for letter, span in letters for char in (f" {letter} " if _is_cjk(letter) else letter)]


def _decomposed(letters: list[Letter]) -> list[Letter]:
    """Canonical decomposition (NFD): every character in its parts, then runs of marks sorted by class.

    As in the fast tokenizer, origins are assigned after the sorting, in the order of the original text.
    """
    parts = [(part, i == 0) for char, _ in letters for i, part in enumerate(_decomposition(char))]
    classes = [_combining_class(part) for part, _ in parts]
    starters = accumulate(order == 0 for order in classes)
    in_order = sorted(zip(starters, classes, range(len(parts)), strict=True))
    parts = [parts[i] for _, _, i in in_order]
    origins = accumulate(is_first for _, is_first in parts)
    return [(part, letters[origin - 1][1]) for (part, _), origin in zip(parts, origins, strict=True)]


@lru_cache(maxsize=1 << 16)
def _clean(char: str) -> str:
    if char in "\t\n\r" or _category(char) in ("Zs", "Zl", "Zp"):
        return " "
    return "" if char == "\ufffd" or _category(char) in ("Cc", "Cf", "Co") else char


@lru_cache(maxsize=1 << 16)
def _is_cjk(char: str) -> bool:
    return _within(char, CJK_RANGES)


@lru_cache(maxsize=1 << 16)
def _is_punctuation(char: str) -> bool:
    """ASCII characters that are neither letters nor digits ($, +, ~ too), and Unicode's punctuation."""
    return char in string.punctuation or _category(char).startswith("P")


@lru_cache(maxsize=1 << 16)
def _category(char: str) -> str:
    return "Lo" if _within(char, ADDED_AFTER_8) else RECATEGORIZED.get(char) or unicodedata.category(char)


@lru_cache(maxsize=1 << 16)
def _decomposition(char: str) -> str:
    return char if _within(char, ADDED_AFTER_9) else unicodedata.normalize("NFD", char)


@lru_cache(maxsize=1 << 16)
def _combining_class(char: str) -> int:
    return 0 if _within(char, ADDED_AFTER_9) else unicodedata.combining(char)


@lru_cache(maxsize=1 << 16)
def _lower(char: str) -> str:
    """One character in lower case; without the rule for the final sigma, which depends on its neighbors."""
    for capitals, first_lower in LOWERCASE.items():
        if _within(char, capitals):
            return chr(first_lower + ord(char) - _ranges(capitals)[0][0])
    return char.lower()


def _within(char: str, ranges: str) -> bool:
    """Whether a character is in one of the ranges, which are in ascending order."""
    table = _ranges(ranges)
    nearest = bisect_right(table, ord(char), key=lambda ends: ends[0]) - 1
    return nearest >= 0 and ord(char) <= table[nearest][1]


@cache
def _ranges(text: str) -> tuple[Span, ...]:
    bounds = (item.split("-") for item in text.split())
    return tuple((int(ends[0], 16), int(ends[-1], 16)) for ends in bounds)
