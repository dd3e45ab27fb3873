"""A run goes on with what it began with: its model, its text, its vocabulary; anything else is refused."""

import shutil

import pytest
from tiny_runs import WORDS, make_shards, tiny_recipe, weights

from bertkit.errors import RequestError
from bertkit.pretraining.pretraining import pretrain
from bertkit.pretraining.recipe import read_recipe


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def model(shards, tmp_path_factory):
    out = tmp_path_factory.mktemp("first")
    pretrain(tiny_recipe(shards, steps=1, seed=5), out)
    return out / "model"


def before_its_first_checkpoint(out):
    shutil.rmtree(out / "checkpoints")
    shutil.rmtree(out / "model")


def as_of_the_earlier_version(out):
    text = (out / "settings.toml").read_text()
    (out / "settings.toml").write_text(text[: text.index("\n[begun]")])


def test_a_run_from_a_model_does_not_go_on_from_fresh_weights(shards, model, tmp_path):
    recipe, out = tiny_recipe(shards, steps=2), tmp_path / "run"
    pretrain(recipe, out, start=model)
    straight = weights(out)
    assert read_recipe(out / "settings.toml").train == recipe.train
    pretrain(recipe, out, resume=True)  # its checkpoint has the weights
    before_its_first_checkpoint(out)
    with pytest.raises(
        RequestError, match="run was begun from a model, not from fresh weights; continue with the same"
    ):
        pretrain(recipe, out, resume=True)
    pretrain(recipe, out, start=model, resume=True)
    assert weights(out) == straight


def test_another_model_is_refused(shards, model, tmp_path):
    recipe, out = tiny_recipe(shards, steps=1), tmp_path / "run"
    pretrain(recipe, out)
    with pytest.raises(RequestError, match="was begun from fresh weights, not from this model; continue with the same"):
        pretrain(recipe, out, start=model, resume=True)
    pretrain(recipe, tmp_path / "second", start=model)
    with pytest.raises(RequestError, match="was begun from another model, not from this model"):
        pretrain(recipe, tmp_path / "second", start=out / "model", resume=True)


def test_shards_that_have_moved_are_the_same(shards, tmp_path):
    pretrain(tiny_recipe(shards, steps=1, heldout=shards), tmp_path / "run")
    moved = shutil.copytree(shards, tmp_path / "elsewhere")
    pretrain(tiny_recipe(moved, steps=1, heldout=moved), tmp_path / "run", resume=True)
    with pytest.raises(RequestError, match="heldout"):
        pretrain(tiny_recipe(moved, steps=1), tmp_path / "run", resume=True)


@pytest.mark.parametrize("role", ["shards", "heldout"])
def test_another_text_in_the_same_folder_is_refused(shards, tmp_path, role):
    changed = make_shards(tmp_path / "corpus")
    recipe, out = tiny_recipe(**({"shards": shards, "steps": 1} | {role: changed})), tmp_path / "run"
    pretrain(recipe, out)
    shutil.rmtree(tmp_path / "corpus")
    make_shards(tmp_path / "corpus", seed=1)
    with pytest.raises(RequestError, match="shards no longer holds the text and the vocabulary that .*run was begun"):
        pretrain(recipe, out, resume=True)


def test_a_run_of_the_earlier_version_goes_on_but_not_with_another_vocabulary(tmp_path):
    shards, out = make_shards(tmp_path / "corpus"), tmp_path / "run"
    recipe = tiny_recipe(shards, steps=1)
    pretrain(recipe, out)
    as_of_the_earlier_version(out)
    pretrain(recipe, out, resume=True)
    assert "start" not in (out / "settings.toml").read_text().partition("[begun]")[2]
    as_of_the_earlier_version(out)
    shutil.rmtree(tmp_path / "corpus")
    make_shards(tmp_path / "corpus", words=list(reversed(WORDS)))
    with pytest.raises(RequestError, match="step-00000001 was trained with another vocabulary than that of"):
        pretrain(recipe, out, resume=True)
