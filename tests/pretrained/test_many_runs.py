"""Calls in several processes give what they give here, and one that fails ends them all."""

import multiprocessing

import pytest
from small_models import script


@pytest.fixture(scope="module")
def results_of():
    return script("benchmarks/many_runs.py").results_of


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_call_is_made_once(results_of, jobs):
    assert sorted(results_of(pow, [(2, 3), (3, 2), (5, 1)], jobs)) == [5, 8, 9]
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_call_that_fails_ends_them_all(results_of, jobs):
    with pytest.raises(ValueError, match="invalid literal"):
        list(results_of(int, [("1",), ("x",), ("2",)], jobs))
    assert not multiprocessing.active_children()
