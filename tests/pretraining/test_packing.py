"""Blocks full of tokens: the array version is the plain one, nothing is lost, and no block is over its budget."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from memory_corpus import corpus_of, random_corpus

from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.examples.batches import DataSettings, ExampleSource
from bertkit.pretraining.examples.inputs import fixed_limits, to_inputs
from bertkit.pretraining.examples.packing import WINDOW, Limits, Packing, pack, pack_plain

LONGEST = 40
some_lengths = st.lists(st.integers(3, LONGEST), max_size=120)


def loads(lengths: np.ndarray, homes: np.ndarray, blocks: int) -> np.ndarray:
    return np.bincount(homes[homes >= 0], lengths[homes >= 0], blocks)


def drawn(seed: int = 0, shortest: int = 3, longest: int = LONGEST):
    """An endless sequence of lengths, a third of them full."""
    table = np.random.default_rng(seed).integers(shortest, longest + 1, 10_007)
    table[::3] = longest
    return lambda index: table[index % len(table)]


@given(some_lengths, st.integers(1, 9), st.integers(1, 8))
@hypothesis_settings(max_examples=150, deadline=None)
def test_the_fast_packing_is_the_plain_one(lengths, blocks, block):
    array = np.array(lengths, dtype=np.int64)
    homes = pack(array, blocks, block * LONGEST, LONGEST)
    assert homes.tolist() == pack_plain(lengths, blocks, block * LONGEST, LONGEST)
    load = loads(array, homes, blocks)
    assert load.max(initial=0) <= block * LONGEST
    left_out = array[homes < 0]
    assert (left_out > block * LONGEST - load.max(initial=0)).all()
    assert not len(left_out) or left_out.min() > block * LONGEST - load.min()  # only what fits nowhere


def test_the_two_agree_on_many_blocks():
    lengths = drawn(3)(np.arange(3_000))
    blocks = int(lengths.sum() / (8 * LONGEST) * 1.01)
    assert pack(lengths, blocks, 8 * LONGEST, LONGEST).tolist() == pack_plain(
        lengths.tolist(), blocks, 8 * LONGEST, LONGEST
    )


@pytest.mark.parametrize("block", [1, 2, 8, 64, 1000])
@pytest.mark.parametrize("shortest", [3, 25, LONGEST])
def test_all_blocks_of_many_chunks_hold_each_example_once(block, shortest):
    packing = Packing(drawn(1, shortest), LONGEST, block)
    for chunk in (0, 1, 7):
        members = [packing.block(chunk * packing.blocks + number) for number in range(packing.blocks)]
        seen, place = np.sort(np.concatenate(members)), chunk * packing.examples
        expected = np.arange(place, place + packing.examples)
        if block >= 8 and shortest != 25:  # without short examples a few may fit nowhere
            assert np.array_equal(seen, expected)
        assert set(seen.tolist()) <= set(expected.tolist())
        assert len(set(seen)) > 0.999 * len(expected)
        assert len(seen) - len(set(seen)) <= (0.05 * len(seen) if block == 1 else 0)
        assert all((np.diff(index) > 0).all() and len(index) for index in members)
        assert max(packing.lengths(index).sum() for index in members) <= block * LONGEST
        assert max(map(len, members)) <= packing.limits.sequences


def test_full_sequences_fill_blocks_without_a_rest():
    packing = Packing(lambda index: np.full(len(index), LONGEST), LONGEST, 16)
    assert all(len(packing.block(number)) == 16 for number in (0, 1, packing.blocks, 10**9))


def test_examples_stay_near_their_place():
    packing = Packing(drawn(2), LONGEST, 4)
    means = [packing.block(number).mean() * packing.blocks / packing.examples for number in range(0, 2000, 50)]
    assert np.abs(np.array(means) - np.arange(0, 2000, 50)).max() < WINDOW
    assert all(later - earlier > -2 * WINDOW for earlier, later in pairwise(means))


def test_any_order_of_asking_gives_the_same_blocks():
    numbers = [0, 10**7, 3, 10**12, 10**7 + 1, 1]
    one, other = Packing(drawn(), LONGEST, 8), Packing(drawn(), LONGEST, 8)
    forward = {number: one.block(number).tolist() for number in numbers}
    assert forward == {number: other.block(number).tolist() for number in reversed(numbers)}
    assert len(one._kept) <= 2


def test_one_example_is_enough():
    source = ExampleSource(corpus_of([[5]]), DataSettings(length=16, block=2))
    examples = source.block(5)
    assert set(examples.lengths) == {7}
    assert len(examples.lengths) == 4
    assert examples.epoch <= 20 + 4 * WINDOW


def test_a_chunk_that_is_longer_than_there_is_room_for_leaves_out_what_does_not_fit():
    """No length is known beforehand but those of the first chunk; all later ones here are longer."""
    packing = Packing(lambda index: np.where(index < 200_000, 10, 11), LONGEST, 4)
    late = 200_000 // packing.examples + 2
    members = [packing.block(late * packing.blocks + number) for number in range(packing.blocks)]
    assert {len(index) for index in members} == {4 * LONGEST // 11}


@pytest.mark.parametrize("objective", [("mlm",), ("mlm", "nsp"), ("causal",)], ids="+".join)
def test_all_blocks_have_one_fixed_shape(objective):
    source = ExampleSource(random_corpus(300), DataSettings(length=64, block=16, objective=objective))
    shapes, padding = set(), []
    for number in range(30):
        examples = source.block(number)
        batch, targets = to_inputs(examples, torch.device("cpu"), objective=objective, fixed_length=64)
        tensors = (batch.ids, batch.offsets, batch.positions, targets.chosen, targets.words, targets.pairs)
        shapes.add((*(tuple(tensor.shape) for tensor in tensors), batch.longest))
        padding.append(1 - len(examples.ids) / len(batch.ids))
        assert batch.offsets[len(examples.lengths)] == len(examples.ids)
        assert batch.offsets[-1] == 16 * 64
    assert len(shapes) == 1
    assert np.mean(padding) < 0.03


def test_examples_of_no_source_and_those_over_their_limits_get_a_shape_too():
    ids = np.arange(20)
    made = Examples(ids, 0 * ids, np.array([5, 15]), ids[:0], ids[:0], None, 0)
    assert fixed_limits(made, 16) == Limits(32, 4)
    many = Examples(ids, 0 * ids, np.full(10, 2), ids[:0], ids[:0], None, 0, Limits(32, 8))
    assert fixed_limits(many, 16) == Limits(32, 12)
    batch, _ = to_inputs(many, torch.device("cpu"), fixed_length=16)
    assert len(batch.offsets) == 13
