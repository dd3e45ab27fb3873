"""Every row of the table of objectives goes the whole way: a new one is tested by being in the table."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_runs import make_shards, tiny_recipe, weights

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.cli.main import run as command
from bertkit.pretraining.checks import fitted
from bertkit.pretraining.examples.batches import ExampleSource
from bertkit.pretraining.examples.inputs import to_inputs
from bertkit.pretraining.learner import build_learner
from bertkit.pretraining.objectives.table import LOSSES, OBJECTIVES, objective_names
from bertkit.pretraining.planning.gauge import recipe_flops
from bertkit.pretraining.planning.memory import activation_bytes
from bertkit.pretraining.pretraining import pretrain
from bertkit.pretraining.recipe import recipe_toml
from bertkit.text.shards.reader import open_shards
from bertkit.train.runs import Run

FOR_ALL = pytest.mark.parametrize("name", OBJECTIVES)


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return make_shards(tmp_path_factory.mktemp("corpus"))


def recipe_for(name: str, shards: Path, **changes):
    """A tiny recipe with this objective, and beside it what it needs."""
    row = OBJECTIVES[name]
    beside = {"tokens": [], "extra": [row.needs], "pair": [_first_that_takes_pairs()]}[row.kind]
    words = {"objective": ",".join([*beside, name]), "masking": "whole-word", "heldout": shards}
    words |= {} if row.family is None else {"family": row.family}
    words |= {"steps": 2, "save_every": 1, "evaluate_every": 1, "keep": 3}
    return fitted(tiny_recipe(shards, **words | changes), open_shards(shards))


def _first_that_takes_pairs() -> str:
    return next(row.name for row in OBJECTIVES.values() if row.kind == "tokens" and not row.no_pair_reason)


def test_the_table_is_read_without_torch():
    code = "import sys, bertkit.pretraining.objectives.table, bertkit.pretraining.recipe; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert objective_names() == tuple(OBJECTIVES)
    assert len(OBJECTIVES) >= 7


@FOR_ALL
def test_a_row_says_what_it_is(name):
    row = OBJECTIVES[name]
    assert row.name == name
    assert row.losses
    assert all(LOSSES[loss.name] == loss and loss.title for loss in row.losses)
    assert (row.needs in OBJECTIVES) == (row.kind == "extra")
    assert bool(row.needs_reason) == (row.kind == "extra")
    assert all(row.pair_labels) == (row.kind == "pair")


@FOR_ALL
@pytest.mark.parametrize("fixed", [False, True])
def test_losses_have_as_many_targets_as_the_loader_counts(name, fixed, shards):
    recipe = recipe_for(name, shards)
    examples = ExampleSource(open_shards(shards), recipe.data).block(0)
    counts = {loss: count for row in recipe.data.rows for loss, count in row.counts(examples).items()}
    learner = build_learner(recipe)
    assert learner.weights.keys() == counts.keys()
    length = recipe.data.length if fixed else None
    sums = learner(*to_inputs(examples, torch.device("cpu"), objective=recipe.data.objective, fixed_length=length))
    assert {loss: int(count) for loss, (_, count, _) in sums.items()} == counts
    sum(total for total, _, _ in sums.values()).backward()
    trained = {row for row, parameter in learner.named_parameters() if parameter.requires_grad}
    moved = {row for row, parameter in learner.named_parameters() if parameter.grad is not None}
    assert trained == moved, "ranks would wait for a gradient that never comes"


@FOR_ALL
def test_its_costs_are_counted(name, shards):
    recipe = recipe_for(name, shards)
    plain = recipe_for(_first_that_takes_pairs(), shards)
    assert recipe_flops(recipe) > 0
    assert activation_bytes(recipe, 1000) > 0
    if OBJECTIVES[name].own_parameters(build_learner(plain).models["model"], 0) is not None:
        assert recipe_flops(recipe) > recipe_flops(plain)


@FOR_ALL
def test_it_trains_evaluates_saves_and_resumes_to_the_same_bytes(name, shards, tmp_path):
    recipe = recipe_for(name, shards)
    report = pretrain(recipe, tmp_path / "run")
    assert report.progress.step == 2
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    evaluations = [line["evaluation"] for line in lines if "evaluation" in line]
    for loss in OBJECTIVES[name].losses:
        assert all(line["loss"][loss.name] > 0 for line in lines if "loss" in line)
        assert len(evaluations) == 2
        assert all(numbers[f"{loss.name}_loss"] > 0 for numbers in evaluations)
        assert loss.shown is None or all(f"{loss.name}_{loss.shown[0]}" in numbers for numbers in evaluations)
    heads = load_checkpoint(tmp_path / "run" / "model").model.heads
    assert set(heads) == {head for row in recipe.data.rows for head in row.heads}
    expected = weights(tmp_path / "run")
    shutil.rmtree(Run(tmp_path / "run").latest())
    shutil.rmtree(tmp_path / "run" / "model")
    pretrain(recipe, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == expected


@FOR_ALL
def test_check_shows_what_it_hides(name, shards, tmp_path, capsys):
    recipe = recipe_for(name, shards)
    (tmp_path / "recipe.toml").write_text(recipe_toml(recipe))
    code = command(["check", str(shards), "--masks", "--recipe", str(tmp_path / "recipe.toml"), "--count", "3"])
    shown = capsys.readouterr()
    if not recipe.data.masks_tokens:
        assert code == 2
        assert f"objective={name} masks no token, so there is nothing to show" in shown.err
        return
    assert code == 0
    assert "tokens chosen; of these" in shown.out
    assert shown.out.count("[CLS]") == 6
    if OBJECTIVES[name].kind == "pair":
        assert any(f"({label})" in shown.out for label in OBJECTIVES[name].pair_labels)
