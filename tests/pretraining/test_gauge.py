"""The readings of a run's device."""

from dataclasses import replace

import pytest
import torch

from bertkit.pretraining.objectives.rtd import generator_config
from bertkit.pretraining.planning.gauge import Gauge, recipe_flops
from bertkit.pretraining.recipe import build_recipe
from bertkit.train.distributed import Ranks
from bertkit.train.runs import Progress
from bertkit.train.speed import encoder_flops, flops_per_token, word_head_flops

PLAIN = {"shards": "s", "size": "base", "length": "128", "steps": "10", "batch": "32", "block": "16"}


def test_operations_follow_the_objective():
    mlm, pairs = build_recipe({**PLAIN, "objective": "mlm"}), build_recipe({**PLAIN, "objective": "mlm,nsp"})
    assert recipe_flops(mlm) == recipe_flops(pairs) == flops_per_token(mlm.model, 128, 0.15)
    causal = build_recipe({**PLAIN, "objective": "causal"})
    assert recipe_flops(causal) == flops_per_token(mlm.model, 128, 1.0)
    electra = build_recipe({**PLAIN, "objective": "rtd", "family": "electra"})
    both = encoder_flops(electra.model, 128) + encoder_flops(
        generator_config(electra.model, electra.train.generator), 128
    )
    assert both < recipe_flops(electra) < 1.2 * both
    filling = build_recipe({**PLAIN, "objective": "rtd,fill", "family": "electra"})
    assert recipe_flops(filling) - recipe_flops(electra) == pytest.approx(0.15 / 4 * word_head_flops(electra.model))


def test_readings_are_means_over_all_ranks():
    place = Ranks(size=2, device=torch.device("cpu"))
    gauge = Gauge(place, flops=1e6, rate=1e12, slots=4096, start=Progress())
    reading = gauge.read(Progress(step=10, seconds=2.0, tokens=36_864))
    assert reading["share"] == pytest.approx(36_864 / 2 / 2 * 1e6 / 1e12, abs=1e-4)
    assert reading["padding"] == pytest.approx(0.1)
    assert 0.02 < reading["memory_gib"] < 512


def test_the_share_of_a_resumed_run_is_that_of_this_session():
    """The matmul rate is measured at each start: speeds of before, perhaps on another machine, do not go with it."""
    before = Progress(step=100, seconds=1000.0, tokens=1_000_000)
    gauge = Gauge(Ranks(), flops=1e6, rate=1e12, slots=0, start=before)
    assert gauge.read(before)["share"] == 0.0
    after = Progress(step=110, seconds=1002.0, tokens=1_200_000)
    assert gauge.read(after)["share"] == pytest.approx(100_000 * 1e6 / 1e12)


def test_nothing_done_yet_and_packed_text():
    gauge = Gauge(Ranks(), flops=1e6, rate=1e12, slots=0, start=Progress())
    assert gauge.read(Progress())["share"] == 0.0
    assert gauge.read(Progress(step=3, seconds=1.0, tokens=7))["padding"] == 0.0
    assert replace(gauge, slots=1).read(Progress(step=1, seconds=1.0, tokens=7))["padding"] == 0.0


def test_a_gauge_measures_its_device():
    gauge = Gauge.of(build_recipe(PLAIN), Ranks(), Progress())
    assert 1e8 < gauge.rate < 1e14
    assert gauge.slots == 0
