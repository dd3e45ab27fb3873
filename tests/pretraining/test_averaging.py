"""Averaged weights in a run: beside the raw ones in evaluations, in the saved model at the end, exact on resume."""

import json

import pytest
from safetensors.torch import load_file
from tiny_runs import Stopper, make_shards, showing, tiny_recipe, weights

from bertkit.errors import RequestError
from bertkit.pretraining import evaluation
from bertkit.pretraining.pretraining import pretrain
from bertkit.train.runs import Run


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch):
    monkeypatch.setattr(evaluation, "EVALUATION_BLOCKS", 2)


@pytest.mark.parametrize(("kind", "objective"), [("ema", "mlm,nsp"), ("tail", "rtd")])
def test_the_mean_is_saved_evaluated_and_exact_on_resume(shards, tmp_path, kind, objective):
    settings = {"average": kind, "average_every": 3, "average_tail": 0.5, "heldout": shards, "evaluate_every": 8}
    recipe = tiny_recipe(shards, objective=objective, save_every=100, depth=1, batch=4, **settings)
    pretrain(recipe, tmp_path / "straight")
    pretrain(recipe, tmp_path / "stopped", show=showing(Stopper(17)))
    assert Run(tmp_path / "stopped").latest().name == "step-00000017"
    pretrain(recipe, tmp_path / "stopped", resume=True)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "straight")
    newest = Run(tmp_path / "straight").latest()
    raw, mean, final = (
        load_file(path / "model.safetensors" if path.is_dir() else path)
        for path in (newest / "model", newest / "average.safetensors", tmp_path / "straight" / "model")
    )
    words = next(name for name in final if "embeddings.word" in name)
    assert not final[words].equal(raw[words])
    assert any(tensor.shape == final[words].shape and tensor.equal(final[words]) for tensor in mean.values())
    lines = [json.loads(line) for line in (tmp_path / "straight" / "metrics.jsonl").read_text().splitlines()]
    looks = [(line["step"], "averaged" in line) for line in lines if "evaluation" in line]
    assert looks == [(8, kind == "ema"), (16, True), (24, True)]
    last = next(line for line in reversed(lines) if "averaged" in line)
    assert last["averaged"].keys() == last["evaluation"].keys()
    assert last["averaged"]["mlm_loss"] != last["evaluation"]["mlm_loss"]
    assert "averaged weights" in (tmp_path / "straight" / "report.html").read_text()


def test_training_is_the_same_with_and_without(shards, tmp_path):
    for name in ("none", "ema"):
        pretrain(tiny_recipe(shards, average=name, heldout=shards, evaluate_every=5), tmp_path / name)
    raw, other = (Run(tmp_path / name).latest() / "model" / "model.safetensors" for name in ("none", "ema"))
    assert raw.read_bytes() == other.read_bytes()
    assert not (Run(tmp_path / "none").latest() / "average.safetensors").exists()


def test_a_checkpoint_without_its_mean_is_named(shards, tmp_path):
    recipe = tiny_recipe(shards, average="ema", average_every=1)
    pretrain(recipe, tmp_path / "run", show=showing(Stopper(5)))
    (Run(tmp_path / "run").latest() / "average.safetensors").write_bytes(b"half")
    with pytest.raises(RequestError, match=r"step-00000005 is damaged .*remove that folder to continue"):
        pretrain(recipe, tmp_path / "run", resume=True)


WRONG = {"average": "mean", "average_every": 0, "average_decay": 1.0, "average_tail": 0}


@pytest.mark.parametrize("name", WRONG)
def test_settings_that_cannot_work_are_refused(shards, tmp_path, name):
    with pytest.raises(RequestError, match=rf"{name}") as caught:
        pretrain(tiny_recipe(shards, **{name: WRONG[name]}), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
