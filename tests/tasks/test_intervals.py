"""Intervals of scores: as known formulas and simulations say."""

import numpy as np
import pytest

from bertkit.tasks.metrics.intervals import score_intervals, wilson


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
