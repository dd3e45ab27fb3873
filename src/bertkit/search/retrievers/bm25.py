"""BM25 (Robertson 1994) by Lucene's formula: the baseline that needs no model.

score = sum over the query's words of idf * tf / (tf + k1 * (1 - b + b * length / mean length)), with
idf = ln(1 + (N - n + 0.5) / (n + 0.5)) over the N documents of the whole index, n of which have the word.

Words are runs of letters, digits and marks after NFKC and case folding, without stop words and stemming. In scripts
that have no spaces between words, each character is a word.
"""

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from bertkit.search.arrays import ArrayWriter, open_array
from bertkit.search.retrievers.postings import Postings, PostingsWriter
from bertkit.search.retrievers.retriever import NO_HITS, Hits, Retriever, Segment, best, joined
from bertkit.settings import NotNegative, Range, check_fields
from bertkit.text.characters import UNSPACED

ANALYZER = "nfkc-casefold-words-1"  # changes with the words that a text has
ASCII_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, kw_only=True)
class Bm25Settings:
    """Lucene's defaults."""

    k1: NotNegative = 1.2  # how soon more of the same word adds nothing
    b: Annotated[float, Range(0, 1)] = 0.75  # how much longer documents are held back

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Bm25Part:
    """Frequencies of words in one segment, and the number of words of each document."""

    postings: Postings
    lengths: NDArray[np.uint32]
    words: int  # of all documents together


class Bm25(Retriever[Bm25Part]):
    """The retriever of words in common."""

    settings_type = Bm25Settings

    @property
    def identity(self) -> Mapping[str, str]:
        """The analyzer and the settings."""
        return {"analyzer": ANALYZER, **{name: str(value) for name, value in asdict(self.settings).items()}}

    def writer(self, folder: Path) -> "Bm25Writer":
        """Counts the words of a segment."""
        return Bm25Writer(folder)

    def open(self, folder: Path) -> Bm25Part:
        """The postings and lengths."""
        lengths = open_array(folder / "lengths.npy")
        return Bm25Part(Postings.open(folder), lengths, int(lengths.sum(dtype=np.int64)))

    def search(self, segments: Sequence[Segment[Bm25Part]], queries: Sequence[str], k: int) -> list[Hits]:
        """Documents without any of the query's words are not found."""
        return [self._search(segments, words_of(query), k) for query in queries]

    def _search(self, segments: Sequence[Segment[Bm25Part]], words: Sequence[str], k: int) -> Hits:
        counts = Counter(words)
        keys = np.array([word_key(word) for word in counts], np.uint64)
        found = [segment.part.postings.find(keys) for segment in segments]
        documents = sum(segment.documents for segment in segments)
        if not documents or not counts:
            return NO_HITS
        mean = sum(segment.part.words for segment in segments) / documents
        with_word = np.array([sum(len(one[n][0]) for one in found) for n in range(len(keys))])
        idf = np.log1p((documents - with_word + 0.5) / (with_word + 0.5)) * list(counts.values())
        return joined([self._hits(*pair, idf, mean, k) for pair in zip(segments, found, strict=True)], k)

    def _hits(
        self, segment: Segment[Bm25Part], found: Sequence[tuple[Any, Any]], idf: NDArray[Any], mean: float, k: int
    ) -> Hits:
        """The best documents of one segment, which `found` has for each word."""
        scores = np.zeros(segment.documents)
        for weight, (documents, frequencies) in zip(idf, found, strict=True):
            lengths = segment.part.lengths[documents] / mean
            rest = self.settings.k1 * (1 - self.settings.b + self.settings.b * lengths)
            scores[documents] += weight * frequencies / (frequencies + rest)
        numbers = np.flatnonzero(scores)
        return best(segment.first + numbers, scores[numbers], k)


class Bm25Writer:
    """Words of a segment's documents, as postings."""

    def __init__(self, folder: Path) -> None:
        self._postings = PostingsWriter(folder)
        self._lengths = ArrayWriter(folder / "lengths.npy", "<u4")
        self._keys: dict[str, int] = {}

    def add(self, texts: Sequence[str]) -> None:
        """Count each occurrence of each word once; the postings sum them."""
        words = [words_of(text) for text in texts]
        lengths = np.array([len(each) for each in words], np.uint32)
        documents = np.repeat(np.arange(self._lengths.rows, self._lengths.rows + len(texts)), lengths)
        keys = np.fromiter((self._key(word) for each in words for word in each), np.uint64, len(documents))
        self._postings.add(keys, documents, np.ones(len(keys)))
        self._lengths.append(lengths)

    def finish(self) -> None:
        """Write the postings."""
        self._postings.finish()
        self._lengths.close()

    def _key(self, word: str) -> int:
        if word not in self._keys:
            self._keys[word] = word_key(word)
        return self._keys[word]


def words_of(text: str) -> list[str]:
    """The words of a text.

    >>> words_of("Café-Straße, 2nd")
    ['café', 'strasse', '2nd']
    """
    if text.isascii():
        return ASCII_WORD.findall(text.lower())
    return _word().findall(unicodedata.normalize("NFKC", text).casefold())


@cache
def _word() -> re.Pattern[str]:
    r"""One character of a script without spaces, or a run of others with their marks, which Python's \w lacks."""
    marks = "".join(char for char in map(chr, range(sys.maxunicode)) if unicodedata.category(char)[0] == "M")
    alone = UNSPACED.pattern
    return re.compile(f"{alone}[{marks}]*|(?:(?!{alone})(?:[^\\W_]|[{marks}]))+")


def word_key(word: str) -> int:
    """64 bits of a word's hash: of a million words, two share a key with a probability of 3 in 100 million."""
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
