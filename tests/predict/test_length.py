from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.engine.batches import token_batches
from bertkit.errors import RequestError
from bertkit.text.length import report_lengths
from bertkit.text.windows import best_window, window_cuts, windows


@given(st.integers(0, 300), st.integers(1, 40), st.data())
def test_every_token_is_in_a_window(length, room, data):
    overlap = data.draw(st.integers(0, room - 1))
    spans = windows(length, room, overlap)
    assert spans[0][0] == 0
    assert spans[-1][1] == length
    assert all(stop - start <= room for start, stop in spans)
    for (_, stop), (start, _) in pairwise(spans):
        assert start <= stop - overlap, "neighbors share at least the overlap"
    assert len(spans) == len(set(spans))


@given(st.integers(1, 200), st.integers(2, 30), st.data())
def test_the_best_window_shows_most_of_the_poorer_side(length, room, data):
    spans = windows(length, room, room // 4)
    place = data.draw(st.integers(0, length - 1))
    start, stop = spans[best_window(spans, place)]
    assert start <= place < stop
    context = [min(place - a, b - 1 - place) for a, b in spans]
    assert min(place - start, stop - 1 - place) == max(context)


@given(st.integers(1, 300), st.integers(2, 40), st.data())
def test_cuts_are_the_best_windows_of_all_places_at_once(length, room, data):
    spans = windows(length, room, data.draw(st.integers(0, room - 1)))
    cuts = window_cuts(spans)
    served = [number for number, (start, stop) in enumerate(pairwise(cuts)) for _ in range(start, stop)]
    assert len(served) == length
    for place, number in enumerate(served):
        start, stop = spans[number]
        best = spans[best_window(spans, place)]
        assert min(place - start, stop - 1 - place) == min(place - best[0], best[1] - 1 - place)


def test_impossible_windows():
    with pytest.raises(RequestError, match="an overlap of 4 does not fit windows of 4 tokens"):
        windows(10, 4, 4)


def test_reports():
    report = report_lengths([3, 900, 5, 1200], 512, "truncate")
    assert str(report) == "2 texts were cut to 512 tokens; the longest, text 4 (counted from 1), has 1200"
    assert str(report_lengths([3], 512, "window")) == "no text is over 512 tokens"
    with pytest.raises(RequestError, match=r"text 2 \(counted from 1\) has 900 tokens, over the limit of 512"):
        report_lengths([3, 900], 512, "refuse")
    with pytest.raises(RequestError, match="unknown length policy 'chop'; choose from: refuse, truncate, window"):
        report_lengths([3], 512, "chop")


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 120))
def test_batches_hold_every_text_once_within_the_budget(lengths, budget):
    batches = list(token_batches(lengths, budget))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for number, batch in enumerate(batches):
        tokens = [lengths[index] for index in batch]
        assert len(batch) == 1 or sum(tokens) <= budget
        assert tokens == sorted(tokens, reverse=True)
        later = [lengths[index] for other in batches[number + 1 :] for index in other]
        assert not later or (max(later) <= tokens[0] and min(later) > budget - sum(tokens)), "what fits goes in"
