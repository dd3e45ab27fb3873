"""Length policies: nothing skipped, nothing too long, and what was cut is said."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.examples import AnswerSpan, QuestionExample, TaggedExample
from bertkit.data.tables import Location
from bertkit.errors import RequestError
from bertkit.tasks.answer import Answer
from bertkit.tasks.shared.length import (
    ALL_KINDS,
    TRUNCATING_KINDS,
    WINDOWED_KINDS,
    LengthPolicy,
    Seen,
    check_policy,
    count_seen,
    divide_room,
    positions_by_part,
    refuse_too_long,
    select_tokens,
    sequence_positions,
    truncate,
    window_spans,
)
from bertkit.tasks.table import TASKS
from bertkit.tasks.tag import Tag
from bertkit.text.tokenizer import Encoding
from bertkit.text.windows import best_window, window_cuts


def encoding_of(first, second=None, *, between=1):
    """An encoding of so many tokens; `between` separators as BERT (1) or RoBERTa (2) place them."""
    words = [None, *range(first), None]
    if second is not None:
        words += [None] * (between - 1) + [*range(second), None]
    length = len(words)
    segments = tuple(int(second is not None and place > first + 1) for place in range(length))
    return Encoding(tuple(range(100, 100 + length)), segments, ((0, 0),) * length, tuple(words))


encodings = st.one_of(
    st.builds(encoding_of, st.integers(0, 120)),
    st.builds(encoding_of, st.integers(0, 80), st.integers(0, 80), between=st.sampled_from([1, 2])),
)
strides = st.none() | st.integers(0, 200)


@given(encodings, st.integers(8, 60), st.sampled_from(WINDOWED_KINDS), strides)
def test_every_token_is_in_a_window(encoding, limit, kind, stride):
    chosen = sequence_positions(encoding, limit, LengthPolicy(kind, stride))
    wiring, first, second = positions_by_part(encoding)
    assert all(len(places) <= limit for places in chosen)
    assert all(set(wiring) <= set(places) and list(places) == sorted(set(places)) for places in chosen)
    shown = set().union(*chosen)
    longer, shorter = (first, second) if len(first) > len(second) else (second, first)
    assert set(longer) <= shown
    missing = [place for place in shorter if place not in shown]
    assert not missing or len(shorter) > (limit - len(wiring)) // 2
    assert count_seen(encoding, chosen) == Seen(len(first) + len(second), len(missing), len(chosen))
    if len(encoding) <= limit:
        assert chosen == [tuple(range(len(encoding)))]


@given(encodings, st.integers(8, 60), st.sampled_from(TRUNCATING_KINDS))
def test_a_cut_fills_the_limit_from_the_right_side(encoding, limit, kind):
    [places] = sequence_positions(encoding, limit, LengthPolicy(kind))
    wiring, first, second = positions_by_part(encoding)
    assert len(places) == min(limit, len(encoding))
    assert set(wiring) <= set(places)
    for text in (first, second):
        stays = [place in places for place in text]
        if kind == "head":
            assert stays == sorted(stays, reverse=True)
        if kind == "tail":
            assert stays == sorted(stays)
        if kind == "head-tail":
            lost = [place for place, stay in enumerate(stays) if not stay]
            assert lost == list(range(lost[0], lost[-1] + 1) if lost else [])
            assert not lost or len(stays) - 1 - lost[-1] >= lost[0], "the tail gets more"
    assert count_seen(encoding, [places]).cut == len(encoding) - len(places)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_shares_are_cut_token_by_token_from_the_longer(first, second, room):
    left, right = first, second
    while left + right > room:
        left, right = (left - 1, right) if left > right else (left, right - 1)
    assert divide_room(first, second, room) == (left, right)


@given(st.integers(0, 200), st.integers(1, 50), strides)
def test_no_stride_skips_a_place_and_each_is_served_once(length, room, stride):
    spans = window_spans(length, room, stride)
    assert set().union(*(range(a, b) for a, b in spans)) == set(range(length))
    assert all(0 <= b - a <= room for a, b in spans)
    assert len(spans) <= 1 + max(0, length) // max(1, room // 4)
    cuts = window_cuts(spans)
    assert cuts[0] == 0
    assert cuts[-1] == length
    assert cuts == sorted(cuts)
    for place in range(length):
        start, stop = spans[best_window(spans, place)]
        assert start <= place < stop


def test_take_keeps_ids_and_segments_together():
    encoding = encoding_of(2, 3)
    assert select_tokens(encoding, [0, 1, 3, 6, 7]) == ((100, 101, 103, 106, 107), (0, 0, 0, 1, 1))
    assert select_tokens(encoding, range(8)) == (encoding.ids, encoding.segments)


def test_kept():
    assert truncate(10, 4, "head") == [0, 1, 2, 3]
    assert truncate(10, 4, "tail") == [6, 7, 8, 9]
    assert truncate(10, 4, "head-tail") == [0, 7, 8, 9]
    assert truncate(10, 0, "tail") == []
    assert truncate(3, 4, "tail") == [0, 1, 2]


def test_a_huge_document_is_spread_in_no_time():
    encoding = encoding_of(300_000)
    start = time.perf_counter()
    chosen = sequence_positions(encoding, 512, LengthPolicy("windows"))
    assert time.perf_counter() - start < 5
    assert count_seen(encoding, chosen).cut == 0


def test_what_was_seen_is_said():
    assert str(Seen(10)) == "read whole"
    assert str(Seen(600, 90)) == "90 of 600 tokens were cut"
    assert str(Seen(600, 0, 3)) == "read through 3 windows"
    assert str(Seen(600, 9, 3)) == "read through 3 windows, 9 of 600 tokens were cut"


def test_policies_travel_in_json():
    for kind in ALL_KINDS:
        policy = LengthPolicy(kind, 5, "max")
        assert LengthPolicy.from_json(policy.to_json()) == policy
    assert LengthPolicy.from_json({}) == LengthPolicy()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("head", "the length policy is 'head', not a table"),
        ({"kind": "chop"}, "unknown length policy 'chop'; choose from: head, head-tail, hierarchical, tail, windows"),
        ({"kind": ["head"]}, "unknown length policy"),
        ({"pool": "sum"}, "unknown pooling of windows 'sum'; choose from: max, mean"),
        ({"stride": -1}, "stride=-1 must be a whole number from 0"),
        ({"stride": True}, "stride=True must be a whole number"),
        ({"stride": 1.5}, "stride=1.5 must be a whole number"),
        ({"room": 1}, "unknown setting of the length policy 'room'; choose from: kind, pool, stride"),
    ],
)
def test_bad_policies_are_refused(content, message):
    with pytest.raises(RequestError, match=message):
        LengthPolicy.from_json(content)


def test_every_task_has_a_policy_it_accepts():
    for row in TASKS.values():
        check_policy(row.name, row.length, allowed=row.length_kinds)
    with pytest.raises(RequestError, match="length policy 'head' does not go with 'tag'; choose from: windows"):
        check_policy("tag", LengthPolicy("head"), allowed=TASKS["tag"].length_kinds)
    with pytest.raises(RequestError, match="sequences of 7 tokens leave no room for text; allow 8 or more"):
        check_policy("tag", LengthPolicy("windows"), 7)


@pytest.mark.parametrize(
    ("windows", "limit", "fits"), [(1, 100_000, True), (128, 512, True), (129, 512, False), (4000, 16, True)]
)
def test_a_text_over_what_memory_holds_is_refused_by_its_line(windows, limit, fits):
    place = Location(Path("train.tsv"), 7)
    if fits:
        refuse_too_long(place, 9, windows, limit, "split it")
    else:
        with pytest.raises(
            RequestError, match=r"^train.tsv, line 7: a text of 9 tokens takes 129 windows, over the 128 "
        ):
            refuse_too_long(place, 9, windows, limit, "split it")


@pytest.mark.parametrize("task", ["tag", "answer"])
def test_a_million_characters_to_learn_from_are_refused_and_to_answer_about_are_not(task):
    words = ("ada", "lives", "in", "rome") * 20_000
    place = Location(Path("train"), 3)
    if task == "tag":
        asked = Tag(tokenizer=tiny.tokenizer(), limit=64, labels=("O", "B-X"))
        known, unknown = TaggedExample(words, ("O",) * len(words), place), TaggedExample(words, None, place)
    else:
        asked = Answer(tokenizer=tiny.tokenizer(), limit=64)
        known = QuestionExample("1", "who ?", " ".join(words), (AnswerSpan(0, "ada"),), "", place)
        unknown = replace(known, answers=(), labeled=False)
    with pytest.raises(RequestError, match="^train, line 3: a text of 80,000 tokens takes "):
        asked.windows(known, 0)
    assert len(asked.windows(unknown, 0)) > 1000
