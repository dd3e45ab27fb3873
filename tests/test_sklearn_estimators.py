"""The estimators of `bertkit.sklearn`: scikit-learn's tools take them, and its own checks hold where they apply."""

import pickle
import random
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

import bertkit
from bertkit.errors import RequestError

sys.path += [str(Path(__file__).parent / "finetuning")]
import tiny

pytestmark = pytest.mark.usefixtures("_one_thread")
FAST = {"epochs": 15, "batch": 8, "learning_rate": 3e-3}


def text_rows(count, seed=0):
    """Texts, 1 where one has a good word, and how good it is."""
    draw = random.Random(seed)
    words = [(draw.choice(tiny.GOOD), 1) if n % 2 else (draw.choice(tiny.BAD), 0) for n in range(count)]
    texts = [f"the {draw.choice(tiny.FILLER)} {word}" for word, _ in words]
    return texts, [label for _, label in words], [10.0 + 5 * label for _, label in words]


TEXTS, LABELS, NUMBERS = text_rows(60)
WORDS = [["ada", "lives", "in", "paris"], ["who", "is", "grace"], ["rome", "is", "it"], ["alan", "and", "london"]] * 8
TAGS = [["PER", "O", "O", "LOC"], ["O", "O", "PER"], ["LOC", "O", "O"], ["PER", "O", "LOC"]] * 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.tiny_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def classifier(folder):
    return bertkit.BertClassifier(folder, **FAST, settings={"few": False}).fit(TEXTS, np.array(LABELS))


def test_a_vectorizer_gives_the_model_s_vectors_to_pipelines(folder):
    bert, vectorizer = bertkit.load(folder), bertkit.BertVectorizer(folder, normalize=True)
    np.testing.assert_allclose(vectorizer.fit_transform(TEXTS), bert.embed(TEXTS, normalize=True), atol=1e-6)
    assert bertkit.BertVectorizer(bert, layers=[0, 1], pooling="max").fit_transform(TEXTS[:3]).shape == (3, 64)
    assert vectorizer.get_feature_names_out()[[0, -1]].tolist() == ["bertvectorizer0", "bertvectorizer31"]
    pipeline = make_pipeline(bertkit.BertVectorizer(folder), LogisticRegression(max_iter=1000))
    assert pipeline.fit(TEXTS, LABELS).score(TEXTS, LABELS) >= 0.9
    search = GridSearchCV(make_pipeline(vectorizer, Ridge()), {"bertvectorizer__layers": [1, 2]}, cv=2)
    assert search.fit(TEXTS, NUMBERS).best_params_["bertvectorizer__layers"] in (1, 2)


def test_a_classifier_fine_tunes(classifier, folder, tmp_path):
    assert is_classifier(classifier)
    assert classifier.score(TEXTS, LABELS) >= 0.9
    assert classifier.predict(TEXTS[:4]).tolist() == LABELS[:4]
    found = classifier.predict_proba(TEXTS)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)
    assert set(classifier.scores_) >= {"accuracy", "loss"}
    assert any("held out" in note for note in classifier.notes_)
    classifier.save(tmp_path / "saved")
    assert bertkit.load(tmp_path / "saved").classify("the film fine").label == "1"
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_allclose(again.predict_proba(TEXTS), found, atol=1e-6)


def test_few_rows_are_tuned_by_contrast_and_frozen_ones_not_at_all(folder):
    few = bertkit.BertClassifier(folder).fit(TEXTS, LABELS)
    assert "few=true was chosen" in few.notes_[0]
    frozen = bertkit.BertClassifier(folder, fine_tune=False).fit(TEXTS, LABELS)
    plain = bertkit.Classifier(folder).fit(TEXTS, LABELS)
    np.testing.assert_array_equal(frozen.predict_proba(TEXTS), plain.predict_proba(TEXTS))


def test_scikit_learn_s_tools_take_the_classifier(folder):
    estimator = bertkit.BertClassifier(folder, fine_tune=False)
    assert clone(estimator).get_params() == {
        **{"model": folder, "fine_tune": False, "epochs": None, "batch": None, "learning_rate": None},
        **{"seed": None, "settings": None},
    }
    assert cross_val_score(estimator, TEXTS, LABELS, cv=2).min() >= 0.7
    tuned = bertkit.BertClassifier(folder, batch=16, settings={"few": False})
    search = GridSearchCV(tuned, {"epochs": [1], "learning_rate": [1e-5, 3e-3]}, cv=2).fit(TEXTS, LABELS)
    assert search.best_params_["epochs"] == 1
    with pytest.raises(ValueError, match="Invalid parameter 'depth'"):
        estimator.set_params(depth=1)


def test_a_loaded_model_is_left_as_it_is(folder):
    bert = bertkit.load(folder)
    before = bert.embed(TEXTS)
    bertkit.BertClassifier(bert, epochs=1).fit(TEXTS, LABELS)
    np.testing.assert_array_equal(bert.embed(TEXTS), before)


def test_a_regressor_learns_numbers(folder):
    estimator = bertkit.BertRegressor(folder, **FAST)
    assert is_regressor(estimator)
    fitted = estimator.fit(TEXTS, NUMBERS)
    assert fitted.score(TEXTS, NUMBERS) >= 0.5
    assert fitted.predict(TEXTS).shape == (60,)
    assert fitted.predict([]).shape == (0,)


def test_a_tagger_tags_words(folder):
    fitted = bertkit.BertTagger(folder, epochs=15, batch=8, learning_rate=3e-3).fit(WORDS, TAGS)
    assert fitted.predict([["ada", "is", "in", "rome"]]) == [["PER", "O", "O", "LOC"]]
    assert fitted.score(WORDS, TAGS) >= 0.9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: bertkit.BertClassifier(m).fit(TEXTS[:2], ["a", "a"]), "every text has the same label; at least two"),
        (lambda m: bertkit.BertClassifier(m).fit(TEXTS[:2], ["a", " "]), r"labels\[1\] is empty; name the label"),
        (lambda m: bertkit.BertClassifier(m).fit(TEXTS[:2], ["a", np.nan]), r"labels\[1\] is a missing value; leave"),
        (lambda m: bertkit.BertClassifier(m).fit(TEXTS[:3], ["a", "b"]), "3 texts came with 2 labels; give one label"),
        (lambda m: bertkit.BertClassifier(m).fit(["a", None], ["a", "b"]), r"texts\[1\] is a missing value"),
        (lambda m: bertkit.BertClassifier(m, settings={"epoch": 1}).fit(TEXTS, LABELS), "unknown setting 'epoch'"),
        (lambda m: bertkit.BertRegressor(m).fit(TEXTS[:2], [1.0, np.nan]), r"numbers\[1\] is a missing value"),
        (lambda m: bertkit.BertRegressor(m).fit(TEXTS[:2], [1.0, np.inf]), r"numbers\[1\] is infinite; leave such"),
        (lambda m: bertkit.BertRegressor(m).fit(TEXTS[:2], ["1", "x"]), "BertClassifier learns labels"),
        (lambda m: bertkit.BertTagger(m).fit(["ada lives"], [["PER", "O"]]), r"sentences\[0\] must be a list of words"),
        (lambda m: bertkit.BertTagger(m).fit([["ada"]], [["PER", "O"]]), r"sentences\[0\] has 1 words and 2 tags"),
        (lambda m: bertkit.BertTagger(m).fit([["ada"]], []), "1 sentences came with 0 lists of tags"),
        (lambda m: bertkit.BertTagger(m).fit([["ada", None]], [["PER", "O"]]), r"sentences\[0\]\[1\] is a missing"),
        (lambda m: bertkit.BertVectorizer(m, pooling="none").fit(TEXTS), "pooling=none gives a vector for each token"),
        (lambda m: bertkit.BertVectorizer(m).fit({"text": TEXTS}), "texts is a dict, whose keys would be read"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(folder, call, message):
    with pytest.raises(RequestError, match=message):
        call(folder)


@pytest.mark.parametrize("name", ["BertVectorizer", "BertClassifier", "BertRegressor", "BertTagger", "Classifier"])
def test_nothing_answers_before_it_is_fitted(name, folder):
    estimator = getattr(bertkit, name)(folder)
    with pytest.raises(NotFittedError):
        estimator.transform(TEXTS) if name == "BertVectorizer" else estimator.predict([["ada"]])


# scikit-learn's checks fit arrays of numbers, and these estimators take texts. So a number is a word here, by its place
# among the quantiles of a normal distribution, and a row is a text.


class _ReadsNumbers:
    """Turns the rows of an array into texts, after scikit-learn's own validation of them."""

    def _texts(self, rows, *, reset):
        values = validate_data(self, rows, reset=reset, dtype="numeric")
        names = np.array([*tiny.GOOD, *tiny.BAD, *tiny.NAMES, *tiny.PLACES])
        places = np.clip(((values + 3) / 6 * len(names)).astype(int), 0, len(names) - 1)
        return [" ".join(row) for row in names[places]]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array, tags.input_tags.string = True, False, False
        return tags


class NumbersVectorizer(_ReadsNumbers, bertkit.BertVectorizer):
    def fit(self, X, y=None):
        return super().fit(self._texts(X, reset=True))

    def transform(self, X):
        check_is_fitted(self)
        return super().transform(self._texts(X, reset=False))


class NumbersClassifier(_ReadsNumbers, bertkit.BertClassifier):
    def fit(self, X, y):
        texts = self._texts(X, reset=True)
        check_classification_targets(y)
        return super().fit(texts, column_or_1d(y, warn=True))

    def predict_proba(self, X):
        check_is_fitted(self)
        return super().predict_proba(self._texts(X, reset=False))

    def score(self, X, y, sample_weight=None):
        self._texts(X, reset=False)
        return super().score(X, y, sample_weight)


# Check: why it does not apply.
EXEMPT = {
    "NumbersVectorizer": {},
    "NumbersClassifier": {
        "check_classifiers_one_label": "one label is refused, with a sentence that says so",
        "check_classifiers_train": "to a tiny random model words that stand for near numbers are not near",
        "check_fit2d_1sample": "one text has one label, which is what the message says",
        "check_methods_subset_invariance": "batches of other sizes round otherwise: 2e-7 of a probability in float32",
    },
}


@pytest.mark.parametrize(("kind", "settings"), [(NumbersVectorizer, {}), (NumbersClassifier, {"fine_tune": False})])
def test_scikit_learn_s_own_checks(folder, kind, settings):
    exempt = EXEMPT[kind.__name__]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)
        warnings.simplefilter("ignore", RuntimeWarning)  # of numbers beyond 64 bits, which a check has
        rows = check_estimator(kind(str(folder), **settings), expected_failed_checks=exempt, on_fail=None)
    assert {row["check_name"]: row["exception"] for row in rows if row["status"] == "failed"} == {}
    assert sum(row["status"] == "passed" for row in rows) > 30


# Those that fit many times would fine-tune for minutes.
WITHOUT_FIT = (
    *("check_estimator_cloneable", "check_estimator_repr", "check_no_attributes_set_in_init", "check_mixin_order"),
    *("check_parameters_default_constructible", "check_get_params_invariance", "check_set_params"),
    *("check_do_not_raise_errors_in_init_or_set_params", "check_estimator_tags_renamed", "check_valid_tag_types"),
)


@pytest.mark.parametrize("check", WITHOUT_FIT)
@pytest.mark.parametrize("name", ["BertVectorizer", "BertClassifier", "BertRegressor", "BertTagger", "Classifier"])
def test_scikit_learn_s_checks_that_do_not_fit(name, check):
    getattr(estimator_checks, check)(name, getattr(bertkit, name)())
