"""Choice and corruption: the readable twin and the packed one agree exactly, and both have the stated distributions."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.pretraining.examples.masking import (
    UNITS,
    Corruption,
    Packed,
    choose,
    choose_packed,
    corrupt,
    corrupt_packed,
    join_names,
    n_gram_sizes,
    n_gram_starts,
    n_grams_of,
    names_joined,
    words_of,
)
from bertkit.pretraining.examples.random import draw, uniform

CHOICE, SPANS, CORRUPTION = 101, 102, 103  # seeds of the three kinds of keys
PIECES = np.arange(5, 1000)
MODES = ["token", "whole-word", "n-gram"]


@st.composite
def sequences(draw_from):
    """(maskable, word_starts) of a few sequences, each led by a token that may not be chosen, as by a [CLS]."""
    rows = draw_from(st.lists(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40), min_size=1, max_size=6))
    return [[(False, False), *row] for row in rows]


def packed_of(rows) -> Packed:
    flags = np.array([pair for row in rows for pair in row], dtype=np.bool_)
    return Packed(flags[:, 0].copy(), flags[:, 1].copy(), np.cumsum([0, *map(len, rows)]))


def keys_of(seed: int, count: int):
    return draw(seed, np.arange(count))


def units_of(mode: str, row, key) -> list[list[int]]:
    """The readable road to a sequence's units."""
    maskable, starts = zip(*row, strict=True)
    if mode == "token":
        return [[position] for position, may in enumerate(maskable) if may]
    words = words_of(maskable, starts)
    if mode == "whole-word":
        return words
    return n_grams_of(words, n_gram_sizes(uniform(draw(key, np.arange(len(words))))).tolist())


@pytest.mark.parametrize("mode", MODES)
@given(rows=sequences(), rate=st.sampled_from([0.01, 0.15, 0.5, 1.0]), seed=st.integers(0, 1000))
def test_the_twins_choose_alike(mode, rows, rate, seed):
    packed = packed_of(rows)
    choice, spans = keys_of(seed, len(rows)), keys_of(seed + 1, len(rows))
    quick = choose_packed(packed, UNITS[mode](packed, spans), choice, rate)
    slow = []
    for number, row in enumerate(rows):
        units = units_of(mode, row, spans[number])
        chosen = choose(units, draw(choice[number], np.arange(len(units) + 1)), rate) if units else []
        slow += [int(packed.offsets[number]) + position for position in chosen]
        assert bool(units) == bool(chosen)  # at least one wherever one may be chosen
    assert quick.tolist() == slow


@given(rows=sequences(), masked=st.floats(0, 1), seed=st.integers(0, 1000))
def test_the_twins_corrupt_alike(rows, masked, seed):
    packed = packed_of(rows)
    ids = np.arange(len(packed.maskable)) + 5
    keys, chosen = keys_of(seed, len(rows)), np.flatnonzero(packed.maskable)
    corruption = Corruption(4, PIECES, masked, (1 - masked) / 2)
    quick = corrupt_packed(ids, chosen, packed.offsets, keys, corruption)
    slow = []
    for number, (start, stop) in enumerate(pairwise(packed.offsets.tolist())):
        at = [position - start for position in chosen.tolist() if start <= position < stop]
        slow += corrupt(ids[start:stop].tolist(), at, draw(keys[number], np.arange(stop - start)), corruption)
    assert quick.tolist() == slow


@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=20), min_size=1, max_size=4),
    st.lists(st.integers(0, 79), max_size=12, unique=True),
)
def test_the_twins_join_names_alike(rows, edges):
    edges = sorted(edges)
    parts = np.cumsum([0, *map(len, rows)])
    names, slow = [], []
    for row, (start, stop) in zip(rows, pairwise(parts.tolist()), strict=True):
        inside = [edge - start for edge in edges if start <= edge <= stop]
        spans = list(zip(inside[::2], inside[1::2], strict=False))
        slow += names_joined(row, spans)
        names += [(first + start, behind + start) for first, behind in spans]
    flags = np.array([flag for row in rows for flag in row])
    assert join_names(flags, np.array(names, dtype=np.int64).reshape(-1, 2).T, parts[:-1]).tolist() == slow


def test_words_end_where_a_token_may_not_be_chosen():
    #        [CLS]  un   ##ha  ##ppy [SEP] ##cut  cat  [UNK] ##s  [SEP]
    maskable = [0, 1, 1, 1, 0, 1, 1, 0, 1, 0]
    starts = [0, 1, 0, 0, 0, 0, 1, 1, 0, 0]
    assert words_of(maskable, starts) == [[1, 2, 3], [5], [6], [8]]


def test_n_grams_stop_at_a_separator():
    words = [[1], [2, 3], [4], [6], [7]]  # 5 is a [SEP]
    assert n_grams_of(words, [2, 3, 9, 3, 1]) == [[1, 2, 3], [4], [6, 7]]
    assert n_grams_of([], []) == []


def test_a_sequence_without_text_gets_none():
    packed = Packed(np.zeros(4, bool), np.zeros(4, bool), np.array([0, 2, 4]))
    for mode in MODES:
        assert len(choose_packed(packed, UNITS[mode](packed, keys_of(0, 2)), keys_of(1, 2), 0.15)) == 0
    assert choose([], draw(0, np.arange(1)), 0.15) == []


def text(sequences: int, length: int, seed: int = 0) -> Packed:
    """Sequences of [CLS], `length` tokens in words of 1.33 on average with a [SEP] inside, [SEP]."""
    rng = np.random.default_rng(seed)
    maskable = np.ones((sequences, length + 3), dtype=np.bool_)
    maskable[:, [0, length // 3, -1]] = False
    return Packed(maskable.ravel(), rng.random(maskable.size) < 0.75, np.arange(sequences + 1) * (length + 3))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("rate", "length"), [(0.15, 125), (0.15, 61), (0.4, 125)])
def test_the_rate_is_kept_in_every_mode(mode, rate, length):
    """500,000 tokens; one deviation is at most 0.06 points for n-grams, 0.01 for tokens."""
    packed = text(500_000 // length, length)
    sequences = len(packed.offsets) - 1
    chosen = choose_packed(packed, UNITS[mode](packed, keys_of(SPANS, sequences)), keys_of(CHOICE, sequences), rate)
    assert packed.maskable[chosen].all()
    assert abs(len(chosen) / packed.maskable.sum() - rate) < (0.0002 if mode == "token" else 0.002)


@pytest.mark.parametrize("mode", MODES)
def test_every_token_has_the_same_chance(mode):
    """Long words as often as short ones, ends as often as middles: 15 % each within 4.5 deviations."""
    packed = text(8_000, 61)
    starts = UNITS[mode](packed, keys_of(SPANS, 8_000))
    chosen = np.zeros(len(starts), dtype=np.bool_)
    chosen[choose_packed(packed, starts, keys_of(CHOICE, 8_000), 0.15)] = True
    by_place = chosen.reshape(8_000, -1)[:, packed.maskable.reshape(8_000, -1)[0]].mean(axis=0)
    assert np.abs(by_place - 0.15).max() < 4.5 * np.sqrt(0.15 * 0.85 / 8_000)
    units = np.cumsum(starts)[packed.maskable]
    size = np.bincount(units)[units]
    for length in range(1, 6):
        this = chosen[packed.maskable][size == length]
        if len(this):
            assert abs(this.mean() - 0.15) < 4.5 * np.sqrt(0.15 * 0.85 * length / len(this))


def test_short_sequences_get_exactly_one():
    packed = Packed(np.tile([False, True, True, True], 50), np.ones(200, bool), np.arange(51) * 4)
    chosen = choose_packed(packed, packed.maskable, keys_of(CHOICE, 50), 0.15)
    assert (chosen // 4).tolist() == list(range(50))
    assert set((chosen % 4).tolist()) == {1, 2, 3}


def test_words_are_chosen_whole_or_not_at_all():
    packed = text(2_000, 125)
    starts = UNITS["whole-word"](packed, keys_of(SPANS, 2_000))
    chosen = np.zeros(len(starts), dtype=np.bool_)
    chosen[choose_packed(packed, starts, keys_of(CHOICE, 2_000), 0.15)] = True
    goes_on = np.flatnonzero(packed.maskable & ~packed.unit_starts & np.append(False, packed.maskable[:-1]))
    assert len(goes_on) > 50_000
    assert (chosen[goes_on] == chosen[goes_on - 1]).all()


def test_n_grams_follow_the_law():
    """n = 1, 2, 3 in 6, 3, 2 of 11, within half a point, among the first eight groups of runs that hold 24 words.

    Over all groups, n = 1 has up to a point more: the group that meets the end of its run is cut.
    """
    packed = text(8_000, 125)
    words = np.flatnonzero(UNITS["whole-word"](packed, keys_of(SPANS, 8_000)))
    runs = np.flatnonzero(~packed.maskable[words - 1])
    groups = np.flatnonzero(n_gram_starts(packed, keys_of(SPANS, 8_000))[words])
    sizes = np.diff(groups, append=len(words))
    first = np.searchsorted(groups, runs[np.diff(runs, append=len(words)) >= 24])
    early = sizes[first[:, None] + np.arange(8)].ravel()
    assert len(early) > 100_000
    for counted, bound in ((early, 0.005), (sizes, 0.015)):
        shares = np.bincount(counted, minlength=4)[1:] / len(counted)
        assert np.abs(shares - np.array([6, 3, 2]) / 11).max() < bound


@pytest.mark.parametrize(("masked", "random"), [(0.8, 0.1), (0.85, 0.0), (1.0, 0.0), (0.0, 0.0), (0.0, 1.0)])
def test_shares_of_corruption(masked, random):
    """Over 150,000 chosen tokens, within 0.3 points; a random piece may by chance be the old one (1 in 995)."""
    ids = np.random.default_rng(0).integers(5, 1000, 150_000)
    at = np.arange(150_000)
    out = corrupt_packed(
        ids, at, np.arange(0, 150_001, 100), keys_of(CORRUPTION, 1500), Corruption(4, PIECES, masked, random)
    )
    other = (out != ids) & (out != 4)
    assert abs((out == 4).mean() - masked) < 0.003
    assert abs(other.mean() - random) < 0.003
    assert out.min() >= 4  # of the special ids only [MASK] is ever put in
    if random == 1.0:
        assert set(out.tolist()) == set(range(5, 1000))  # every other piece turns up
