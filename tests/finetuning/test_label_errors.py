"""Confident learning: planted label errors are found, and the vectorized way equals the slow one."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import RequestError
from bertkit.finetuning.check.label_errors import confident_joint, confident_labels, likely_label_errors
from bertkit.tasks.shared.calibration import class_probabilities


def slow_confident_labels(probabilities, given):
    labels = len(probabilities[0])
    means = []
    for label in range(labels):
        own = [row[label] for row, name in zip(probabilities, given, strict=True) if name == label]
        means.append(np.mean(own) if own else math.inf)
    found = []
    for row in probabilities:
        allowed = [label for label in range(labels) if row[label] >= means[label]]
        found.append(max(allowed, key=lambda label: row[label]) if allowed else -1)
    return found


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_confident_labels_equal_the_slow_way(examples, labels, seed):
    rng = np.random.default_rng(seed)
    probabilities, given = rng.dirichlet(np.ones(labels), size=examples), rng.integers(labels, size=examples)
    names = [f"label {n}" for n in range(labels)]
    slow = slow_confident_labels(probabilities, given)
    assert confident_labels(probabilities, given).tolist() == slow
    joint = np.zeros((labels, labels), dtype=int)
    for label, found in zip(given, slow, strict=True):
        joint[label, found] += found >= 0
    np.testing.assert_array_equal(confident_joint(probabilities, given), joint)
    errors = likely_label_errors(probabilities, given, names)
    assert {error.example for error in errors} == {n for n, found in enumerate(slow) if found not in (-1, given[n])}
    margins = [error.suggested_probability - error.given_probability for error in errors]
    assert margins == sorted(margins, reverse=True)


def test_planted_label_errors_are_found_and_nothing_else():
    rng = np.random.default_rng(1)
    truth = rng.integers(3, size=600)
    logits = rng.normal(size=(600, 3)) + 9 * np.eye(3)[truth]  # no example is like another label's
    planted = rng.choice(600, size=30, replace=False)
    given = truth.copy()
    given[planted] = (truth[planted] + 1) % 3
    errors = likely_label_errors(class_probabilities(logits), given, ["a", "b", "c"])
    found = [error.example for error in errors]
    assert sorted(found) == sorted(planted.tolist())
    assert all("abc"[truth[error.example]] == error.suggested for error in errors)
    assert all("abc"[given[error.example]] == error.given for error in errors)


@pytest.mark.parametrize(
    ("probabilities", "given", "said"),
    [
        (np.zeros((2, 2)), [0], "do not go with"),
        (np.zeros((1, 2)), [2], "not from 0 to 1"),
        (np.full((1, 2), np.nan), [0], "not finite"),
        (np.zeros((1, 3)), [0], "3 probabilities per example for 2 labels"),
    ],
)
def test_label_errors_refuse_what_they_cannot_use(probabilities, given, said):
    with pytest.raises(RequestError, match=said):
        likely_label_errors(probabilities, np.array(given), ["a", "b"])


def test_no_examples_no_errors():
    assert likely_label_errors(np.zeros((0, 2)), np.zeros(0, dtype=int), ["a", "b"]) == []
