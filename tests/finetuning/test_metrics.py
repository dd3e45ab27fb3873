"""Metrics against their references: scikit-learn, scipy, seqeval; SQuAD's are in test_squad_score.py."""

import math
import warnings
from functools import partial

import numpy as np
import pytest
import scipy.stats
import seqeval.metrics
import seqeval.scheme
import sklearn.metrics
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bertkit.errors import RequestError
from bertkit.tasks.metrics.classes import (
    LabelScore,
    accuracy,
    average_precision,
    confusion_matrix,
    f1_of,
    label_f1,
    matthews,
    mean_average_precision,
    precision_recall_f1,
)
from bertkit.tasks.metrics.correlation import pearson, spearman
from bertkit.tasks.metrics.ranking import ranking_scores
from bertkit.tasks.metrics.spans import span_f1, span_scores
from bertkit.tasks.metrics.squad import squad_scores
from bertkit.tasks.metrics.table import (
    choice_scores,
    class_scores,
    is_better,
    multilabel_scores,
    number_scores,
    tag_scores,
)
from bertkit.tasks.metrics.texts import text_scores
from bertkit.tasks.table import TASKS

micro_f1, macro_f1, weighted_f1 = (partial(label_f1, average=average) for average in ("micro", "macro", "weighted"))
LABELS = ["O", "b", "cé", "日本", " d "]


@pytest.fixture(autouse=True)
def _quiet_references():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def pairs(element, most=25):
    return st.lists(st.tuples(element, element), min_size=1, max_size=most).map(
        lambda rows: tuple(zip(*rows, strict=True))
    )


SHAPE_AND_SEED = st.tuples(st.tuples(st.integers(1, 12), st.integers(1, 5)), st.integers(0, 2**32 - 1))


# Labels


@given(pairs(st.sampled_from(LABELS)))
def test_class_metrics_equal_scikit_learn(sides):
    gold, predicted = sides
    assert accuracy(gold, predicted) == pytest.approx(sklearn.metrics.accuracy_score(gold, predicted))
    assert matthews(gold, predicted) == pytest.approx(sklearn.metrics.matthews_corrcoef(gold, predicted))
    for ours, average in ((micro_f1, "micro"), (macro_f1, "macro"), (weighted_f1, "weighted")):
        theirs = sklearn.metrics.f1_score(gold, predicted, average=average, zero_division=0)
        assert ours(gold, predicted) == pytest.approx(theirs), average


@given(pairs(st.sampled_from(LABELS)))
def test_every_label_equals_scikit_learn(sides):
    gold, predicted = sides
    theirs = sklearn.metrics.precision_recall_fscore_support(gold, predicted, labels=LABELS, zero_division=0)
    ours = precision_recall_f1(gold, predicted, LABELS)
    assert list(ours) == LABELS
    for label, *row in zip(LABELS, *theirs, strict=True):
        score = ours[label]
        assert [score.precision, score.recall, score.f1, score.gold] == pytest.approx(row)
        assert f1_of(gold, predicted, label) == score.f1


@given(pairs(st.sampled_from(LABELS)))
def test_confusion_equals_scikit_learn(sides):
    theirs = sklearn.metrics.confusion_matrix(*sides, labels=LABELS)
    np.testing.assert_array_equal(confusion_matrix(*sides, LABELS), theirs)


@given(SHAPE_AND_SEED)
def test_multilabel_metrics_equal_scikit_learn(case):
    shape, seed = case
    rng = np.random.default_rng(seed)
    gold, predicted = rng.random(shape) < rng.random(), rng.random(shape) < rng.random()
    scores = np.round(rng.random(shape), 1)  # many ties
    for n in range(shape[1]):
        expected = sklearn.metrics.average_precision_score(gold[:, n], scores[:, n])
        assert average_precision(gold[:, n], scores[:, n]) == pytest.approx(expected)
    if shape[1] == 1:
        return  # scikit-learn takes one column for two classes
    assert accuracy(gold, predicted) == pytest.approx(sklearn.metrics.accuracy_score(gold, predicted))
    expected = sklearn.metrics.average_precision_score(gold, scores, average="macro")
    assert mean_average_precision(gold, scores) == pytest.approx(expected)
    for average, ours in (("micro", micro_f1), ("macro", macro_f1), ("weighted", weighted_f1)):
        expected = sklearn.metrics.f1_score(gold, predicted, average=average, zero_division=0)
        assert ours(gold, predicted) == pytest.approx(expected), average
    theirs = sklearn.metrics.precision_recall_fscore_support(gold, predicted, zero_division=0)
    columns = precision_recall_f1(gold, predicted).values()
    found = [(score.precision, score.recall, score.f1, score.gold) for score in columns]
    np.testing.assert_allclose(found, np.transpose(theirs))


def test_arrays_of_names_and_numbers_are_labels_too():
    gold, predicted = np.array(["x", "y", "x"]), np.array(["x", "x", "x"])
    assert precision_recall_f1(gold, predicted) == {"x": LabelScore(2, 3, 2), "y": LabelScore(0, 0, 1)}
    assert accuracy(np.array([1, 2]), [1, 3]) == 0.5
    assert f1_of([0, 1], [0, 1], 7) == 0.0


def test_matthews_does_not_overflow():
    gold = np.repeat([0, 1], 60_000)
    predicted = np.tile([0, 1], 60_000)
    assert matthews(gold, predicted) == 0.0
    assert matthews(gold, gold) == 1.0


@pytest.mark.parametrize("metric", [accuracy, micro_f1, macro_f1, matthews, pearson, spearman, span_f1])
def test_nothing_and_unequal_lengths_are_refused(metric):
    for gold, predicted in (([], []), ([1.0, 2.0], [1.0])):
        with pytest.raises(RequestError, match="give one for each"):
            metric(gold, predicted)


def test_a_label_the_model_does_not_know_is_refused():
    with pytest.raises(RequestError, match="label 'z' is not one of: x, y"):
        confusion_matrix(["x"], ["z"], ["x", "y"])


# Numbers

NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda value: round(value, 3))
FEW_NUMBERS = st.sampled_from([0.0, 0.5, 1.0, 2.5])


@given(st.one_of(pairs(NUMBERS), pairs(FEW_NUMBERS)))
def test_correlations_equal_scipy(sides):
    gold, predicted = sides
    assume(len(gold) > 1)  # scipy refuses one number
    expected = [scipy.stats.pearsonr(gold, predicted).statistic, scipy.stats.spearmanr(gold, predicted).statistic]
    for ours, theirs in zip((pearson(gold, predicted), spearman(gold, predicted)), expected, strict=True):
        assert ours == pytest.approx(0.0 if math.isnan(theirs) else theirs, abs=1e-9)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_pearson_survives_the_largest_and_smallest_numbers(scale):
    assert pearson(np.array([1.0, 2.0, 3.0]) * scale, [2.0, 4.0, 6.0]) == pytest.approx(1.0)


def test_constant_numbers_correlate_with_nothing():
    assert pearson([1, 1, 1], [1, 2, 3]) == spearman([1, 2, 3], [0.1, 0.1, 0.1]) == pearson([1], [2]) == 0.0


def test_numbers_that_are_none_are_refused():
    for metric in (pearson, spearman, number_scores):
        with pytest.raises(RequestError, match="not finite"):
            metric([1.0, 2.0], [float("nan"), 1.0])


# Spans

SEQEVAL = {"IOB1": seqeval.scheme.IOB1, "IOB2": seqeval.scheme.IOB2, "BIOES": seqeval.scheme.IOBES}
SEQEVAL["BILOU"] = seqeval.scheme.BILOU
SPAN_LETTERS = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES", "BILOU": "BILU"}


def tag_pairs(letters):
    tags = ["O", *(f"{letter}-{label}" for letter in letters for label in ("A", "B-C"))]
    word = st.tuples(st.sampled_from(tags), st.sampled_from(tags))
    sentences = st.lists(st.lists(word, max_size=8), min_size=1, max_size=4)
    return sentences.map(lambda rows: tuple([[pair[side] for pair in row] for row in rows] for side in (0, 1)))


@pytest.mark.parametrize("scheme", SEQEVAL)
@settings(max_examples=200)
@given(data=st.data())
def test_strict_span_f1_equals_seqeval(scheme, data):
    gold, predicted = data.draw(tag_pairs(SPAN_LETTERS[scheme]))
    theirs = {"mode": "strict", "scheme": SEQEVAL[scheme], "zero_division": 0}
    assert_spans_equal(gold, predicted, scheme, theirs)


@pytest.mark.parametrize("letters", ["BI", "BIES"])
@settings(max_examples=200)
@given(data=st.data())
def test_default_span_f1_equals_seqeval(letters, data):
    gold, predicted = data.draw(tag_pairs(letters))
    assert_spans_equal(gold, predicted, None, {"zero_division": 0})


def assert_spans_equal(gold, predicted, scheme, options):
    scores = span_scores(gold, predicted, scheme)
    micro = seqeval.metrics.f1_score(gold, predicted, average="micro", **options)
    assert span_f1(gold, predicted, scheme) == pytest.approx(micro)
    total = sum(scores.values(), LabelScore(0, 0, 0))
    assert total.precision == pytest.approx(seqeval.metrics.precision_score(gold, predicted, **options))
    assert total.recall == pytest.approx(seqeval.metrics.recall_score(gold, predicted, **options))
    if scores:  # seqeval divides by zero without a span
        for average in ("macro", "weighted"):
            theirs = seqeval.metrics.f1_score(gold, predicted, average=average, **options)
            assert span_f1(gold, predicted, scheme, average) == pytest.approx(theirs)
        each = seqeval.metrics.f1_score(gold, predicted, average=None, **options)
        assert [score.f1 for score in scores.values()] == pytest.approx(list(each))


def test_spans_of_different_sentences_are_different():
    assert span_f1([["B-A"], ["O"]], [["O"], ["B-A"]]) == 0.0


def test_a_sentence_with_too_few_tags_is_named():
    with pytest.raises(RequestError, match="sentence 2: 1 tags predicted for 2 words"):
        span_scores([["O"], ["O", "O"]], [["O"], ["O"]])


# Tasks


def test_every_task_gives_the_metrics_it_names():
    yes_no = np.array([[True, False], [False, True]])
    tags = [["B-A", "O"]]
    found = {
        "classify": class_scores(["x", "y"], ["x", "x"], ["x", "y"]),
        "multilabel": multilabel_scores(yes_no, yes_no, yes_no * 0.5),
        "regress": number_scores([1.0, 2.0], [1.0, 3.0]),
        "tag": tag_scores(tags, tags, "IOB2"),
        "answer": squad_scores([["a b"], []], ["b", ""]),
        "choose": choice_scores([0, 1], [0, 0]),
        "rank": ranking_scores([({0: 1.0, 1: 0.0}, [1, 0])]),
        "rate-words": number_scores([1.0, 2.0], [1.0, 3.0]),
        "write": text_scores(["a red ball"], ["a ball"]),
    }
    for task, measures in ((name, row.metrics) for name, row in TASKS.items()):
        assert set(found[task]) == set(measures.names), task
        assert measures.main in measures.names
        assert all(type(value) is float for value in found[task].values()), task


def test_task_scores_by_hand():
    assert class_scores(["x", "y"], ["y", "y"], ["x", "y"])["f1"] == pytest.approx(2 / 3)
    assert "f1" not in class_scores(["x", "y"], ["y", "y"], ["x", "y", "z"])
    assert class_scores(["x", "y"], ["y", "y"], ["x", "y", "z"])["macro_f1"] == pytest.approx(1 / 3)  # z unseen
    assert number_scores([1.0, 2.0], [1.0, 4.0])["mean_squared_error"] == 2.0
    assert set(tag_scores([["NN", "B"]], [["NN", "O"]], "plain")) == {"accuracy", "macro_f1"}


def test_better_knows_errors_and_refuses_what_is_no_number():
    better = [("f1", 0.6, 0.5), ("f1", 0.0, math.nan), ("mean_squared_error", 0.4, 0.5), ("loss", 9.0, math.inf)]
    worse = [("f1", 0.5, 0.5), ("f1", math.nan, 0.1), ("loss", 0.6, 0.5), ("loss", math.nan, math.nan)]
    assert [is_better(*case) for case in better + worse] == [True] * len(better) + [False] * len(worse)
