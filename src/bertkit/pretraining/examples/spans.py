"""Where examples lie in the corpus: pieces of documents, or spans of whole sentences for pairs.

Places count the tokens of the whole corpus. Readable twins work on lists, one document at a time; the
versions used in training work on arrays, and a block's worth of examples at a time.
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

CHUNK = 1 << 20  # sentences that are walked at a time, which bounds the memory


class Corpus(Protocol):
    """What examples are made from: all that `text.shards.ShardSet` is to the loader."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made it."""

    @property
    def sentence_starts(self) -> Ints:
        """S+1: where each sentence starts, and where the last one ends."""

    @property
    def document_starts(self) -> Ints:
        """D+1: the number of each document's first sentence, and of all sentences."""

    @property
    def entities(self) -> Ints:
        """E 2: where each name starts and ends, in order; asked for only when names are masked whole."""

    def gather(self, starts: Ints, lengths: Ints) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """The ids of many ranges end to end, and 1 for each that begins a word."""


class Ranges(NamedTuple):
    """The text of N examples: tokens [start, start + length) for each of their P parts; a pair has two."""

    starts: Ints  # N P
    lengths: Ints  # N P
    labels: Ints | None = None  # N


def cut_document(tokens: int, room: int, roll: float) -> list[tuple[int, int]]:
    """As few pieces of at most `room` tokens as do, end to end; `roll` says how much of the slack the first one has."""
    count = -(-tokens // room)
    slack = count * room - tokens
    phase = int(roll * (slack + 1))
    cuts = [0, *(number * room - phase for number in range(1, count)), tokens]
    return list(pairwise(cuts)) if count else []


@dataclass(frozen=True)
class Pieces:
    """Every document cut into consecutive pieces: `cut_document` for all. Cuts change, their number does not."""

    documents: Ints  # D+1: where each document starts, and where the last one ends
    room: int

    @cached_property
    def firsts(self) -> Ints:
        """D+1: the number of each document's first piece, and of all pieces."""
        return _offsets(-(-np.diff(self.documents) // self.room))

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def document(self, numbers: Ints) -> Ints:
        """Which document each piece is from."""
        return np.searchsorted(self.firsts, numbers, side="right").astype(np.int64) - 1

    def ranges(self, numbers: Ints, keys: Bits) -> Ranges:
        """Where pieces lie; the cuts are drawn from the key and the document, so that pieces with one key agree."""
        document = self.document(numbers)
        first, count = self.firsts[document], self.firsts[document + 1] - self.firsts[document]
        start, stop = self.documents[document], self.documents[document + 1]
        phase = below(uniform(draw(keys, document)), count * self.room - (stop - start) + 1)
        cut = start - phase + (numbers - first) * self.room
        starts = np.maximum(cut, start)
        return Ranges(starts[:, None], (np.minimum(cut + self.room, stop) - starts)[:, None])


class Rolls(NamedTuple, Generic[Roll]):
    """The random numbers of one pair, each in [0, 1); or arrays of them, one entry per pair."""

    short: Roll
    target: Roll
    split: Roll
    label: Roll
    document: Roll
    sentence: Roll


def draw_rolls(keys: Bits) -> Rolls[Floats]:
    """Six numbers for each key."""
    return Rolls(*uniform(draw(keys[:, None], np.arange(len(Rolls._fields)))).T)


def fill(sentences: Sequence[Sequence[int]], room: int, least: int = 1) -> list[Sequence[int]]:
    """Whole sentences from the first on, while they fit; one is cut only if fewer than `least` tokens would be left."""
    taken: list[Sequence[int]] = []
    left = room
    for sentence in sentences:
        if len(sentence) > left:
            return taken if room - left >= least else [*taken, sentence[:left]]
        taken.append(sentence)
        left -= len(sentence)
    return taken


def split(sentences: Sequence[Sequence[int]], roll: float) -> tuple[list[int], list[int]]:
    """Texts A and B of a span: apart at a random border of sentences, or in the middle of a lone sentence."""
    if len(sentences) == 1:
        middle = len(sentences[0]) // 2
        return list(sentences[0][:middle]), list(sentences[0][middle:])
    cut = 1 + int(roll * (len(sentences) - 1))
    return [t for s in sentences[:cut] for t in s], [t for s in sentences[cut:] for t in s]


def shortened(room: int, rolls: Rolls[Floats], share: float) -> Ints:
    """How long each pair may be: the whole room, but for a `share` 2..room, so that short texts are seen too."""
    return np.where(rolls.short < share, 2 + below(rolls.target, room - 1), room)


@dataclass(frozen=True)
class Spans:
    """The corpus packed into spans: consecutive sentences of one document, as many as fit `room` tokens.

    The spans of a corpus never change; what is made of each one, and beside which text it stands, does.
    """

    borders: Ints  # S+1: where sentences start; over-long ones are cut into equal parts, empty ones are left out
    documents: Ints  # D+1: the number of each document's first sentence
    firsts: Ints  # K: the number of each span's first sentence
    stops: Ints  # K: and of the first sentence behind it
    room: int

    @classmethod
    def pack(cls, corpus: Corpus, room: int) -> "Spans":
        """Pack a corpus. Spans of a single token are left out: a pair takes two."""
        borders, documents = cut_sentences(corpus.sentence_starts, corpus.document_starts, room)
        firsts = _walk(borders, documents, room)
        stops = np.append(firsts[1:], len(borders) - 1)
        pairs = borders[stops] - borders[firsts] >= 2
        return cls(borders, documents, firsts[pairs], stops[pairs], room)

    def __len__(self) -> int:
        return len(self.firsts)

    @property
    def lone(self) -> int:
        """How many spans are one sentence, which has no border to part it at and is split in its middle."""
        return int(np.count_nonzero(self.stops - self.firsts == 1))

    def document(self, numbers: Ints) -> Ints:
        """Which document each span is from."""
        return np.searchsorted(self.documents, self.firsts[numbers], side="right").astype(np.int64) - 1

    def fill(self, starts: Ints, stops: Ints, room: Ints, least: int = 1) -> tuple[Ints, Ints]:
        """Where each text ends, and its last border: `fill` for [start, stop), which are borders."""
        limit = np.minimum(starts + room, stops)
        last = np.searchsorted(self.borders, limit, side="right") - 1
        whole = self.borders[last]
        return np.where(whole - starts >= least, whole, limit), last

    def split(self, numbers: Ints, room: Ints, rolls: Floats) -> tuple[Ints, Ints, Ints]:
        """(start, cut, stop) of each span, filled to its `room` and then apart: `fill` and `split`."""
        first = self.firsts[numbers]
        start = self.borders[first]
        stop, last = self.fill(start, self.borders[self.stops[numbers]], room, least=2)
        inner = last - first - (self.borders[last] == stop)
        border = self.borders[first + 1 + below(rolls, np.maximum(inner, 1)) * (inner > 0)]
        return start, np.where(inner > 0, border, start + (stop - start) // 2), stop


def cut_sentences(sentences: Ints, documents: Ints, room: int) -> tuple[Ints, Ints]:
    """The same borders, with sentences over `room` tokens in equal parts, and without empty sentences and documents."""
    borders = sentences[np.append(True, np.diff(sentences) > 0)]
    lengths = np.diff(borders)
    long = np.flatnonzero(lengths > room)
    parts = -(-lengths[long] // room)
    which = np.repeat(np.arange(len(long)), parts - 1)
    number = np.arange(len(which)) - _offsets(parts - 1)[which] + 1
    cuts = borders[long[which]] + number * lengths[long[which]] // parts[which]
    borders = np.insert(borders, long[which] + 1, cuts)
    return borders, np.unique(np.searchsorted(borders, sentences[documents]))


def _walk(borders: Ints, documents: Ints, room: int) -> Ints:
    """The first sentence of every span, each as long as it can be; one walk through the corpus, made once."""
    firsts = array("q")
    at, count = 0, len(borders) - 1
    for chunk in range(0, count, CHUNK):
        stop = min(chunk + CHUNK, count)
        reach = np.searchsorted(borders, borders[chunk:stop] + room, side="right") - 1
        ends = documents[np.searchsorted(documents, np.arange(chunk, stop), side="right")]
        following = np.minimum(reach, ends).tolist()
        while at < stop:
            firsts.append(at)
            at = following[at - chunk]
    return np.array(firsts, dtype=np.int64)


def _offsets(counts: Ints) -> Ints:
    """Where each of many runs starts, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(counts)))
