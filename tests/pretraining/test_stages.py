"""Warm-up of batch and length: stages by share of the budget, exact on resume, refused where they cannot work."""

import json

import numpy as np
import pytest
from memory_corpus import random_corpus
from tiny_runs import Stopper, make_shards, showing, tiny_recipe, weights

from bertkit.errors import RequestError
from bertkit.pretraining.examples.batches import DataSettings
from bertkit.pretraining.pretraining import pretrain
from bertkit.pretraining.recipe import read_recipe, recipe_toml
from bertkit.pretraining.stages import START_DELAY, Stages, read_stages
from bertkit.train.runs import Run, read_progress

DATA = DataSettings(length=64, block=4)
TEXTS = ("0.25: 32 x 16", "0.5:16x32")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("corpus"))


def shape_of(stages: Stages, step: int) -> tuple[int, int]:
    """(tokens that a step has room for, longest sequence in it); the room is nearly full."""
    source, numbers = stages.blocks(step)
    lengths = np.concatenate([source.block(number).lengths for number in numbers])
    room = len(numbers) * source.settings.block * source.settings.length
    assert 0.6 * room < lengths.sum() <= room
    return room, int(lengths.max())


def test_a_run_passes_through_its_stages():
    stages = Stages(random_corpus(50), read_stages(TEXTS, 8, DATA))
    seen = []
    for step in range(80):
        seen.append(shape_of(stages, step))
        stages.move_on(step + 1, (step + 1) / 80)
    assert stages.begun == [0, 20 + START_DELAY, 40 + START_DELAY]
    assert seen == [(32 * 16, 16)] * 28 + [(16 * 32, 32)] * 20 + [(8 * 64, 64)] * 32


def test_where_it_stands_is_all_there_is_to_save():
    corpus, plan = random_corpus(50), read_stages(TEXTS, 8, DATA)
    straight = Stages(corpus, plan)
    for step in range(60):
        straight.move_on(step, step / 60)
    resumed = Stages(corpus, plan, straight.begun[1:])
    for step in (0, 24, 30, 59):
        (ours, numbers), (theirs, expected) = resumed.blocks(step), straight.blocks(step)
        assert (ours.settings, numbers) == (theirs.settings, expected)


def test_steps_that_are_being_made_keep_their_stage():
    """The loader works ahead: what it was given before a border was crossed must stay as it was."""
    stages = Stages(random_corpus(20), read_stages(TEXTS, 8, DATA))
    before = [stages.blocks(step) for step in range(START_DELAY)]
    stages.move_on(0, 0.9)  # a clock that jumps over two borders
    assert [stages.blocks(step) for step in range(START_DELAY)] == before
    assert shape_of(stages, START_DELAY) == (8 * 64, 64)


def test_shorter_sequences_go_through_in_larger_blocks():
    plan = read_stages(TEXTS, 8, DATA)
    assert [stage.data.block for stage in plan] == [16, 8, 4]
    assert [stage.batch for stage in plan] == [32, 16, 8]
    assert len({stage.data.seed for stage in plan}) == 3
    assert plan[-1].data == DATA
    assert read_stages(("0.5: 12 x 16",), 8, DATA)[0].data.block == 12


def test_a_stage_may_have_its_own_mask_rate():
    stages = Stages(random_corpus(50), read_stages(("0.3: 32 x 16 rate 0.4", "0.6: 16 x 32"), 8, DATA))
    assert [stage.data.rate for stage in stages.stages] == [0.4, DATA.rate, DATA.rate]
    first, last = (source.block(0) for source in (stages.sources[0], stages.sources[-1]))
    assert len(first.chosen) / len(first.ids) == pytest.approx(0.4, abs=0.08)
    assert len(last.chosen) / len(last.ids) == pytest.approx(0.15, abs=0.04)


def test_no_stages_are_the_recipe_itself():
    [only] = read_stages((), 8, DATA)
    assert (only.batch, only.data) == (8, DATA)


REFUSED = {
    "no form": ("64", "'64' is not of the form 'share: batch x length'"),
    "words": ("half: 8 x 16", "is not of the form"),
    "two points": ("0.1.2: 8 x 16", "is not of the form"),
    "backward": ("0.5: 8 x 8, 0.3: 8 x 16", "the share of '0.3: 8 x 16' must be under 1 and over that of the stage"),
    "all of it": ("1.0: 8 x 16", "must be under 1"),
    "batch": ("0.5: 6 x 16", "the batch of '0.5: 6 x 16' must be a multiple of block=4"),
    "no batch": ("0.5: 0 x 16", "must be a multiple"),
    "too long": ("0.5: 8 x 640", "length=640 is over the model's max_length=32"),
    "no rate": ("0.5: 8 x 16 rate 0", "rate=0.0 must be over 0 and at most 1"),
    "half a rate": ("0.5: 8 x 16 rate", "is not of the form"),
    "too short": ("0.5: 8 x 3", "length=3 leaves no room for text"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_stages_that_cannot_work_are_refused_before_the_first_step(shards, tmp_path, name):
    stages, sentence = REFUSED[name]
    with pytest.raises(RequestError, match=sentence):
        pretrain(tiny_recipe(shards, stages=stages), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_stopped_run_goes_on_through_its_stages_byte_equal(shards, tmp_path):
    recipe = tiny_recipe(shards, stages="0.25: 16 x 12 rate 0.3, 0.5: 8 x 16", save_every=100)
    pretrain(recipe, tmp_path / "straight")
    between = Stopper(9)  # the border at step 6 and the first step of the second stage
    pretrain(recipe, tmp_path / "stopped", show=showing(between))
    stopped = read_progress(Run(tmp_path / "stopped").latest())
    assert (stopped.step, stopped.begun) == (9, (6 + START_DELAY,))
    pretrain(recipe, tmp_path / "stopped", resume=True)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "straight")
    lines = [json.loads(line) for line in (tmp_path / "straight" / "metrics.jsonl").read_text().splitlines()]
    tokens = np.diff([0, *(line["tokens"] for line in lines if "tokens" in line)])
    assert max(tokens[: 6 + START_DELAY]) <= 16 * 12
    assert min(tokens[12 + START_DELAY :]) > 8 * 16, "the recipe's own length at the end"


def test_stages_are_kept_with_the_settings(shards, tmp_path):
    recipe = tiny_recipe(shards, stages="0.25: 16 x 12, 0.5: 8 x 16")
    (tmp_path / "again.toml").write_text(recipe_toml(recipe))
    assert read_recipe(tmp_path / "again.toml") == recipe
    assert recipe.train.stages == ("0.25: 16 x 12", "0.5: 8 x 16")
