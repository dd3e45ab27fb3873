"""SQuAD's scoring rules, written out a second time, word by word, and compared with ours."""

import collections
import re
import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.errors import RequestError
from bertkit.tasks.metrics.squad import best_squad_threshold, normalize_answer, squad_em, squad_f1, squad_scores


def slow_normalize(text):
    text = "".join(character for character in text.lower() if character not in set(string.punctuation))
    words = re.split(r"\s+", re.sub(r"\b(a|an|the)\b", " ", text))
    return [word for word in words if word]


def slow_scores(gold, predicted):
    golds = [slow_normalize(text) for text in gold if slow_normalize(text)] or [[]]
    guess = slow_normalize(predicted)
    best = (0.0, 0.0)
    for words in golds:
        exact = float(words == guess)
        left = collections.Counter(words)
        shared = 0
        for word in guess:
            if left[word] > 0:
                left[word] -= 1
                shared += 1
        if not words or not guess:
            f1 = exact
        elif shared == 0:
            f1 = 0.0
        else:
            precision, recall = shared / len(guess), shared / len(words)
            f1 = 2 * precision * recall / (precision + recall)
        best = (max(best[0], exact), max(best[1], f1))
    return best


WORDS = ["the", "The", "a", "an", "cat", "Cat!", "U.S.", "'", "—", "été", "ÉTÉ", "日本", "\u00a0", " ", "b-c", "", "İ"]
ANSWER = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)
GOLDS = st.lists(ANSWER, max_size=3)


@settings(max_examples=300)
@given(GOLDS, st.one_of(ANSWER, st.text(max_size=10)))
def test_squad_equals_the_published_rules(gold, predicted):
    assert (squad_em(gold, predicted), squad_f1(gold, predicted)) == pytest.approx(slow_scores(gold, predicted))


@pytest.mark.parametrize(
    ("gold", "predicted", "exact", "f1"),
    [
        (["the Norman"], "Norman!", 1, 1),
        (["in the 10th century", "10th"], "the 10th", 1, 1),
        (["a b c d"], "b c x", 0, 2 / 3),
        ([], "", 1, 1),
        ([], "the", 1, 1),
        ([], "cat", 0, 0),
        (["cat"], "", 0, 0),
        (["cat cat"], "cat", 0, 2 / 3),
    ],
)
def test_squad_by_hand(gold, predicted, exact, f1):
    assert squad_em(gold, predicted) == exact
    assert squad_f1(gold, predicted) == pytest.approx(f1)


def test_normalize_answer():
    assert normalize_answer("  The  U.S. Army,\tan\u00a0Army! ") == "us army army"


@given(st.lists(st.tuples(GOLDS, ANSWER), min_size=1, max_size=10))
def test_squad_scores_are_means(rows):
    gold, predicted = zip(*rows, strict=True)
    slow = np.array([slow_scores(*row) for row in rows])
    found = squad_scores(gold, predicted)
    assert [found["exact_match"], found["f1"]] == pytest.approx(slow.mean(axis=0))
    has = np.array([bool(answers) for answers in gold])
    if has.any() and not has.all():
        assert found["answerable_f1"] == pytest.approx(slow[has, 1].mean())
        assert found["unanswerable_accuracy"] == pytest.approx(slow[~has, 0].mean())
    else:
        assert set(found) == {"f1", "exact_match"}


QUESTION = st.tuples(GOLDS, ANSWER, st.sampled_from([-3.5, -1.0, 0.0, 0.25, 0.25000001, 7.0]))


@given(st.lists(QUESTION, min_size=1, max_size=12), st.booleans())
def test_best_squad_threshold_equals_trying_them_all(rows, exact):
    gold, predicted, scores = zip(*rows, strict=True)
    column = 0 if exact else 1

    def score_at(threshold):
        said = ["" if score > threshold else text for text, score in zip(predicted, scores, strict=True)]
        return np.mean([slow_scores(answers, text)[column] for answers, text in zip(gold, said, strict=True)])

    tries = [-1e9, *sorted(scores)]
    found = best_squad_threshold(gold, predicted, scores, squad_em if exact else squad_f1)
    assert found.score == pytest.approx(max(map(score_at, tries)))
    assert score_at(found.threshold) == pytest.approx(found.score)
    lowest = next(value for value in tries if score_at(value) > found.score - 1e-9)
    assert [score > found.threshold for score in scores] == [score > lowest for score in scores]


def test_best_squad_threshold_refuses_what_it_cannot_use():
    with pytest.raises(RequestError, match="2 questions, 1 answers and 2 scores"):
        best_squad_threshold([["a"], []], ["x"], [0.1, 0.2])
    with pytest.raises(RequestError, match="not a finite number"):
        best_squad_threshold([["a"]], ["x"], [float("nan")])
    with pytest.raises(RequestError, match="1 answers to 0 questions"):
        squad_scores([], ["x"])
