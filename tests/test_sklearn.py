"""`bertkit.Classifier` keeps to scikit-learn's contract, and what it saves is a model folder like any other."""

import json

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import bertkit
from bertkit.cli.main import run
from bertkit.errors import RequestError

TEXTS = [
    *("The dog chased the cat.", "A horse ran over the field.", "Birds sing in the morning.", "The cow ate grass."),
    *("Shares fell on Friday.", "The bank raised its rates.", "Profits rose this year.", "The firm sold its debt."),
]
TOPICS = ["animals"] * 4 + ["money"] * 4


@pytest.fixture(scope="module")
def bert() -> bertkit.Bert:
    return bertkit.load("sentences")


@pytest.fixture(scope="module")
def fitted() -> bertkit.Classifier:
    return bertkit.Classifier().fit(TEXTS, TOPICS)


def test_it_predicts(fitted):
    assert list(fitted.predict(["A cat slept.", "Interest rates rose."])) == ["animals", "money"]
    assert fitted.classes_.tolist() == ["animals", "money"]
    found = fitted.predict_proba(["A cat slept.", "Interest rates rose."])
    assert found.shape == (2, 2)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)
    assert fitted.score(TEXTS, TOPICS) == 1.0
    assert fitted.score(TEXTS, ["money", *TOPICS[1:]]) == 7 / 8
    assert fitted.predict([]).shape == (0,)
    assert fitted.predict_proba([]).shape == (0, 2)


@pytest.mark.parametrize("labels", [[10] * 4 + [9] * 4, [False] * 4 + [True] * 4])
def test_labels_keep_their_type_and_the_model_its_weights(fitted, bert, labels):
    before = bert.embed(TEXTS)
    numbers = bertkit.Classifier(bert).fit(TEXTS, np.array(labels))
    assert numbers.predict(TEXTS).tolist() == labels
    expected = fitted.predict_proba(TEXTS)[:, [*fitted.classes_].index("animals")]
    np.testing.assert_allclose(
        numbers.predict_proba(TEXTS)[:, [*numbers.classes_].index(labels[0])], expected, atol=1e-4
    )
    np.testing.assert_array_equal(bert.embed(TEXTS), before)


def test_scikit_learn_s_tools_take_it(bert):
    estimator = bertkit.Classifier(bert, layer=3)
    assert is_classifier(estimator)
    assert estimator.get_params() == {"model": bert, "layer": 3}
    assert estimator.set_params(layer=-1) is estimator
    assert estimator.layer == -1
    with pytest.raises(ValueError, match="Invalid parameter 'depth'"):
        estimator.set_params(depth=1)
    copy = clone(bertkit.Classifier("sentences", layer=None))
    assert (copy.model, copy.layer) == ("sentences", None)
    assert repr(copy) == "Classifier(layer=None, model='sentences')"
    scores = cross_val_score(estimator, TEXTS, TOPICS, cv=2)
    assert len(scores) == 2
    assert scores.min() >= 0.75
    pipeline = make_pipeline(FunctionTransformer(lambda texts: [text.lower() for text in texts]), estimator)
    assert pipeline.fit(TEXTS, TOPICS).score(TEXTS, TOPICS) == 1.0


def test_a_layer_is_chosen(bert):
    chosen = bertkit.Classifier(bert, layer=None).fit(TEXTS, TOPICS)
    assert 1 <= chosen.bert_.model.config.depth <= 12
    with pytest.raises(RequestError, match="layer=13 must be one of 1, 2, .*; -1 is the last"):
        bertkit.Classifier(bert, layer=13).fit(TEXTS, TOPICS)


def test_what_it_saves_is_a_model_folder(fitted, tmp_path, capsys):
    fitted.save(tmp_path / "topics")
    expected = fitted.predict_proba(TEXTS)
    loaded = bertkit.load(tmp_path / "topics")
    found = [[each.probabilities[name] for name in fitted.classes_] for each in loaded.classify(TEXTS)]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert bertkit.evaluate(loaded, list(zip(TEXTS, TOPICS, strict=True))).score == 1.0
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    out = tmp_path / "answers.jsonl"
    assert run(["predict", str(tmp_path / "topics"), str(tmp_path / "texts.txt"), "--out", str(out)]) == 0
    capsys.readouterr()
    assert [json.loads(line)["label"] for line in out.read_text().splitlines()] == TOPICS
    with pytest.raises(RequestError, match="exists already"):
        fitted.save(tmp_path / "topics")


def test_wrong_requests_are_one_sentence(bert):
    new = bertkit.Classifier(bert)
    for call in (lambda: new.predict(TEXTS), lambda: new.predict_proba(TEXTS), lambda: new.save("x")):
        with pytest.raises(NotFittedError):
            call()
    with pytest.raises(RequestError, match="8 texts came with 7 labels; give one label for each text"):
        new.fit(TEXTS, TOPICS[:7])
    with pytest.raises(RequestError, match="every text has the same label; at least two labels are needed"):
        new.fit(TEXTS, ["a"] * 8)
    with pytest.raises(RequestError, match=r"labels\[1\] is a missing value; leave such rows out"):
        new.fit(TEXTS, ["a", None, *TOPICS[2:]])
    with pytest.raises(RequestError, match=r"texts\[0\] is int, not a str"):
        new.fit([1, 2], ["a", "b"])
