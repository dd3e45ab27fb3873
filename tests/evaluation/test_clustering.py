"""Clustering: the V-measure beside scikit-learn's, mean over seeds; labels that are not enough."""

import numpy as np
import pytest
from sklearn.metrics import v_measure_score
from test_yardsticks import TOKENIZER, model_of

import bertkit
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.errors import RequestError
from bertkit.evaluation.clustering import Clustering, v_measure
from bertkit.evaluation.yardstick import RowScore


@pytest.fixture(scope="module")
def bert():
    return bertkit.Bert(Checkpoint(model=model_of("bert"), tokenizer=TOKENIZER))


def test_the_v_measure_is_scikit_learn_s():
    draw = np.random.default_rng(2)
    for _ in range(20):
        labels, clusters = draw.integers(0, draw.integers(1, 6), 30), draw.integers(0, draw.integers(1, 6), 30)
        assert v_measure(labels, clusters) == pytest.approx(v_measure_score(labels, clusters), abs=1e-9)


def test_the_v_measure_is_the_mean_over_seeds():
    labels, clusters = [0, 0, 1, 1, 2, 2, 2], ([0, 0, 1, 1, 1, 2, 2], [2, 0, 1, 1, 0, 2, 2])
    scores = [RowScore({"label": a, "seed 0": b, "seed 1": c}) for a, b, c in zip(labels, *clusters, strict=True)]
    expected = sum(v_measure_score(labels, found) for found in clusters) / 2
    assert Clustering().total(scores) == pytest.approx({"v_measure": expected})


def test_texts_that_are_alike_are_found_and_labels_at_random_are_not(bert):
    texts = ["the cat sat on the mat", "dogs bark"] * 10
    found = bertkit.evaluate(bert, {"text": texts, "topic": ["cats", "dogs"] * 10})
    assert (found.task, found.score, found.examples) == ("clustering", pytest.approx(1.0), 20)
    assert found.note == "20 texts, 2 clusters; mean over 5 seeds of k-means"
    mixed = {"a": texts, "b": ["cats", "cats", "dogs", "dogs"] * 5}
    apart = bertkit.evaluate(bert, mixed, text="a", label="b")
    assert apart.score == pytest.approx(0.0, abs=0.05)
    assert bertkit.evaluate(bert, mixed, text="a", label="b") == apart  # seeds are fixed
    assert apart.intervals["v_measure"][0] >= 0.0


def test_one_label_and_other_columns_are_refused(bert):
    with pytest.raises(RequestError, match="has one label only, 'cats'; give a file with two or more"):
        bertkit.evaluate(bert, {"text": ["the cat", "dogs"], "label": ["cats", "cats"]})
    with pytest.raises(RequestError, match=r"needed are text, label, or others that are named: text=..."):
        bertkit.evaluate(bert, {"a": ["the cat", "dogs"], "b": ["cats", "dogs"]}, by="clustering")
