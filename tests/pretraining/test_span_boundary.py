"""SpanBERT: spans of geometric lengths, masked as one, and each word predicted from the borders of its span."""

import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from memory_corpus import FIRST, MASK, random_corpus
from tiny_runs import make_shards, tiny_recipe, weights

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.config import family_config, override
from bertkit.errors import RequestError
from bertkit.model.model import new_model
from bertkit.model.word_loss import IGNORE
from bertkit.pretraining.examples import masking
from bertkit.pretraining.examples.batches import DataSettings, ExampleSource
from bertkit.pretraining.examples.inputs import to_inputs
from bertkit.pretraining.examples.masking import (
    Corruption,
    MaskingKeys,
    Packed,
    corrupt,
    mask_packed,
    span_sizes,
    unit_firsts,
)
from bertkit.pretraining.examples.random import draw
from bertkit.pretraining.examples.show_masks import masked_examples
from bertkit.pretraining.objectives.module import ForPretraining
from bertkit.pretraining.objectives.sbo import MAX_POSITIONS, span_bounds
from bertkit.pretraining.objectives.table import objective_rows
from bertkit.pretraining.objectives.targets import LossInputs
from bertkit.pretraining.pretraining import pretrain
from bertkit.text.shards.reader import open_shards
from bertkit.train.runs import Run

CPU = torch.device("cpu")
SETTINGS = {"objective": ("mlm", "sbo"), "masking": "span", "length": 48, "block": 16}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("corpus"))


def examples(**changes):
    return ExampleSource(random_corpus(60, distinct=False), DataSettings(**SETTINGS | changes)).block(0)


def learner(seed=0) -> ForPretraining:
    shape = ("width=32", "depth=1", "heads=2", "inner=48", "max_length=48", "dropout=0", "attention_dropout=0")
    config = override(family_config("bert", "tiny"), *shape, "vocab_size=1000", "init_std=0.1")
    return ForPretraining(new_model(config, {"masked_word": None}), objective_rows(["mlm", "sbo"]), seed)


def test_span_lengths_follow_the_paper():
    sizes = span_sizes(np.random.default_rng(0).random(200_000))
    chances = 0.8 ** np.arange(10) / (0.8 ** np.arange(10)).sum()
    assert sizes.min() == 1
    assert sizes.max() == 10
    np.testing.assert_allclose(np.bincount(sizes)[1:] / len(sizes), chances, atol=4e-3)  # over three deviations
    assert sizes.mean() == pytest.approx(3.797, abs=0.02)


def test_the_spans_of_a_corpus_have_these_lengths_and_the_rate_holds():
    """Words of one token: a unit's tokens are its words; sequences' ends cut a few spans short."""
    packed = Packed(np.tile([False] + [True] * 400 + [False], 300), np.ones(402 * 300, bool), np.arange(301) * 402)
    starts = masking.UNITS["span"](packed, draw(3, np.arange(300)))
    lengths = np.diff(np.append(np.flatnonzero(starts), len(starts)))
    inner = lengths[lengths <= 10]
    assert np.bincount(inner)[1] / len(inner) == pytest.approx(0.224, abs=0.01)
    assert inner.mean() == pytest.approx(3.8, abs=0.08)
    made = examples(block=400)
    assert len(made.chosen) / (made.ids >= 0).sum() == pytest.approx(0.15, abs=0.02)


def test_a_span_becomes_one_thing_and_the_packed_form_is_the_readable_one():
    rng = np.random.default_rng(1)
    ids = rng.integers(FIRST, 900, 3 * 62).astype(np.int32)
    maskable = np.tile([False] + [True] * 60 + [False], 3)
    packed = Packed(maskable, rng.random(len(ids)) < 0.6, np.array([0, 62, 124, 186]))
    keys = MaskingKeys(*(draw(purpose, np.arange(3)) for purpose in (1, 2, 3)))
    corruption = Corruption(MASK, np.arange(FIRST, 900, dtype=np.int32), 0.5, 0.3)
    mode = masking.UNITS["span"]
    chosen, found = mask_packed(ids, packed, mode, keys, 0.5, corruption)
    firsts = unit_firsts(mode(packed, keys.units))
    for unit in np.unique(firsts[chosen]):
        own = chosen[firsts[chosen] == unit]
        masked, same = found[own] == MASK, found[own] == ids[own]
        assert masked.all() or same.all() or not masked.any()
    for number, first in enumerate(packed.offsets[:-1]):
        inside = [int(place - first) for place in chosen if first <= place < first + 62]
        deciding = {place: int(firsts[place + first] - first) for place in inside}
        bits = draw(np.repeat(keys.corruption[number], 62), np.arange(62))
        expected = corrupt(ids[first : first + 62].tolist(), inside, bits, corruption, deciding)
        assert found[first : first + 62].tolist() == expected


def slow_bounds(positions: list[int]) -> list[tuple[int, int]]:
    found = []
    for place in positions:
        first = last = place
        while first - 1 in positions:
            first -= 1
        while last + 1 in positions:
            last += 1
        found.append((first, last))
    return found


def test_bounds_are_those_of_a_walk_and_slots_that_fill_a_shape_stay_alone():
    positions = sorted(np.random.default_rng(2).choice(np.arange(1, 90), 40, replace=False).tolist())
    first, last = span_bounds(torch.tensor(positions))
    assert list(zip(first.tolist(), last.tolist(), strict=True)) == slow_bounds(positions)
    first, last = span_bounds(torch.tensor([4, 5, 9, 0, 0]))
    assert (first.tolist(), last.tolist()) == ([4, 4, 9, 0, 0], [5, 5, 9, 0, 0])
    assert [len(each) for each in span_bounds(torch.empty(0, dtype=torch.long))] == [0, 0]


def slow_loss(module: ForPretraining, batch, targets) -> torch.Tensor:
    """One word at a time."""
    hidden, own = module.model(batch), module.own["sbo"]
    positions, losses = targets.chosen.tolist(), []
    for place, word, (first, last) in zip(positions, targets.words, slow_bounds(positions), strict=True):
        where = own["position"].weight[min(place - first, MAX_POSITIONS - 1)]
        vector = own["first"](torch.cat((hidden[first - 1], hidden[last + 1], where)))
        losses.append(F.cross_entropy(own["words"](vector[None]), word[None]))
    return torch.stack(losses).sum()


def test_the_loss_is_that_of_its_slow_twin_in_both_layouts():
    module, made = learner().eval(), examples()
    free = to_inputs(made, CPU, objective=("mlm", "sbo"))
    expected = slow_loss(module, *free)
    for batch, targets in (free, to_inputs(made, CPU, objective=("mlm", "sbo"), fixed_length=48)):
        loss, count, _ = module(batch, targets)["sbo"]
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-4)
        assert int(count) == int((targets.words != IGNORE).sum()) == len(made.chosen)


def test_a_word_is_predicted_from_the_borders_and_its_place_alone():
    module = learner().eval()
    hidden, (batch, targets) = torch.randn(len(examples().ids), 32), to_inputs(examples(), CPU)
    [row] = objective_rows(["sbo"])
    before = row.loss(LossInputs(module.model, module.own["sbo"], hidden, batch, targets))[0]
    inside = hidden.clone()
    inside[targets.chosen] += 5.0
    assert torch.equal(row.loss(LossInputs(module.model, module.own["sbo"], inside, batch, targets))[0], before)
    borders = hidden.clone()
    borders[span_bounds(targets.chosen)[0] - 1] += 5.0
    assert not torch.equal(row.loss(LossInputs(module.model, module.own["sbo"], borders, batch, targets))[0], before)


def test_its_network_starts_from_the_seed():
    one, same, other = (dict(learner(seed).own.named_parameters()) for seed in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_resumed_it_ends_as_a_straight_run_and_the_model_is_a_plain_one(shards, tmp_path):
    recipe = tiny_recipe(shards, objective="mlm,sbo", masking="span", steps=6, save_every=3, keep=3)
    pretrain(recipe, tmp_path / "straight")
    pretrain(recipe, tmp_path / "run")
    expected, newest = weights(tmp_path / "straight"), Run(tmp_path / "run").latest()
    assert any(name.endswith("objective.safetensors") for name in expected)

    shutil.rmtree(newest)
    shutil.rmtree(tmp_path / "run" / "model")
    pretrain(recipe, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == expected
    assert set(load_checkpoint(tmp_path / "run" / "model").model.heads) == {"masked_word"}
    (newest / "objective.safetensors").unlink()
    shutil.rmtree(tmp_path / "run" / "model")
    with pytest.raises(RequestError, match=r"is damaged .*objective\.safetensors"):
        pretrain(recipe, tmp_path / "run", resume=True)


def test_check_says_how_long_spans_are(shards):
    settings = DataSettings(**SETTINGS | {"length": 24})
    _, shares = masked_examples(open_shards(shards), settings, 20)
    [remark] = shares.remarks
    assert " spans of " in remark
    assert float(remark.split(" spans of ")[1].split()[0]) > 1.5


def test_without_mlm_or_spans_it_is_refused():
    with pytest.raises(RequestError, match="objective=rtd, sbo has sbo without mlm"):
        DataSettings(objective=("rtd", "sbo"), masking="span")
    with pytest.raises(RequestError, match="masking=token masks no spans, which objective sbo predicts; set masking="):
        DataSettings(objective=("mlm", "sbo"))
