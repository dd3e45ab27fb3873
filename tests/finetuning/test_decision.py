"""The decision layer: calibrated on dev data, saved as plain numbers, each search equal to trying everything."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.errors import RequestError
from bertkit.tasks.shared.calibration import (
    calibration_error,
    class_probabilities,
    confidences,
    expected_calibration_error,
    fit_temperature,
    label_probabilities,
    negative_log_likelihood,
    reliability,
)
from bertkit.tasks.shared.decision import Coverage, Decision, coverage_table, fit_abstain, fit_no_answer, fit_thresholds

SHARE = st.floats(0, 1)
SURE_AND_RIGHT = st.lists(st.tuples(st.one_of(SHARE, st.sampled_from([0.0, 0.2, 1.0])), st.booleans()), min_size=1)


def sharpened(rng, examples, labels, sharpness):
    """(logits, gold): gold drawn from the softmax of the logits, which are then `sharpness` times too sharp."""
    logits = rng.normal(size=(examples, labels)) * 2
    gold = np.array([rng.choice(labels, p=row) for row in class_probabilities(logits)])
    return logits * sharpness, gold


# Calibration


@given(SURE_AND_RIGHT, st.integers(1, 20))
def test_calibration_error_equals_bin_by_bin(rows, bins):
    total = 0.0
    for n in range(bins):
        low, high = np.linspace(0, 1, bins + 1)[n : n + 2]
        inside = [row for row in rows if low < row[0] <= high or (n == 0 and row[0] == 0)]
        if inside:
            sure, right = np.mean(inside, axis=0)
            total += len(inside) / len(rows) * abs(sure - right)
    sure, right = np.array(rows).T
    assert expected_calibration_error(sure, right, bins) == pytest.approx(total)
    table = reliability(sure, right, bins)
    assert sum(row.count for row in table) == len(rows)
    assert all(row.low <= row.confidence <= row.high + 1e-9 for row in table)


def test_calibration_error_by_hand():
    assert expected_calibration_error([0.9, 0.9, 0.6, 0.6], [1, 0, 1, 0]) == pytest.approx((0.4 + 0.1) / 2)
    assert expected_calibration_error([1.0, 0.0], [True, False]) == 0.0
    assert expected_calibration_error([1.0 + 1e-12], [True]) == pytest.approx(0.0, abs=1e-9)  # softmax may round up


@pytest.mark.parametrize(("sure", "right"), [([], []), ([0.5], [True, False]), ([1.5], [True]), ([math.nan], [True])])
def test_reliability_refuses_what_is_no_probability(sure, right):
    with pytest.raises(RequestError, match="give one from 0 to 1 for each"):
        reliability(sure, right)


@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_the_likelihood_equals_loops(examples, labels, seed):
    rng = np.random.default_rng(seed)
    logits, gold = rng.normal(size=(examples, labels)) * 3, rng.integers(labels, size=examples)
    yes = rng.random((examples, labels)) < 0.5
    losses, yes_losses = [], []
    for row, right, answers in zip(logits.tolist(), gold, yes, strict=True):
        shares = [math.exp(value) / sum(map(math.exp, row)) for value in row]
        losses.append(-math.log(shares[right]))
        for value, answer in zip(row, answers, strict=True):
            share = 1 / (1 + math.exp(-value))
            yes_losses.append(-math.log(share if answer else 1 - share))
    assert negative_log_likelihood(logits, gold) == pytest.approx(np.mean(losses))
    assert negative_log_likelihood(logits, yes) == pytest.approx(np.mean(yes_losses))


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("labels", [2, 7])
def test_the_temperature_of_sharpened_logits_is_found(sharpness, labels):
    logits, gold = sharpened(np.random.default_rng(3), 4000, labels, sharpness)
    found = fit_temperature(logits, gold)
    assert found.temperature == 1.0 or found.temperature == pytest.approx(sharpness, rel=0.1)
    assert found.error_after <= found.error_before
    if sharpness != 1.0:
        assert found.error_after < 0.03 < found.error_before
        assert found.loss_after < found.loss_before


def test_the_temperature_equals_a_search_over_a_grid():
    logits, gold = sharpened(np.random.default_rng(4), 300, 4, 3.0)
    grid = np.exp(np.arange(-2, 2, 0.001))
    regrets = [negative_log_likelihood(logits, gold, value) * 300 + np.log(value) ** 2 / 2 for value in grid]
    assert fit_temperature(logits, gold).temperature == pytest.approx(grid[np.argmin(regrets)], rel=2e-3)


def test_labels_that_do_not_exclude_each_other_have_a_temperature_too():
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(2000, 5)) * 2
    gold = rng.random(logits.shape) < label_probabilities(logits)
    found = fit_temperature(logits * 2.5, gold)
    assert found.temperature == pytest.approx(2.5, rel=0.1)
    assert found.error_after < found.error_before


@settings(max_examples=60)
@given(
    st.integers(1, 30), st.integers(1, 4), st.booleans(), st.sampled_from([0.0, 1e-30, 1.0, 1e4]), st.integers(0, 999)
)
def test_calibration_is_never_made_worse(examples, labels, matrix, scale, seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(examples, labels)) * scale
    gold = rng.random(logits.shape) < 0.3 if matrix else rng.integers(labels, size=examples)
    found = fit_temperature(logits, gold)
    assert found.error_after <= found.error_before == pytest.approx(calibration_error(logits, gold))
    assert found.error_after == pytest.approx(calibration_error(logits, gold, found.temperature))
    assert 0.05 <= found.temperature <= 20
    assert math.isfinite(found.loss_after)


def test_a_temperature_that_harms_is_not_kept_and_that_is_said():
    rng = np.random.default_rng(0)
    refused = []
    for _ in range(200):
        logits, gold = rng.normal(size=(12, 3)), rng.integers(3, size=12)
        found = fit_temperature(logits, gold)
        if found.temperature == 1.0:
            refused.append(found)
            assert found.error_after == found.error_before
            assert found.loss_after == found.loss_before
            assert found.note.startswith("probabilities left as they are (temperature 1.0): ")
        else:
            assert f"(temperature {found.temperature:.3f}, " in found.note
    assert 0 < len(refused) < 200


def test_three_right_answers_do_not_make_a_model_certain():
    logits = np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    few = fit_temperature(logits, np.array([0, 1, 0])).temperature
    many = fit_temperature(np.tile(logits, (500, 1)), np.tile([0, 1, 0], 500)).temperature
    assert 0.3 < few < 1.0
    assert many < 0.15  # separable, and enough of it to believe in


def test_one_class_changes_nothing():
    assert fit_temperature(np.ones((5, 1)), np.zeros(5, dtype=int)).temperature == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("logits", "gold", "said"),
    [
        (np.zeros((0, 2)), np.zeros(0, dtype=int), "cannot calibrate"),
        (np.zeros((2, 2)), np.zeros(3, dtype=int), "cannot calibrate"),
        (np.zeros(2), np.zeros(2, dtype=int), "cannot calibrate"),
        (np.array([[0.0, math.inf]]), np.array([0]), "not finite"),
        (np.zeros((2, 2)), np.array([0, 2]), "not from 0 to 1"),
        (np.zeros((2, 2)), np.array([0, -1]), "not from 0 to 1"),
    ],
)
def test_calibration_refuses_what_it_cannot_use(logits, gold, said):
    with pytest.raises(RequestError, match=said):
        fit_temperature(logits, gold)


# Thresholds


def f1_at(values, truth, threshold):
    said = values >= threshold
    return 2 * (said & truth).sum() / (said.sum() + truth.sum()) if (said.sum() + truth.sum()) else 0.0


COLUMN = st.lists(st.tuples(st.one_of(SHARE, st.sampled_from([0.0, 0.5, 1.0])), st.booleans()), min_size=1, max_size=25)


@settings(max_examples=300)
@given(COLUMN)
def test_a_threshold_equals_trying_them_all(rows):
    values, truth = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    found = fit_thresholds(values[:, None], truth[:, None], ["x"])["x"]
    assert 0 <= found <= 1
    if truth.any():
        assert f1_at(values, truth, found) == max(f1_at(values, truth, value) for value in values)
        assert f1_at(values, truth, found) >= f1_at(values, truth, 0.5)
    else:
        assert found == 0.5


def test_thresholds_stand_between_scores_and_near_a_half():
    values = np.array([[0.9, 0.2], [0.7, 0.1], [0.1, 0.3]])
    gold = np.array([[1, 0], [1, 0], [0, 1]])
    assert fit_thresholds(values, gold, ["a", "b"]) == pytest.approx({"a": 0.4, "b": 0.25})
    close = np.array([[0.5], [np.nextafter(0.5, 0)]])  # nothing lies between these two
    assert f1_at(close, np.array([[True], [False]]), fit_thresholds(close, np.array([[1], [0]]), ["a"])["a"]) == 1.0


@pytest.mark.parametrize(
    ("values", "gold"), [(np.zeros((2, 1)), np.zeros((2, 2))), (np.zeros((0, 2)), np.zeros((0, 2))), ([0.1], [1])]
)
def test_thresholds_of_the_wrong_shape_are_refused(values, gold):
    with pytest.raises(RequestError, match="cannot fit 2 thresholds"):
        fit_thresholds(values, gold, ["a", "b"])


def test_the_no_answer_threshold_is_for_questions_without_an_answer():
    gold, predicted, scores = [["cat"], [], ["dog"]], ["cat", "cow", "dog"], [-2.0, 3.0, 1.0]
    assert fit_no_answer(gold, predicted, scores) == 1.0
    assert fit_no_answer([["cat"], ["dog"]], ["cow", "dog"], [1.0, 2.0]) is None


@given(SURE_AND_RIGHT, SHARE)
def test_abstaining_equals_trying_every_probability(rows, accuracy):
    sure, right = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])

    def row_at(probability):
        answered = sure >= probability
        return Coverage(probability, answered.mean(), right[answered].mean())

    table = coverage_table(sure, right)
    expected = [row_at(value) for value in sorted(set(sure), reverse=True)]
    found = [(row.probability, row.coverage, row.accuracy) for row in table]
    np.testing.assert_allclose(found, [(row.probability, row.coverage, row.accuracy) for row in expected])
    enough = [row for row in table if row.accuracy >= accuracy]
    chosen = fit_abstain(sure, right, accuracy)
    if enough:
        assert row_at(chosen).accuracy >= accuracy
        assert row_at(chosen).coverage == max(row.coverage for row in enough)
    else:
        assert chosen is None


# The decision itself


def test_the_defaults_change_nothing():
    decision = Decision()
    logits = np.array([[1.0, -1.0, 0.0]], dtype=np.float32)
    np.testing.assert_array_equal(decision.class_probabilities(logits), class_probabilities(logits))
    assert decision.accepted(decision.label_probabilities(logits), "abc").tolist() == [[True, False, True]]
    assert decision.is_confident(0.0)
    assert not decision.is_unanswerable(1e9)


def test_a_decision_decides():
    decision = Decision(2.0, {"b": 0.2}, -1.5, 0.8)
    logits = np.array([[2.0, -2.0]])
    assert decision.class_probabilities(logits)[0, 0] == pytest.approx(1 / (1 + math.exp(-2)))
    assert decision.label_probabilities(logits)[0, 0] == pytest.approx(1 / (1 + math.exp(-1)))
    assert decision.accepted(np.array([0.3, 0.3]), ["a", "b"]).tolist() == [False, True]
    assert [decision.is_confident(value) for value in (0.79, 0.8)] == [False, True]
    assert [decision.is_unanswerable(value) for value in (-1.5, -1.4)] == [False, True]


DECISIONS = st.builds(
    Decision,
    st.floats(0.01, 100),
    st.dictionaries(st.text(max_size=5), SHARE, max_size=3),
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.none() | SHARE,
)


@given(DECISIONS)
def test_json_brings_a_decision_back_exactly(decision):
    assert Decision.from_json(json.loads(json.dumps(decision.to_json(), allow_nan=False))) == decision


def test_numbers_of_numpy_are_saved_as_plain_ones():
    decision = Decision(np.float64(1.5), {"a": np.float32(0.25)}, np.float64(2), np.float32(0.5))
    assert json.dumps(decision.to_json())
    assert Decision.from_json(decision.to_json()) == decision
    assert Decision.from_json({}) == Decision()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([1], "'decision' is not a table"),
        ({"temprature": 1.0}, "unknown 'temprature' in 'decision'; it may hold: temperature, thresholds"),
        ({1: 1.0}, "unknown '1'"),
        ({"temperature": 0}, "temperature=0 must be a number over 0"),
        ({"temperature": float("nan")}, "temperature=nan must be a number over 0"),
        ({"temperature": True}, "temperature=True must be"),
        ({"temperature": None}, "temperature=None must be"),
        ({"thresholds": [0.5]}, "thresholds="),
        ({"thresholds": {"joy": 1.5}}, "thresholds of 'joy'=1.5 must be a number from 0 to 1"),
        ({"thresholds": {"joy": "0.5"}}, "thresholds of 'joy'='0.5' must be"),
        ({"no_answer": float("inf")}, "no_answer=inf must be"),
        ({"abstain": -0.1}, "abstain=-0.1 must be a number from 0 to 1"),
    ],
)
def test_a_damaged_decision_is_refused_with_the_files_name(data, said):
    with pytest.raises(RequestError, match=f"^model/bertkit.json: .*{said}"):
        Decision.from_json(data, "model/bertkit.json")


def test_confidences_of_both_kinds():
    probabilities = np.array([[0.7, 0.3], [0.4, 0.6]])
    sure, right = confidences(probabilities, np.array([0, 0]))
    assert (sure.tolist(), right.tolist()) == ([0.7, 0.6], [True, False])
    sure, right = confidences(probabilities, np.array([[1, 0], [0, 0]]))
    assert (sure.tolist(), right.tolist()) == ([0.7, 0.3, 0.4, 0.6], [True, False, False, False])
