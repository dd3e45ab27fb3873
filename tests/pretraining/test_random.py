"""Counter-based randomness: pure, spread out, and pinned so that no run's order changes silently."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bertkit.errors import RequestError
from bertkit.pretraining.examples.random import Purpose, below, draw, permute, uniform


def test_pinned_values():
    """A change here changes the examples of every run ever made: say so in the changelog before pinning anew."""
    assert draw(1, 2, np.arange(3)).tolist() == PINNED_DRAW
    assert permute(3, 10, np.arange(10)).tolist() == PINNED_TEN
    assert permute(4, 2**40, np.array([0, 1, 2**40 - 1])).tolist() == PINNED_LARGE


def test_another_process_draws_the_same():
    code = "from bertkit.pretraining.examples.random import *\n"
    code += "print(permute(5, 1000, np.arange(5)), draw(1, 2))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{permute(5, 1000, np.arange(5))} {draw(1, 2)}\n"


def test_a_draw_can_be_drawn_from():
    keys = draw(9, Purpose.CHOICE, np.arange(4))
    assert (draw(keys[:, None], np.arange(3)) == draw(9, Purpose.CHOICE, np.arange(4)[:, None], np.arange(3))).all()


def test_draws_are_uniform_and_independent():
    rolls = uniform(draw(draw(0, np.arange(1000))[:, None], np.arange(200)))
    assert stats.kstest(rolls.ravel(), "uniform").pvalue > 1e-3
    for shifted in (rolls[1:] * rolls[:-1], rolls[:, 1:] * rolls[:, :-1]):
        assert abs(shifted.mean() - 0.25) < 5 * np.sqrt(7 / 144 / shifted.size)
    ones = np.unpackbits(draw(1, np.arange(20_000)).view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(20_000)


def test_below_stays_below():
    largest = np.array([np.nextafter(1.0, 0.0)])
    for limit in (1, 3, 10, 2**31 + 7, 2**40, 2**40 - 1):
        assert below(largest, limit)[0] == limit - 1
        assert below(np.zeros(1), limit)[0] == 0


@pytest.mark.parametrize("size", [*range(1, 40), 63, 64, 65, 100, 255, 1000, 4097, 99_991])
def test_permute_is_a_bijection(size):
    for seed in range(3):
        assert (np.sort(permute(seed, size, np.arange(size))) == np.arange(size)).all()


@given(st.integers(1, 2**40), st.integers(0, 2**64 - 1), st.data())
def test_permute_stays_inside_and_keeps_apart(size, seed, data):
    index = np.array(data.draw(st.lists(st.integers(0, size - 1), unique=True, max_size=50)), dtype=np.int64)
    places = permute(seed, size, index)
    assert len(set(places.tolist())) == len(index)
    assert ((places >= 0) & (places < size)).all()
    assert places.tolist() == [int(permute(seed, size, index[at : at + 1])[0]) for at in range(len(index))]


def test_permute_refuses_an_index_outside():
    for index in ([5], [-1], [0, 9]):
        with pytest.raises(RequestError, match="outside a permutation of 5"):
            permute(0, 5, np.array(index))


def test_permute_takes_a_seed_for_each_index():
    seeds, index = draw(0, np.arange(20)), np.arange(20) % 7
    alone = [permute(seeds[at : at + 1], 7, index[at : at + 1])[0] for at in range(20)]
    assert permute(seeds, 7, index).tolist() == alone


@pytest.mark.parametrize("size", [2, 3, 5, 7, 16, 30])
def test_every_place_is_equally_likely(size):
    """Chi-square over 20,000 seeds; the rows and columns of the table are tied, which leaves (size-1)^2 free."""
    seeds = 20_000
    table = [np.bincount(permute(np.arange(seeds), size, np.full(seeds, at)), minlength=size) for at in range(size)]
    expected = seeds / size
    assert stats.chi2.sf(((np.array(table) - expected) ** 2 / expected).sum(), (size - 1) ** 2) > 1e-3


def test_every_order_of_four_is_equally_likely():
    seeds = 24_000
    orders = np.stack([permute(np.arange(seeds), 4, np.full(seeds, at)) for at in range(4)], axis=1)
    counts = np.unique(orders @ [64, 16, 4, 1], return_counts=True)[1]
    assert len(counts) == len(list(itertools.permutations(range(4))))
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("size", [1000, 100_003, 2**30 + 1])
def test_neighbors_part(size):
    """No trace of the old order: where i goes says nothing of i, nor of where i + 1 goes."""
    at = np.arange(min(size, 100_000))
    places = permute(11, size, at)
    bound = 4.5 / np.sqrt(len(at))
    assert abs(np.corrcoef(at, places)[0, 1]) < bound
    assert abs(np.corrcoef(places[1:], places[:-1])[0, 1]) < bound
    steps = np.diff(places) % size
    assert stats.kstest(steps / size, "uniform").pvalue > 1e-3
    assert (steps == 1).sum() < 10


PINNED_DRAW = [12017601128915079454, 7876820519921869660, 12285402284224189678]
PINNED_TEN = [3, 1, 2, 6, 0, 5, 9, 4, 8, 7]
PINNED_LARGE = [355879896798, 225339418756, 443122810752]
