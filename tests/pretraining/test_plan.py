"""The planner: its laws are checked on devices made up for the purpose, its measuring on the real CPU."""

import json
import time
from dataclasses import asdict, replace

import pytest
import torch

from bertkit.config import BertConfig
from bertkit.errors import RequestError
from bertkit.model.model import new_model, parameter_count
from bertkit.pretraining.planning import probe
from bertkit.pretraining.planning.plan import (
    CANDIDATES,
    MEMORY_SHARE,
    UNIGRAM_LOSS,
    expected_loss,
    memory_needed,
    plan,
    plan_size,
    plan_table,
    size_config,
)
from bertkit.pretraining.planning.probe import DeviceSpeed, Work, fit_speed, measure, parameters
from bertkit.pretraining.recipe import build_recipe

# What an H200 measured, 2026-11-15, torch 2.11.
H200 = DeviceSpeed(kind="cuda", matmul_rate=775e12, per_flop=1 / 750e12, per_value=6.1e-11, memory_gib=140.0)
TWO_CORES = DeviceSpeed(kind="cpu", matmul_rate=150e9, per_flop=1 / 100e9, per_value=5e-8, memory_gib=8.0)


def row(result, name):
    return next(size for size in result.sizes if size.name == name)


@pytest.mark.parametrize(("name", "measured"), [("small", 3.72e6), ("base", 0.681e6), ("L12-H256", 3.37e6)])
def test_the_law_of_speed_holds_on_the_shapes_that_were_timed(name, measured):
    assert row(plan(10, "cuda", speed=H200), name).tokens_per_second == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(
    ("name", "block", "measured"), [("small", 512, 5.2), ("L12-H256", 512, 7.0), ("base", 512, 20.4)]
)
def test_the_law_of_memory_holds_on_the_shapes_that_were_measured(name, block, measured):
    needed = memory_needed(size_config(name, Work()), block, Work(), half=True)
    assert needed == pytest.approx(measured, rel=0.3)


@pytest.mark.parametrize(
    ("numbers", "tokens", "loss"), [(9.44e6, 0.82e9, 2.72), (85e6, 131e9, 1.38), (302e6, 85e9, 1.24)]
)
def test_the_law_of_loss_goes_through_its_points(numbers, tokens, loss):
    assert expected_loss(numbers, tokens, Work()) == pytest.approx(loss, abs=0.03)


def test_the_law_of_loss_has_sense():
    work, little = Work(), Work(corpus_tokens=10**6)
    assert expected_loss(1e6, 0, work) == UNIGRAM_LOSS
    assert 5 < expected_loss(1e6, 0, Work(vocab_size=2000)) < UNIGRAM_LOSS
    assert expected_loss(1e7, 1e10, work) < expected_loss(1e7, 1e9, work) < expected_loss(1e6, 1e9, work)
    # a corpus read over and over teaches no more after so many times
    assert expected_loss(1e8, 1e12, little) == expected_loss(1e8, 40e6, work) < UNIGRAM_LOSS
    assert expected_loss(1e8, 2e7, little) == expected_loss(1e8, 2e7, work)


@pytest.mark.parametrize("speed", [H200, TWO_CORES])
@pytest.mark.parametrize("minutes", [0.5, 25, 1440])
def test_every_row_adds_up(speed, minutes):
    work = Work(corpus_tokens=37_000_000)
    result = plan(minutes, "cpu", work, speed=speed)
    assert [size.name for size in result.sizes] == list(CANDIDATES)
    for size in result.sizes:
        assert size.tokens == size.steps * size.batch * work.length
        assert size.tokens / size.tokens_per_second <= 60 * minutes * 1.0001
        assert size.batch & (size.batch - 1) == 0
        assert size.batch % size.block == 0
        assert size.epochs == pytest.approx(size.tokens / 37_000_000)
        assert size.fits == (size.memory_gib <= MEMORY_SHARE * speed.memory_gib)
        assert 0 < size.share <= 1
    best = row(result, result.recommended)
    assert best.fits
    assert best.expected_loss <= min(size.expected_loss for size in result.sizes if size.fits and size.steps) + 0.005
    speeds = {size.name: size.tokens_per_second for size in result.sizes}
    assert speeds["tiny"] > speeds["mini"] > speeds["small"] > speeds["medium"] > speeds["base"] > speeds["large"]


def test_more_time_recommends_a_larger_model():
    short, long = plan(1, "cuda", speed=H200), plan(7 * 1440, "cuda", speed=H200)
    assert row(short, short.recommended).parameters < row(long, long.recommended).parameters
    assert row(long, long.recommended).expected_loss < row(short, short.recommended).expected_loss


def test_a_small_memory_takes_the_batch_in_parts_and_leaves_large_models_out():
    little = replace(H200, memory_gib=3.0)
    result = plan(25, "cuda", speed=little)
    assert row(result, "small").block < row(result, "small").batch
    assert row(result, "small").fits
    assert not row(result, "large").fits
    assert "! large" in plan_table(result)
    with pytest.raises(RequestError, match="no size fits"):
        plan(25, "cuda", speed=replace(H200, memory_gib=0.01))


@pytest.mark.parametrize("minutes", [0, -3, float("nan"), float("inf")])
def test_no_time_is_refused(minutes):
    with pytest.raises(RequestError, match="minutes"):
        plan(minutes, "cpu", speed=TWO_CORES)


def test_another_device_is_refused():
    with pytest.raises(RequestError, match="choose from: cpu, cuda"):
        measure(torch.device("meta"), Work())


def test_the_table_and_the_json_say_the_same():
    result = plan(25, "cuda", Work(corpus_tokens=10**8), speed=H200)
    table, data = plan_table(result), json.loads(json.dumps(asdict(result)))
    assert f"* {result.recommended}" in table
    assert data["recommended"] == result.recommended
    assert data["sizes"][0]["tokens_per_second"] == result.sizes[0].tokens_per_second
    for size in result.sizes:
        assert f"{size.steps:,}" in table
        assert f"{size.tokens_per_second:,.0f}" in table
    assert len({len(line) for line in table.splitlines()[2:10]}) == 1  # columns stand straight
    assert "no promise" in table


@pytest.mark.parametrize("name", list(CANDIDATES))
def test_the_settings_are_a_recipe(name):
    size = plan_size(name, 25, H200, Work())
    recipe = build_recipe(dict(pair.split("=") for pair in ["shards=s", *size.settings.split()]))
    assert {key: getattr(recipe.model, key) for key in CANDIDATES[name]} == CANDIDATES[name]
    assert (recipe.train.batch, recipe.data.block, recipe.train.minutes) == (size.batch, size.block, 25.0)
    assert recipe.model.dropout == recipe.model.attention_dropout == 0


def test_parameters_are_counted_nearly_right():
    config = BertConfig(vocab_size=300, width=64, depth=3, heads=2, inner=128, max_length=128)
    real = parameter_count(new_model(config, {"masked_word": None}, pooler=True))
    assert parameters(config) == pytest.approx(real, rel=0.03)


def test_the_fit_finds_what_the_points_were_made_of():
    truth = (2e-15, 5e-11)
    points = [(f, v, truth[0] * f + truth[1] * v) for f, v in ((3e7, 900.0), (4e8, 3500.0))]
    assert fit_speed(points, rate=775e12) == pytest.approx(truth)


@pytest.mark.parametrize(
    "points",
    [
        [(1e7, 1e3, 1e-6), (4e7, 2e3, 1e-6)],  # the wide one as quick as the narrow one: noise
        [(1e7, 1e3, 5e-6), (4e7, 2e3, 1e-6)],
        [(1e7, 1e3, 1e-7), (4e7, 2e3, 9e-6)],
        [(1e7, 1e3, 1e-12), (4e7, 2e3, 1e-12)],  # quicker than possible
    ],
)
def test_noise_never_makes_the_fit_absurd(points):
    per_flop, per_value = fit_speed(points, rate=1e13)
    assert per_flop >= 1e-13
    assert per_value >= 0


@pytest.fixture
def _one_thread():
    """Two threads on a machine that others use wait for each other more than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
def test_a_real_measurement_on_the_cpu(monkeypatch):
    monkeypatch.setattr(probe, "TIMED_MODELS", {"cpu": ((64, 128), 512)})
    monkeypatch.setattr(probe, "TIMING_SECONDS", 0.5)
    began = time.perf_counter()
    result = plan(2, "cpu", Work(length=32, vocab_size=400, corpus_tokens=100_000))
    assert time.perf_counter() - began < 60  # one or two alone; the machine is shared
    assert 1e8 < result.device.matmul_rate < 1e14
    assert 0 < 1 / result.device.per_flop <= result.device.matmul_rate * 1.0001
    assert row(result, "tiny").tokens_per_second > row(result, "large").tokens_per_second > 0


def test_a_training_step_really_trains():
    work = Work(length=16, vocab_size=50)
    config = probe._probe_config(64, work)
    step = probe.training_step(config, work, 256, torch.device("cpu"), compiled=False)
    objective = step.__closure__ and next(
        cell.cell_contents for cell in step.__closure__ if isinstance(cell.cell_contents, torch.nn.Module)
    )
    before = [parameter.detach().clone() for parameter in objective.parameters()]
    step()
    changed = [not torch.equal(a, b) for a, b in zip(before, objective.parameters(), strict=True)]
    assert sum(changed) > 0.9 * len(changed)
