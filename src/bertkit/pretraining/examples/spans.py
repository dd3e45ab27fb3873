"""The texts of examples as ranges of the corpus: pieces of documents, or spans of whole sentences for pairs.

Positions count the tokens of the whole corpus. The readable references work on lists, one document at a time; the
versions used in training work on arrays, for all examples of a block at once.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertkit.pretraining.examples.random import Bits, Floats, Ints, below, draw, uniform
from bertkit.text.tokenizer import Tokenizer

Roll = TypeVar("Roll", float, Floats)

SENTENCES_AT_ONCE = 1 << 20  # bounds the memory of packing spans


class Corpus(Protocol):
    """The interface of `text.shards.ShardSet` that the loader needs."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the corpus."""

    @property
    def sentence_starts(self) -> Ints:
        """S+1: the first token of each sentence, and the end."""

    @property
    def document_starts(self) -> Ints:
        """D+1: the number of each document's first sentence, and the number of all sentences."""

    @property
    def entities(self) -> Ints:
        """E 2: start and end of each name, in order; read for masking=entity only."""

    def gather(self, starts: Ints, lengths: Ints) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """The ids of many ranges, concatenated, and a flag for each id that starts a word."""


class Ranges(NamedTuple):
    """The text of N examples: tokens [start, start + length) for each of their P parts; a pair has two."""

    starts: Ints  # N P
    lengths: Ints  # N P
    labels: Ints | None = None  # N


def cut_document(tokens: int, room: int, roll: float) -> list[tuple[int, int]]:
    """The fewest consecutive pieces of at most `room` tokens; `roll` (0..1) decides the length of the first one."""
    count = -(-tokens // room)
    slack = count * room - tokens
    phase = int(roll * (slack + 1))
    cuts = [0, *(number * room - phase for number in range(1, count)), tokens]
    return list(pairwise(cuts)) if count else []


@dataclass(frozen=True)
class Pieces:
    """All documents cut into consecutive pieces by `cut_document`: the cuts vary, the number of pieces does not."""

    documents: Ints  # D+1: the first token of each document, and the end
    room: int

    @cached_property
    def firsts(self) -> Ints:
        """D+1: the number of each document's first piece, and the number of all pieces."""
        return _offsets(-(-np.diff(self.documents) // self.room))

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def document(self, numbers: Ints) -> Ints:
        """The document of each piece."""
        return np.searchsorted(self.firsts, numbers, side="right").astype(np.int64) - 1

    def ranges(self, numbers: Ints, keys: Bits) -> Ranges:
        """The ranges of pieces; cuts are drawn from key and document, so pieces with the same key do not overlap."""
        document = self.document(numbers)
        first, count = self.firsts[document], self.firsts[document + 1] - self.firsts[document]
        start, stop = self.documents[document], self.documents[document + 1]
        phase = below(uniform(draw(keys, document)), count * self.room - (stop - start) + 1)
        cut = start - phase + (numbers - first) * self.room
        starts = np.maximum(cut, start)
        return Ranges(starts[:, None], (np.minimum(cut + self.room, stop) - starts)[:, None])


class Rolls(NamedTuple, Generic[Roll]):
    """The random numbers of one pair, each in [0, 1); or arrays with one entry per pair."""

    short: Roll
    target: Roll
    split: Roll
    label: Roll
    document: Roll
    sentence: Roll


def draw_rolls(keys: Bits) -> Rolls[Floats]:
    """Six random numbers for each key."""
    return Rolls(*uniform(draw(keys[:, None], np.arange(len(Rolls._fields)))).T)


def fill(sentences: Sequence[Sequence[int]], room: int, least: int = 1) -> list[Sequence[int]]:
    """The first whole sentences that fit; a sentence is cut only if fewer than `least` tokens would be taken."""
    taken: list[Sequence[int]] = []
    left = room
    for sentence in sentences:
        if len(sentence) > left:
            return taken if room - left >= least else [*taken, sentence[:left]]
        taken.append(sentence)
        left -= len(sentence)
    return taken


def split(sentences: Sequence[Sequence[int]], roll: float) -> tuple[list[int], list[int]]:
    """Texts A and B of a span: split at a random sentence border, or in the middle of a single sentence."""
    if len(sentences) == 1:
        middle = len(sentences[0]) // 2
        return list(sentences[0][:middle]), list(sentences[0][middle:])
    cut = 1 + int(roll * (len(sentences) - 1))
    return [t for s in sentences[:cut] for t in s], [t for s in sentences[cut:] for t in s]


def shortened(room: int, rolls: Rolls[Floats], share: float) -> Ints:
    """The maximum length of each pair: `room`, or for a `share` of the pairs 2..room, so that short texts occur too."""
    return np.where(rolls.short < share, 2 + below(rolls.target, room - 1), room)


@dataclass(frozen=True)
class Spans:
    """The corpus packed into spans: consecutive sentences of one document, as many as fit `room` tokens.

    The spans of a corpus are fixed; how each one is split, and with which text it is paired, varies.
    """

    borders: Ints  # S+1: starts of sentences; too long ones are cut into equal parts, empty ones are left out
    documents: Ints  # D+1: the number of each document's first sentence
    firsts: Ints  # K: the number of each span's first sentence
    stops: Ints  # K: the number of the first sentence after it
    room: int

    @classmethod
    def pack(cls, corpus: Corpus, room: int) -> "Spans":
        """Pack a corpus. Spans of a single token are left out, because a pair needs two."""
        borders, documents = cut_sentences(corpus.sentence_starts, corpus.document_starts, room)
        firsts = _span_starts(borders, documents, room)
        stops = np.append(firsts[1:], len(borders) - 1)
        pairs = borders[stops] - borders[firsts] >= 2
        return cls(borders, documents, firsts[pairs], stops[pairs], room)

    def __len__(self) -> int:
        return len(self.firsts)

    def document(self, numbers: Ints) -> Ints:
        """The document of each span."""
        return np.searchsorted(self.documents, self.firsts[numbers], side="right").astype(np.int64) - 1

    def fill(self, starts: Ints, stops: Ints, room: Ints, least: int = 1) -> tuple[Ints, Ints]:
        """(end of each text, number of its last border): `fill` for ranges [start, stop) between borders."""
        limit = np.minimum(starts + room, stops)
        last = np.searchsorted(self.borders, limit, side="right") - 1
        whole = self.borders[last]
        return np.where(whole - starts >= least, whole, limit), last

    def split(self, numbers: Ints, room: Ints, rolls: Floats) -> tuple[Ints, Ints, Ints]:
        """(start, cut, stop) of each span: `fill` to its `room`, then `split`."""
        first = self.firsts[numbers]
        start = self.borders[first]
        stop, last = self.fill(start, self.borders[self.stops[numbers]], room, least=2)
        inner = last - first - (self.borders[last] == stop)
        border = self.borders[first + 1 + below(rolls, np.maximum(inner, 1)) * (inner > 0)]
        return start, np.where(inner > 0, border, start + (stop - start) // 2), stop


def cut_sentences(sentences: Ints, documents: Ints, room: int) -> tuple[Ints, Ints]:
    """The borders with sentences over `room` tokens cut into equal parts, without empty sentences and documents."""
    borders = sentences[np.append(True, np.diff(sentences) > 0)]
    lengths = np.diff(borders)
    long = np.flatnonzero(lengths > room)
    parts = -(-lengths[long] // room)
    owner = np.repeat(np.arange(len(long)), parts - 1)  # the long sentence of each cut
    number = np.arange(len(owner)) - _offsets(parts - 1)[owner] + 1
    cuts = borders[long[owner]] + number * lengths[long[owner]] // parts[owner]
    borders = np.insert(borders, long[owner] + 1, cuts)
    return borders, np.unique(np.searchsorted(borders, sentences[documents]))


def _span_starts(borders: Ints, documents: Ints, room: int) -> Ints:
    """The first sentence of every span, each span as long as possible, in one pass over the corpus."""
    firsts = array("q")
    sentence, count = 0, len(borders) - 1
    for chunk in range(0, count, SENTENCES_AT_ONCE):
        stop = min(chunk + SENTENCES_AT_ONCE, count)
        reach = np.searchsorted(borders, borders[chunk:stop] + room, side="right") - 1
        ends = documents[np.searchsorted(documents, np.arange(chunk, stop), side="right")]
        following = np.minimum(reach, ends).tolist()
        while sentence < stop:
            firsts.append(sentence)
            sentence = following[sentence - chunk]
    return np.array(firsts, dtype=np.int64)


def _offsets(counts: Ints) -> Ints:
    """The start of each run, and the end, from the lengths of the runs."""
    return np.concatenate(([0], np.cumsum(counts)))
