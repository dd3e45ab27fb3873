"""Answers in passages: characters to tokens and back on any script, n-best over windows, and no answer at all."""

import json
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from span_helpers import ODD, PLACE, assert_near, byte_tokenizer, odd_words, outputs_of, pack, three_ways, tiny_model

from bertkit.data.examples import AnswerSpan, QuestionExample
from bertkit.errors import RequestError
from bertkit.tasks.answer import NO_SPAN_SCORE, Answer, best_spans, token_span
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.length import LengthPolicy, Seen
from bertkit.tasks.task import LossSettings
from bertkit.text.tokenizer import Tokenizer

PASSAGE = "Ada Lovelace was born in London in 1815. She wrote the first program for a machine that was never built."


@pytest.fixture(scope="module")
def tokenizer(uncased_vocab):
    return Tokenizer.from_vocab(uncased_vocab)


@pytest.fixture(scope="module", params=["wordpiece", "bytes"])
def any_tokenizer(request, tokenizer):
    return tokenizer if request.param == "wordpiece" else byte_tokenizer()


def task_of(tokenizer, limit=64, stride=None, **options):
    return Answer(tokenizer=tokenizer, limit=limit, length=LengthPolicy("windows", stride), **options)


def example_of(passage, *answers, question="who?", labeled=True):
    spans = tuple(AnswerSpan(passage.index(each), each) if isinstance(each, str) else each for each in answers)
    return QuestionExample("q1", question, passage, spans, "", PLACE, labeled)


def perfect(windows):
    """Outputs that are sure of the target, and surer of a span than of [CLS]."""
    rows = []
    for window in windows:
        logits = np.zeros((len(window.ids), 2), dtype=np.float32)
        for side, place in enumerate(window.target):
            logits[place, side] = 9 if place else 5
        rows.append(logits)
    return rows


passages = st.lists(odd_words, min_size=1, max_size=40)


@settings(max_examples=100)
@given(passages, st.integers(12, 40), st.data())
def test_answers_round_trip_on_odd_unicode(any_tokenizer, words, limit, data):
    passage = " ".join(words)
    limit *= 1 if any_tokenizer.lowercase else 4  # bytes are more
    first = data.draw(st.integers(0, len(words) - 1))
    last = min(first + data.draw(st.integers(0, 1)), len(words) - 1)
    start = len(" ".join([*words[:first], ""]))
    gold = AnswerSpan(start, " ".join(words[first : last + 1]))
    example = example_of(passage, gold)
    task = task_of(any_tokenizer, limit, max_answer_tokens=limit)
    windows = task.windows(example, 0)
    assume(any(window.target != (0, 0) for window in windows))  # longer than what windows share, or nothing but dropped
    [answered] = task.decode([example], windows, perfect(windows), Decision())
    assert answered.text == passage[answered.start : answered.end]
    assert start <= answered.start < answered.end <= start + len(gold.text)
    for candidate in answered.candidates:
        assert candidate.text == passage[candidate.start : candidate.end] != ""
    if any_tokenizer.lowercase:  # all that the model can see of the answer is in it
        assert any_tokenizer.encode_ids([answered.text]) == any_tokenizer.encode_ids([gold.text])
    else:
        assert answered.text.strip() == gold.text.strip()


@settings(max_examples=60)
@given(passages, st.integers(8, 40), st.none() | st.integers(0, 60), st.integers(0, 30))
def test_every_token_of_the_passage_is_in_a_window(any_tokenizer, words, limit, stride, asked):
    passage, question = " ".join(words), " ".join("q" * asked)
    windows = task_of(any_tokenizer, limit, stride).windows(example_of(passage, question=question), 4)
    encoding = any_tokenizer.encode(question, passage)
    texts = {part: [place for place, own in enumerate(encoding.part) if own == part] for part in (None, 0, 1)}
    first = len(windows[0].ids) - 1 - len(windows[0].detail.offsets)
    shown = set()
    for window in windows:
        detail = window.detail
        inside = window.ids[first:-1]
        assert len(window.ids) == len(window.segments) <= limit
        assert (detail.first, window.ids[-1]) == (first, any_tokenizer.sep_id)
        assert len(inside) == len(detail.offsets)
        assert window.ids[:first] == windows[0].ids[:first]
        assert window.segments[first:] == (encoding.segments[-1],) * (len(inside) + 1)
        shown |= {(token, start) for token, (start, _) in zip(inside, detail.offsets, strict=True)}
    assert shown == {(encoding.ids[place], encoding.offsets[place][0]) for place in texts[1]}
    kept = min(len(texts[0]), (limit - len(texts[None])) // 2)
    assert first == kept + len(texts[None]) - 1
    assert windows[0].detail.seen == Seen(len(texts[0] + texts[1]), len(texts[0]) - kept, len(windows))


@given(st.integers(30, 120), st.integers(0, 12), st.data())
def test_an_answer_no_longer_than_what_windows_share_is_whole_in_one(tokenizer, length, stride, data):
    words = [f"w{number}" for number in range(length)]
    first = data.draw(st.integers(0, length - 1))
    answer = AnswerSpan(len(" ".join([*words[:first], ""])), words[first])
    windows = task_of(tokenizer, 40, stride).windows(example_of(" ".join(words), answer), 0)
    pieces = len(tokenizer.encode(words[first])) - 2
    inside = [window for window in windows if window.target != (0, 0)]
    assert inside or pieces > stride + 1
    for window in inside:
        start, end = window.target
        assert tokenizer.decode(window.ids[start : end + 1]) == words[first]


def test_windows_share_the_stride(tokenizer):
    windows = task_of(tokenizer, 40, 8).windows(example_of("word " * 100), 0)
    spans = [(window.detail.offsets[0][0] // 5, window.detail.offsets[-1][0] // 5 + 1) for window in windows]
    assert [left[1] - right[0] for left, right in pairwise(spans)][:-1] == [8] * (len(spans) - 2)
    assert str(windows[0].detail.seen) == f"read through {len(windows)} windows"


def test_targets(tokenizer):
    [window] = task_of(tokenizer).windows(example_of(PASSAGE, "London"), 0)
    assert tokenizer.tokens(window.ids[slice(window.target[0], window.target[1] + 1)]) == ["london"]
    [window] = task_of(tokenizer).windows(example_of(PASSAGE), 0)
    assert window.target == (0, 0)
    [window] = task_of(tokenizer).windows(example_of(PASSAGE, labeled=False), 0)
    assert window.target is None
    windows = task_of(tokenizer, 16).windows(example_of(PASSAGE, "never built", "London"), 0)
    found = {tokenizer.decode(w.ids[slice(w.target[0], w.target[1] + 1)]) for w in windows if w.target != (0, 0)}
    assert found == {"never built", "london"}


def test_token_spans():
    offsets = [(0, 3), (4, 8), (8, 9), (10, 12)]
    assert token_span(offsets, AnswerSpan(4, "abcde")) == (1, 2)
    assert token_span(offsets, AnswerSpan(5, "b")) == (1, 1), "part of a token takes the token"
    assert token_span(offsets, AnswerSpan(3, " ")) is None
    assert token_span(offsets, AnswerSpan(0, "x" * 99)) == (0, 3)
    assert token_span([], AnswerSpan(0, "x")) is None


def slow_spans(starts, ends, longest, top):
    """Every span, one by one."""
    pairs = [(a, b) for a in range(len(starts)) for b in range(a, min(len(starts), a + longest))]
    return sorted((-float(starts[a] + ends[b]), a, b) for a, b in pairs)[:top]


@given(st.integers(0, 25), st.integers(1, 30), st.integers(1, 20), st.integers(0, 2**32 - 1), st.booleans())
def test_best_spans_equal_their_slow_twin(length, longest, top, seed, ties):
    starts, ends = np.random.default_rng(seed).normal(size=(2, length)).round(0 if ties else 9)
    fast = best_spans(starts, ends, longest, top)
    assert [(-score, first, last) for score, first, last in fast] == slow_spans(starts, ends, longest, top)


def test_no_span_leaves_the_passage_or_is_too_long(tokenizer):
    task = task_of(tokenizer, 24, max_answer_tokens=3)
    example = example_of(PASSAGE, question="Who wrote the first program?")
    windows = task.windows(example, 0)
    assert len(windows) > 1
    rows = []
    for window in windows:
        logits = np.random.default_rng(0).normal(size=(len(window.ids), 2)).astype(np.float32)
        logits[: window.detail.first] += 50  # the question and [CLS] shout
        logits[-1] += 50  # and so does [SEP]
        rows.append(logits)
    [answered] = task.decode([example], windows, rows, Decision())
    assert len(answered.candidates) == 20
    for candidate in answered.candidates:
        assert candidate.text == PASSAGE[candidate.start : candidate.end]
        assert 1 <= len(tokenizer.encode(candidate.text)) - 2 <= 3
    assert len({(candidate.start, candidate.end) for candidate in answered.candidates}) == 20


def test_a_span_in_two_windows_counts_once_with_its_best_score(tokenizer):
    task, example = task_of(tokenizer, 16, 8), example_of(PASSAGE, "London")
    windows = task.windows(example, 0)
    seen = [number for number, window in enumerate(windows) if window.target != (0, 0)]
    assert len(seen) > 1
    rows = perfect(windows)
    rows[seen[1]] *= 2
    [answered] = task.decode([example], windows, rows, Decision())
    assert [c.text for c in answered.candidates].count("London") == 1
    assert answered.candidates[0].score == 36
    assert (answered.text, PASSAGE[answered.start : answered.end]) == ("London", "London")
    assert 0 < sum(candidate.probability for candidate in answered.candidates) <= 1
    scores = [candidate.score for candidate in answered.candidates]
    assert scores == sorted(scores, reverse=True)


def test_no_answer_follows_the_threshold(tokenizer):
    task, example = task_of(tokenizer, 16, 8), example_of(PASSAGE, "London")
    windows = task.windows(example, 0)
    rows = perfect(windows)  # windows without the answer give [CLS] 10, those with it 0; the span has 18
    [answered] = task.decode([example], windows, rows, Decision(no_answer=0.0))
    assert (answered.text, answered.no_answer) == ("London", -18)
    [silent] = task.decode([example], windows, rows, Decision(no_answer=-18.5))
    assert (silent.text, silent.start, silent.end) == ("", None, None)
    assert silent.candidates == answered.candidates
    assert silent.probability + sum(candidate.probability for candidate in silent.candidates) == pytest.approx(1)
    [on_the_line] = task.decode([example], windows, rows, Decision(no_answer=-18.0))
    assert on_the_line.text == "London"
    flat = [np.zeros_like(row) for row in rows]
    assert task.decode([example], windows, flat, Decision())[0].text != "", "without a threshold it always answers"


@pytest.mark.parametrize("passage", ["", "   ", "\u200b\x00"])
def test_an_empty_passage_has_no_answer(tokenizer, passage):
    task, example = task_of(tokenizer), example_of(passage)
    windows = task.windows(example, 0)
    [answered] = task.decode([example], windows, perfect(windows), Decision())
    assert (answered.text, answered.start, answered.candidates) == ("", None, ())
    assert answered.no_answer == NO_SPAN_SCORE
    assert json.loads(json.dumps(asdict(answered), allow_nan=False))["no_answer"] == NO_SPAN_SCORE


def test_a_long_question_is_cut_at_its_end_and_said_so(tokenizer):
    example = example_of(PASSAGE, "London", question=" ".join(f"{n}" for n in range(1, 60)))
    windows = task_of(tokenizer, 41).windows(example, 0)
    pieces = tokenizer.tokens(windows[0].ids)
    assert pieces[:20] == ["[CLS]", *map(str, range(1, 20))]
    assert pieces[20] == "[SEP]"
    assert str(windows[0].detail.seen).endswith("40 of 82 tokens were cut")
    [answered] = task_of(tokenizer, 41).decode([example], windows, perfect(windows), Decision())
    assert answered.text == "London"
    assert answered.seen.cut == 40


def test_special_names_in_a_passage_are_text(tokenizer):
    passage = "[CLS] who [SEP] says [SEP] Ada [MASK]"
    task, example = task_of(tokenizer), example_of(passage, "Ada", question="[SEP] who [SEP]")
    windows = task.windows(example, 0)
    [answered] = task.decode([example], windows, perfect(windows), Decision())
    assert (answered.text, answered.start) == ("Ada", passage.index("Ada"))


def pointing(windows, passage, *spans):
    """Outputs with a score for each (start, end, score): characters inside the first and the last token."""
    rows = [np.full((len(window.ids), 2), -9, dtype=np.float32) for window in windows]
    for window, row in zip(windows, rows, strict=True):
        for start, end, score in spans:
            first, last = token_span(window.detail.offsets, AnswerSpan(start, passage[start:end]))
            row[window.detail.first + first, 0] = row[window.detail.first + last, 1] = score
    return rows


@pytest.mark.parametrize(
    ("passage", "asked", "whole"),
    [
        ("The lighthouse of Pharos stood there.", "Pharo", "Pharos"),
        ("The lighthouse of Pharos stood there.", "haro", "Pharos"),
        ("It was Pharos.", "Pharo", "Pharos"),
        ("Il a bu un cafe\u0301 noir", "caf", "cafe\u0301"),
        ("It cost (450,000) dollars", "450", "450"),
        ("राजधानी दिल्ली है", "दिल", "दिल्ली"),
        ("首都是東京都。", "東京", "東京"),
        ("수도는 서울에 있다", "서울", "서울"),
        ("เมืองหลวงคือกรุงเทพ", "กรุง", "กรุง"),
        ("x" * 500 + " is long", "xxx", "xxx"),
    ],
)
def test_answers_are_whole_words_where_words_are_set_apart(passage, asked, whole):
    task = task_of(byte_tokenizer(), 2048)  # every byte is a token: spans may begin and end anywhere
    example = example_of(passage, labeled=False)
    windows, at = task.windows(example, 0), passage.index(asked)
    [answered] = task.decode([example], windows, pointing(windows, passage, (at, at + len(asked), 9)), Decision())
    assert answered.text == passage[answered.start : answered.end] == whole


def test_candidates_that_become_the_same_words_are_one(tokenizer):
    passage = "The lighthouse of Pharos stood there."
    task, example = task_of(byte_tokenizer(), 2048), example_of(passage, labeled=False)
    windows, at = task.windows(example, 0), passage.index("Pharos")
    rows = pointing(windows, passage, (at, at + 6, 8), (at, at + 5, 9))
    [answered] = task.decode([example], windows, rows, Decision())
    assert [each.text for each in answered.candidates].count("Pharos") == 1
    assert answered.candidates[0].score == 18
    assert answered.probability > 0.99
    assert task.score([example_of(passage, "Pharos")], [answered])["exact_match"] == 1


def test_accents_apart_stay_with_their_letter(tokenizer):
    passage = "He drank cafe\u0301\u0301 au lait"
    task, example = task_of(tokenizer), example_of(passage, "cafe\u0301\u0301")
    windows = task.windows(example, 0)
    [answered] = task.decode([example], windows, perfect(windows), Decision())
    assert answered.text == "cafe\u0301\u0301"


def test_packed_padded_and_alone_agree(tokenizer, monkeypatch):
    task = task_of(tokenizer, 32)
    examples = [example_of(PASSAGE, "London"), example_of(" ".join(ODD * 2)), example_of("short", question="")]
    windows = [window for number, example in enumerate(examples) for window in task.windows(example, number)]
    ways = three_ways(tiny_model(tokenizer, "answer", 2), "answer", windows, monkeypatch)
    assert_near(ways[0], ways[1])
    assert_near(ways[0], ways[2])
    texts = [[answered.text for answered in task.decode(examples, windows, way, Decision())] for way in ways]
    assert texts[0] == texts[1] == texts[2]


def test_windowed_equals_whole_where_the_passage_fits(tokenizer):
    model, example = tiny_model(tokenizer, "answer", 2), example_of(PASSAGE, "London")
    fits = len(tokenizer.encode(example.question, PASSAGE))
    found = []
    for limit in (fits, 512):
        windows = task_of(tokenizer, limit).windows(example, 0)
        assert len(windows) == 1
        found += task_of(tokenizer, limit).decode([example], windows, outputs_of(model, "answer", windows), Decision())
    assert found[0] == found[1]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_equals_its_slow_twin_and_does_not_depend_on_the_batch(tokenizer, smoothing):
    task = task_of(tokenizer, 24)
    examples = [example_of(PASSAGE, "London"), example_of("Ada ran.", "Ada"), example_of("nothing here")]
    windows = [window for number, example in enumerate(examples) for window in task.windows(example, number)]
    assert len({len(window.ids) for window in windows}) > 1
    weights = LossSettings(label_smoothing=smoothing)
    logits = torch.randn(sum(len(w.ids) for w in windows), 2, generator=torch.manual_seed(0), requires_grad=True)
    total, count = task.loss(logits, pack(windows), windows, weights)
    slow, start = torch.zeros(()), 0
    for window in windows:
        rows = logits[start : start + len(window.ids)]
        start += len(window.ids)
        slow = slow + F.cross_entropy(rows.T, torch.tensor(window.target), label_smoothing=smoothing, reduction="mean")
        one, _ = task.loss(rows, pack([window]), [window], weights)
        torch.testing.assert_close(one, F.cross_entropy(rows.T, torch.tensor(window.target), label_smoothing=smoothing))
    torch.testing.assert_close(total, slow)
    assert int(count) == task.count_targets(windows) == len(windows)
    total.backward()
    assert torch.isfinite(logits.grad).all()


def test_scores(tokenizer):
    task = task_of(tokenizer)
    examples = [example_of(PASSAGE, "London", "in London"), example_of(PASSAGE)]
    windows = [window for number, example in enumerate(examples) for window in task.windows(example, number)]
    predictions = task.decode(examples, windows, perfect(windows), Decision(no_answer=0.0))
    assert [prediction.text for prediction in predictions] == ["London", ""]
    scores = task.score(examples, predictions)
    assert (scores[task.main_metric], scores["exact_match"], scores["unanswerable_accuracy"]) == (1, 1, 1)


def test_faults(tokenizer):
    with pytest.raises(RequestError, match="length policy 'head' does not go with 'answer'; choose from: windows"):
        Answer(tokenizer=tokenizer, limit=64, length=LengthPolicy("head"))
    with pytest.raises(RequestError, match="sequences of 7 tokens leave no room"):
        task_of(tokenizer, 7)
    with pytest.raises(RequestError, match="lone surrogate"):
        task_of(tokenizer).windows(example_of("a \ud800 b"), 0)
