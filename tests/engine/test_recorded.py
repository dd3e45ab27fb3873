"""Passes over batches filled up to a form give what plain batches give; here they are launched, not replayed."""

import gc
import random
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bertkit.config import family_config
from bertkit.engine import recorded as recorded_passes
from bertkit.engine.batches import Passage, RowReader, layer_vectors, make_batch
from bertkit.engine.recorded import BatchShape, RecordedPasses
from bertkit.errors import BertkitWarning, RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import new_model
from bertkit.model.pooling import pool
from bertkit.poolings import TEXT_POOLINGS
from bertkit.serve.engine import ReadPooled, ReadTokens, SharedEncoder, TokenSequence

LIMIT = 160


def small(family="bert"):
    config = family_config(family, "tiny", vocab_size=60, max_length=LIMIT, init_std=0.1)
    return new_model(config, seed=1).eval().encoder


def passages(*lengths: int, seed: int = 0, segments: int = 2) -> list[Passage]:
    draw = random.Random(seed)
    return [
        Passage([draw.randrange(60) for _ in range(length)], [draw.randrange(segments) for _ in range(length)])
        for length in lengths
    ]


@dataclass(frozen=True)
class Pooled(RowReader):
    layers: tuple[int, ...]
    how: str

    def rows(self, x_TD: Tensor, batch: Batch) -> Tensor:
        return pool(x_TD, batch, self.how).float()


def plain(encoder, given: Sequence[Passage], read: Pooled) -> np.ndarray:
    """The slow twin: the batch as it comes."""
    with torch.inference_mode():
        batch = make_batch(given, torch.device("cpu"))
        return read.rows(layer_vectors(encoder, batch, read.layers), batch).numpy()


@given(st.lists(st.integers(1, LIMIT), min_size=1, max_size=200))
def test_a_form_holds_its_batch_with_little_to_spare(lengths):
    form = BatchShape.of(lengths, LIMIT)
    filled = form.padded(lengths).tolist()
    assert filled[: len(lengths)] == lengths
    assert sum(filled) == form.tokens < max(33, 2 * sum(lengths))
    assert form.tokens < 1.25 * sum(lengths) + 1024
    assert len(filled) <= form.sequences < 4 * len(filled)
    assert max(filled) <= form.longest <= LIMIT
    assert form.longest < 2 * max(64, *lengths)


def test_forms_are_few():
    draw = random.Random(0)
    mixes = [[draw.randint(8, 60) for _ in range(draw.randint(120, 136))] for _ in range(200)]
    assert len({BatchShape.of(lengths, 512) for lengths in mixes}) <= 3
    mixes = [[draw.randint(3, 256) for _ in range(draw.randint(1, 256))] for _ in range(2000)]
    assert len({BatchShape.of(lengths, 512) for lengths in mixes}) <= 48


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra", "albert", "modernbert"])
@pytest.mark.parametrize("layers", [(2,), (0, 2)])
def test_rows_are_those_of_plain_batches(family, layers):
    encoder, read = small(family), Pooled(layers, "mean")
    recorded = RecordedPasses(encoder, record_after=1)
    for lengths in ([1], [LIMIT], [5, 5, 1, 17], [3, LIMIT, 2, 30, 30], [2] * 40, [130, 64, 65]):
        given = passages(*lengths, segments=max(1, encoder.config.segments))
        np.testing.assert_allclose(recorded(given, read), plain(encoder, given, read), atol=2e-6)


@pytest.mark.parametrize("how", TEXT_POOLINGS)
def test_every_pooling(how):
    encoder, given = small(), passages(5, 5, 1, 17, LIMIT)
    found = RecordedPasses(encoder, record_after=1)(given, Pooled((2,), how))
    np.testing.assert_allclose(found, plain(encoder, given, Pooled((2,), how)), atol=2e-6)


def test_a_recording_serves_all_batches_of_its_form_and_leaves_nothing_of_the_last_one():
    encoder, read = small(), Pooled((2,), "mean")
    recorded = RecordedPasses(encoder, record_after=1)
    first = recorded(passages(20, 20, 20, seed=1), read)
    kept = first.copy()
    for seed, lengths in enumerate([(20, 20, 20), (19, 20, 9), (32, 13, 17), (31, 1, 32)], start=2):
        given = passages(*lengths, seed=seed)
        np.testing.assert_allclose(recorded(given, read), plain(encoder, given, read), atol=2e-6)
    assert len(recorded) == 1
    np.testing.assert_array_equal(first, kept)


def test_weights_that_change_in_place_are_seen():
    encoder, read, given = small(), Pooled((2,), "mean"), passages(5, 7)
    recorded = RecordedPasses(encoder, record_after=1)
    before = recorded(given, read)
    with torch.no_grad():
        encoder.layers[0].feed_forward.up.weight.mul_(-1)
    after = recorded(given, read)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, plain(encoder, given, read), atol=2e-6)


def test_only_so_many_are_kept_and_what_went_is_counted_anew():
    encoder, read = small(), Pooled((2,), "mean")
    recorded = RecordedPasses(encoder, max_recordings=2, record_after=2)
    for length in (10, 70, 150):
        for _ in range(2):
            given = passages(length)
            found = recorded(given, read)
        np.testing.assert_allclose(found, plain(encoder, given, read), atol=2e-6)
        assert len(recorded) <= 2
    assert recorded(passages(10), read) is None, "the oldest went"
    assert recorded(passages(150), read) is not None
    assert recorded(passages(10), read) is not None


def test_who_asks_for_something_else_each_time_fills_no_memory(monkeypatch):
    monkeypatch.setattr(recorded_passes, "MAX_COUNTED", 50)
    recorded = RecordedPasses(small())
    for number in range(200):
        assert recorded(passages(5), Pooled((number,), "mean")) is None
    assert len(recorded._requests) <= 51


def test_what_is_too_long_is_left_to_the_encoder_to_refuse():
    encoder, read = small(), ReadPooled((2,), "mean", True)
    shared = SharedEncoder(encoder, RecordedPasses(encoder, record_after=1))
    with pytest.raises(RequestError, match="over this model's 160 positions"):
        shared.compute([TokenSequence(passage, read) for passage in passages(5, LIMIT + 1)])


def test_a_lane_records_what_gives_rows_and_computes_the_rest_as_ever():
    encoder = small()
    shared, twin = SharedEncoder(encoder, RecordedPasses(encoder, record_after=1)), SharedEncoder(encoder)
    pooled, other, tokens = ReadPooled((2,), "mean", True), ReadPooled((1,), "max", False), ReadTokens((2,))
    given = passages(5, 17, 3, 40)
    for readers in ([pooled] * 4, [pooled, other] * 2, [tokens] * 4, [other] * 4):
        pieces = [TokenSequence(passage, read) for passage, read in zip(given, readers, strict=True)]
        for one, two in zip(shared.compute(pieces), twin.compute(pieces), strict=True):
            np.testing.assert_allclose(one, two, atol=2e-6)
    assert len(shared.recorded) == 2


def test_a_form_is_recorded_once_it_is_asked_for_often():
    encoder, read = small(), Pooled((2,), "mean")
    recorded = RecordedPasses(encoder, record_after=3)
    small_one, large = passages(5, 9), passages(30, 30, 20)
    assert [recorded(small_one, read) is None for _ in range(3)] == [True, True, False]
    assert recorded(small_one, Pooled((1,), "mean")) is None, "another reader's"
    for _ in range(3):
        found = recorded(large, read)
    np.testing.assert_allclose(found, plain(encoder, large, read), atol=2e-6)
    between = passages(30, 25)
    np.testing.assert_allclose(recorded(between, read), plain(encoder, between, read), atol=2e-6)
    assert len(recorded) == 2, "the larger one serves, for now"
    recorded(between, read), recorded(between, read)
    assert len(recorded) == 3


def test_what_cannot_be_recorded_is_launched_and_said_once():
    def refuse(run):
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    encoder, read, given = small(), ReadPooled((2,), "mean", True), passages(5, 9)
    recorded = RecordedPasses(encoder, refuse, record_after=1)
    with pytest.warns(BertkitWarning, match=r"one kernel at a time.*\(operation not permitted.*capturing\)$"):
        assert recorded(given, read) is None
    shared, pieces = SharedEncoder(encoder, recorded), [TokenSequence(passage, read) for passage in given]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(shared.compute(pieces), SharedEncoder(encoder).compute(pieces))


def test_where_there_was_no_memory_it_is_not_tried_again_at_once():
    tries = []

    def full(run):
        tries.append(run)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    recorded, read = RecordedPasses(small(), full, record_after=2), Pooled((2,), "mean")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [recorded(passages(5, 9), read) for _ in range(100)] == [None] * 100
    assert len(tries) == 1
    assert recorded(passages(60), read) is None
    assert recorded(passages(60), read) is None
    assert len(tries) == 2, "another form is"


def test_what_is_recorded_is_replayed_and_not_run_again():
    calls = []

    def record(run):
        """As a graph, which keeps nothing alive: it knows only where things were."""
        calls.append("recorded")
        there = weakref.ref(run)
        return lambda: calls.append("replayed") or there()(), None

    encoder, read = small(), Pooled((2,), "mean")
    recorded = RecordedPasses(encoder, record, record_after=1)
    for seed in range(3):
        given = passages(5, 9, seed=seed)
        np.testing.assert_allclose(recorded(given, read), plain(encoder, given, read), atol=2e-6)
    assert calls == ["recorded", *["replayed"] * 3]


@given(st.lists(st.integers(1, LIMIT), min_size=1, max_size=50), st.lists(st.integers(1, LIMIT), min_size=1))
def test_what_a_form_holds_fills_it(lengths, others):
    form = BatchShape.of(others, LIMIT)
    if form.holds(lengths):
        filled = form.padded(lengths)
        assert filled.sum() == form.tokens
        assert len(filled) <= form.sequences
        assert filled.max() <= form.longest
    assert BatchShape.of(lengths, LIMIT).holds(lengths)


def test_recordings_go_with_whoever_kept_them():
    """At once, and not when garbage is searched: a graph holds memory of the GPU."""
    usual = gc.isenabled()
    gc.disable()
    try:
        kept = RecordedPasses(small(), record_after=1)
        kept(passages(5, 6), Pooled((2,), "mean"))
        recording = weakref.ref(next(iter(kept._recordings.values())))
        assert recording() is not None
        del kept
        assert recording() is None
    finally:
        (gc.enable if usual else gc.disable)()
