"""The recipes of the family table: about ten million parameters in the layers of each, and each of them trains."""

from pathlib import Path

import pytest
import torch
from tiny_runs import make_shards

from bertkit.model.model import BertModel, parameter_count
from bertkit.pretraining.pretraining import pretrain
from bertkit.pretraining.recipe import read_recipe
from bertkit.pretraining.recipe_files import FOLDER

RECIPES = sorted((FOLDER / "family").glob("*.toml"))
SMALL = ("depth=2", "width=16", "inner=32", "length=24", "block=4", "batch=8", "minutes=none", "steps=2")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("corpus"))


def name(path: Path) -> str:
    return path.stem


def test_there_is_a_recipe_for_each_row_that_is_pre_trained():
    assert set(map(name, RECIPES)) == {"albert", "bert", "electra", "elmo", "gpt", "roberta", "ulmfit", "xlnet"}


def test_all_read_the_same_number_of_tokens_for_the_same_minutes():
    recipes = [read_recipe(path, "shards=x") for path in RECIPES]
    assert {(each.data.length, each.train.minutes, each.train.steps) for each in recipes} == {(128, 3.0, None)}


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_a_recipe_has_its_size_and_a_small_one_of_it_trains(path, shards, tmp_path):
    assert path.read_text().startswith(f"# bertkit pretrain family/{path.stem} shards=SHARDS --out run: ")
    with torch.device("meta"):
        layers = BertModel(read_recipe(path, "shards=x").model).encoder.layers
    assert 9.4e6 < parameter_count(layers) < 10.5e6
    heads = () if path.stem in ("elmo", "ulmfit") else ("heads=2",)
    recipe = read_recipe(path, f"shards={shards}", *SMALL, *heads)
    assert pretrain(recipe, tmp_path / "run", device="cpu").progress.step == 2
