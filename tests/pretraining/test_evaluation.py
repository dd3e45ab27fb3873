"""Held-out numbers: what they are made of, and that any number of ranks finds the same ones."""

import json
import math
from functools import cache
from typing import ClassVar

import pytest
import torch
from sklearn.metrics import precision_recall_fscore_support
from tiny_runs import make_shards, recipe_words, tiny_recipe

from bertkit.pretraining.checks import fitted
from bertkit.pretraining.evaluation import EVALUATION_BLOCKS, evaluate, format_evaluation, held_out_metrics, perplexity
from bertkit.pretraining.examples.batches import ExampleSource
from bertkit.pretraining.examples.inputs import to_inputs
from bertkit.pretraining.learner import build_learner
from bertkit.pretraining.objectives.rtd import detection_metrics
from bertkit.text.shards.reader import open_shards
from bertkit.train.distributed import Ranks

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("corpus"))


class Listening(Ranks):
    """A rank that keeps what it would send, and hears nothing from the others."""

    sent: ClassVar[dict[int, list[torch.Tensor]]] = {}

    def sum(self, tensor):
        self.sent.setdefault(self.rank, []).append(tensor.clone())
        return tensor


@cache
def source_of(shards, objective):
    recipe = fitted(tiny_recipe(shards, objective=objective), open_shards(shards))
    return recipe, ExampleSource(open_shards(shards), recipe.data)


def evaluated(shards, objective, place=None):
    recipe, source = source_of(shards, objective)
    module = build_learner(recipe)
    return evaluate(
        module, source, lambda examples: to_inputs(examples, CPU, objective=recipe.data.objective), place or Ranks()
    )


NUMBERS = {
    "mlm": {"mlm_loss", "mlm_right", "mlm_perplexity"},
    "mlm,sop": {"mlm_loss", "mlm_right", "mlm_perplexity", "pair_loss", "pair_right"},
    "causal": {"causal_loss", "causal_right", "causal_perplexity"},
}
NUMBERS["rtd"] = NUMBERS["mlm"] | {"rtd_loss", "rtd_right", "rtd_precision", "rtd_recall", "rtd_f1"}
NUMBERS["rtd,fill"] = NUMBERS["rtd"] | {"fill_loss", "fill_right", "fill_perplexity"}


@pytest.mark.parametrize("objective", NUMBERS)
def test_every_objective_has_its_numbers(shards, objective):
    numbers = evaluated(shards, objective)
    assert set(numbers) == NUMBERS[objective]
    assert all(math.isfinite(value) for value in numbers.values())
    for name in ("mlm", "causal", "fill"):
        if f"{name}_loss" in numbers:
            assert numbers[f"{name}_perplexity"] == pytest.approx(math.exp(numbers[f"{name}_loss"]))


@pytest.mark.parametrize("size", [2, 3, 5, EVALUATION_BLOCKS + 3])
def test_ranks_share_the_blocks_and_their_sums_are_those_of_one(shards, size):
    """With 3, 5 or 19 ranks the blocks do not divide evenly, and some rank has none left."""
    Listening.sent = {}
    evaluated(shards, "rtd", Listening(0, 1))
    alone = Listening.sent.pop(0)
    for rank in range(size):
        evaluated(shards, "rtd", Listening(rank, size))
    together = [sum(parts) for parts in zip(*Listening.sent.values(), strict=True)]
    for ours, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=0)


def test_detection_is_that_of_scikit_learn():
    generator = torch.Generator().manual_seed(3)
    labels, called = (torch.rand(500, generator=generator) < share for share in (0.1, 0.2))
    ours = detection_metrics(int((labels & called).sum()), int(called.sum()), int(labels.sum()))
    expected = precision_recall_fscore_support(labels.numpy(), called.numpy(), average="binary")[:3]
    assert list(ours.values()) == pytest.approx(list(expected))
    assert detection_metrics(0, 0, 0) == {"rtd_precision": 0, "rtd_recall": 0, "rtd_f1": 0}


def test_losses_beyond_all_bounds_have_a_perplexity_too():
    assert perplexity(0.0) == 1.0
    assert perplexity(1e6) == math.inf
    assert math.isnan(perplexity(math.nan))
    assert held_out_metrics({"pair": [0.0, 0.0, 0.0]}) == {"pair_loss": 0.0, "pair_right": 0.0}


def test_the_line_holds_what_people_compare():
    numbers = {"mlm_loss": 2.0, "mlm_right": 0.5, "mlm_perplexity": math.exp(2), "pair_right": 0.75, "rtd_f1": 0.5}
    assert format_evaluation(numbers) == {
        "held-out mlm perplexity": "7.4",
        "held-out pair right": "75.0%",
        "held-out rtd f1": "0.500",
    }
    assert format_evaluation({"mlm_perplexity": None}) == {}


def test_the_command_prints_them(shards, tmp_path, command_here):
    (tmp_path / "recipe.toml").write_text("")
    words = recipe_words(shards, steps=2, heldout=shards, objective="mlm,nsp")
    done = command_here("pretrain", tmp_path / "recipe.toml", *words, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    [found] = [line["evaluation"] for line in lines if "evaluation" in line]
    assert f"held-out mlm perplexity {found['mlm_perplexity']:,.1f}" in done.stdout
    assert f"held-out pair right {found['pair_right']:.1%}" in done.stdout
    assert f"{found['mlm_perplexity']:,.1f}" in (tmp_path / "run" / "report.html").read_text()
