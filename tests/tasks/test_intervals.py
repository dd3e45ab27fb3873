"""Intervals of scores: as known formulas and simulations say."""

import math

import numpy as np
import pytest

from bertkit.tasks.metrics.intervals import PairedTest, paired_test, score_intervals, wilson


def test_wilson_is_as_published():
    assert wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson(1.0, 20) == pytest.approx((0.8389, 1.0), abs=1e-4)
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)


def test_the_bootstrap_of_a_share_is_near_wilsons_interval():
    correct = np.arange(872) < 663

    def score(chosen):
        return {"accuracy": float(correct[chosen].mean()), "constant": 0.3}

    found = score_intervals(score, 872, {"accuracy": 663 / 872, "constant": 0.3, "loss": 0.5})
    assert found["accuracy"] == pytest.approx(wilson(663 / 872, 872), abs=0.006)
    assert set(found) == {"accuracy"}, "no interval where nothing varies, or nothing was scored"
    assert score_intervals(score, 872, {"accuracy": 663 / 872}) == {"accuracy": found["accuracy"]}, "always the same"


def test_a_perfect_score_is_not_certain():
    found = score_intervals(lambda chosen: {"accuracy": 1.0, "f1": 0.0}, 20, {"accuracy": 1.0, "f1": 0.0})
    assert found == {"accuracy": wilson(1.0, 20)}, "an F1 is no share of the examples"


def shares(right):
    return lambda chosen: {"accuracy": float(right[chosen].mean())}


def test_a_paired_test_knows_the_error_of_the_difference():
    draw = np.random.default_rng(3)
    one, other = draw.random((2, 400)) < [[0.8], [0.7]]
    found = paired_test(shares(one), shares(other), "accuracy", 400)
    difference = one.astype(float) - other
    error = difference.std(ddof=1) / np.sqrt(400)  # by formula, as the mean of 400 differences
    middle, half = difference.mean(), 1.96 * error
    assert found.interval == pytest.approx((middle - half, middle + half), abs=0.01)
    assert found.p_value == pytest.approx(math.erfc(abs(middle) / error / math.sqrt(2)), abs=0.02)
    back = paired_test(shares(other), shares(one), "accuracy", 400)
    assert back.interval == pytest.approx((-found.interval[1], -found.interval[0]), abs=1e-9)
    assert (back.p_value, back.resamples) == (found.p_value, found.resamples)


def test_what_is_paired_is_seen_where_two_intervals_overlap():
    draw = np.random.default_rng(5)
    other = draw.random(300) < 0.6
    one = other | (draw.random(300) < 0.05)  # the same answers, and a few more right ones
    assert paired_test(shares(one), shares(other), "accuracy", 300).p_value < 0.01
    shuffled = draw.permutation(other)
    assert paired_test(shares(one), shares(shuffled), "accuracy", 300).p_value > 0.05


def test_no_difference_is_found_as_often_as_chance_says():
    draw = np.random.default_rng(7)
    found = [paired_test(*map(shares, draw.random((2, 120)) < 0.5), "accuracy", 120).p_value for _ in range(40)]
    assert 0 <= sum(p < 0.05 for p in found) <= 6  # 2 expected
    assert 0.3 < np.mean(found) < 0.75


def test_equal_models_and_undefined_metrics():
    same = shares(np.arange(10) < 5)
    assert paired_test(same, same, "accuracy", 10) == PairedTest((0.0, 0.0), 1.0, 1000)
    nothing = paired_test(lambda chosen: {"f1": math.nan}, lambda chosen: {"f1": 0.5}, "f1", 10)
    assert (nothing.resamples, math.isnan(nothing.p_value)) == (0, True)
