"""Calls in several processes give what they give here, and one that fails ends them all."""

import multiprocessing
import os
import signal
import threading
import time

import pytest
from small_models import script


@pytest.fixture(scope="module")
def results_of():
    return script("benchmarks/many_runs.py").results_of


def all_ended() -> bool:
    """Whether no process is left; an ended one counts as running while another thread waits for it."""
    for _ in range(100):
        if not multiprocessing.active_children():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_call_is_made_once(results_of, jobs):
    assert sorted(results_of(pow, [(2, 3), (3, 2), (5, 1)], jobs)) == [5, 8, 9]
    assert all_ended()


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_call_that_fails_ends_them_all(results_of, jobs):
    with pytest.raises(ValueError, match="invalid literal"):
        list(results_of(int, [("1",), ("x",), ("2",)], jobs))
    assert all_ended()


def test_a_signal_ends_them_at_once(results_of):
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(results_of(time.sleep, [(60,)] * 3, 2))
    assert time.monotonic() - began < 30
    assert all_ended()
