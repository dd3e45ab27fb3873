"""Pairs and pieces: the readable twins and the array versions agree exactly, and labels mean what they say."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_corpus import corpus_of, random_corpus

from bertkit.errors import RequestError
from bertkit.pretraining.examples.random import draw, uniform
from bertkit.pretraining.examples.spans import Pieces, Rolls, Spans, cut_document, draw_rolls, fill, shortened, split
from bertkit.pretraining.objectives.nsp import NextSentence, next_sentence
from bertkit.pretraining.objectives.sop import SentenceOrder, sentence_order

SHORT = 0.1
lengths = st.lists(st.lists(st.integers(0, 30), max_size=8), min_size=2, max_size=5)


def documents_of(corpus, spans: Spans) -> list[list[list[int]]]:
    """The sentences that spans are made of, as lists."""
    bounds = spans.borders.tolist()
    return [
        [corpus.ids[bounds[at] : bounds[at + 1]].tolist() for at in range(first, behind)]
        for first, behind in pairwise(spans.documents.tolist())
    ]


def texts(corpus, ranges) -> list[list[list[int]]]:
    """The text of every part of every example."""
    return [
        [corpus.ids[start : start + length].tolist() for start, length in zip(*row, strict=True)]
        for row in zip(ranges.starts, ranges.lengths, strict=True)
    ]


@given(st.integers(0, 1000), st.integers(1, 200), st.floats(0, 1, exclude_max=True))
def test_a_document_is_cut_into_few_pieces_that_leave_nothing_out(tokens, room, roll):
    pieces = cut_document(tokens, room, roll)
    assert [at for start, stop in pieces for at in range(start, stop)] == list(range(tokens))
    assert all(0 < stop - start <= room for start, stop in pieces)
    assert len(pieces) == -(-tokens // room)


@given(lengths, st.integers(1, 50), st.integers(0, 1000))
def test_pieces_equal_their_twin(documents, room, seed):
    corpus = corpus_of(documents)
    pieces = Pieces(corpus.sentence_starts[corpus.document_starts], room)
    key = draw(seed, 0)
    ranges = pieces.ranges(np.arange(len(pieces)), key)
    slow = []
    for number, (start, stop) in enumerate(pairwise(pieces.documents.tolist())):
        roll = float(uniform(draw(key, number))[0])
        slow += [(start + low, high - low) for low, high in cut_document(stop - start, room, roll)]
    assert list(zip(ranges.starts[:, 0].tolist(), ranges.lengths[:, 0].tolist(), strict=True)) == slow


@given(lengths, st.integers(2, 50))
def test_spans_are_the_sentences_in_order_and_as_full_as_can_be(documents, room):
    corpus = corpus_of(documents)
    spans = Spans.pack(corpus, room)
    sentences = documents_of(corpus, spans)
    assert all(0 < len(sentence) <= room for document in sentences for sentence in document)
    assert [t for document in sentences for s in document for t in s] == corpus.ids.tolist()  # nothing dropped
    expected = []
    for document in sentences:
        while document:
            taken = fill(document, room)
            expected.append(taken)
            document = document[len(taken) :]
    bounds = spans.borders.tolist()
    found = [corpus.ids[bounds[a] : bounds[b]].tolist() for a, b in zip(spans.firsts, spans.stops, strict=True)]
    assert found == [[t for s in span for t in s] for span in expected if sum(map(len, span)) > 1]


@given(lengths, st.integers(2, 50), st.integers(0, 1000))
def test_pairs_equal_their_twins(documents, room, seed):
    corpus = corpus_of(documents)
    spans = Spans.pack(corpus, room)
    numbers = np.arange(len(spans))
    rolls = draw_rolls(draw(seed, numbers))
    targets = shortened(room, rolls, 0.5)
    order = SentenceOrder().ranges(spans, numbers, rolls, 0.5)
    several = len(spans.documents) > 2
    follow = NextSentence().ranges(spans, numbers, rolls, 0.5) if several else None
    sentences, home = documents_of(corpus, spans), spans.document(numbers)
    for at in numbers.tolist():
        mine = Rolls(*(float(roll[at]) for roll in rolls))
        first = int(spans.documents[home[at]])
        span, target = slice(int(spans.firsts[at]) - first, int(spans.stops[at]) - first), int(targets[at])
        expected = sentence_order(mine, sentences[home[at]][span], target)
        assert (*texts(corpus, order)[at], order.labels[at]) == expected
        if follow is not None:
            expected = next_sentence(mine, sentences, int(home[at]), span, target)
            assert (*texts(corpus, follow)[at], follow.labels[at]) == expected


def test_fill_cuts_only_when_it_must():
    assert fill([[1, 2], [3, 4], [5]], 4) == [[1, 2], [3, 4]]
    assert fill([[1, 2], [3, 4]], 3) == [[1, 2]]
    assert fill([[1, 2, 3]], 2) == [[1, 2]]
    assert fill([[1], [2, 3, 4]], 3, least=2) == [[1], [2, 3]]
    assert fill([[1]], 5, least=2) == [[1]]


def test_a_lone_sentence_is_split_in_its_middle():
    assert split([[1, 2, 3, 4, 5]], 0.9) == ([1, 2], [3, 4, 5])
    assert split([[1], [2], [3]], 0.0) == ([1], [2, 3])
    assert split([[1], [2], [3]], 0.99) == ([1, 2], [3])


@pytest.fixture(scope="module")
def many():
    """30,000 pairs of spans of up to 125 tokens, every token distinct, and where each document ends."""
    corpus = random_corpus(6_000)
    spans = Spans.pack(corpus, 125)
    numbers = np.arange(len(spans)).repeat(2)
    rolls = draw_rolls(draw(3, np.arange(len(numbers))))
    assert len(numbers) > 30_000
    return corpus, spans, numbers, rolls


def test_half_of_the_sentences_are_next_and_the_others_from_other_documents(many):
    corpus, spans, numbers, rolls = many
    ranges = NextSentence().ranges(spans, numbers, rolls, SHORT)
    ends = corpus.sentence_starts[corpus.document_starts]
    documents = np.searchsorted(ends, ranges.starts, side="right") - 1
    other = ranges.labels == 1
    assert abs(other.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(other))  # 1.1 points at 30,000
    assert (documents[other, 0] != documents[other, 1]).all()
    assert np.isin(ranges.starts[other, 1], corpus.sentence_starts).mean() > 0.99  # the rest: in over-long sentences
    follows = ranges.starts[:, 0] + ranges.lengths[:, 0] == ranges.starts[:, 1]
    assert follows[~other].all()
    assert (ranges.starts + ranges.lengths <= ends[documents + 1]).all()  # no text reaches into the next document
    assert abs(ranges.lengths[other, 0].mean() - ranges.lengths[~other, 0].mean()) < 1  # A gives nothing away
    assert np.unique(documents[other, 1]).size > 5_000  # they come from everywhere


def test_order_is_swapped_half_of_the_time_and_always_adjacent(many):
    _, spans, numbers, rolls = many
    ranges = SentenceOrder().ranges(spans, numbers, rolls, SHORT)
    swapped = ranges.labels == 1
    assert abs(swapped.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(swapped))
    stops = ranges.starts + ranges.lengths
    assert (stops[~swapped, 0] == ranges.starts[~swapped, 1]).all()
    assert (stops[swapped, 1] == ranges.starts[swapped, 0]).all()


def test_a_tenth_is_short(many):
    _, spans, _, rolls = many
    room = shortened(spans.room, rolls, SHORT)
    assert abs((room < spans.room).mean() - SHORT * 123 / 124) < 0.007
    assert room.min() == 2
    short = room[room < spans.room]
    assert abs(short.mean() - 63) < 3  # even over 2..124


@pytest.mark.parametrize("ranges_of", [NextSentence().ranges, SentenceOrder().ranges])
def test_pairs_fit_and_have_text_on_both_sides(many, ranges_of):
    _, spans, numbers, rolls = many
    ranges = ranges_of(spans, numbers, rolls, SHORT)
    assert ranges.lengths.min() >= 1
    assert (ranges.lengths.sum(axis=1) <= shortened(spans.room, rolls, SHORT)).all()


def test_next_sentence_needs_another_document():
    with pytest.raises(RequestError, match="the shards hold 1 with text; put a blank line between documents"):
        NextSentence().check_spans(Spans.pack(corpus_of([[5, 6], [0], []]), 10))
    NextSentence().check_spans(Spans.pack(corpus_of([[5, 6], [1]]), 10))
