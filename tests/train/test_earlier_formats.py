"""What version 0.1 wrote still loads, resumes and answers; what a later version may write is refused in a sentence."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bertkit
from bertkit.errors import RequestError
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.settings import read_settings
from bertkit.pretraining.pretraining import pretrain
from bertkit.pretraining.recipe import read_recipe
from bertkit.text.shards.reader import open_shards
from bertkit.train.runs import Run, read_progress

FIXTURES = Path(__file__).parents[1] / "fixtures" / "v0.1"
TEXTS = ["the old apple runs near", "a stone in the river"]
RUNS = ("run-mlm-nsp", "run-rtd-fill")
WORDS = ("epochs=3", "batch=8", "learning_rate=3e-3", "save_minutes=0", "log_every=1")


@pytest.fixture
def earlier(tmp_path, monkeypatch) -> Path:
    """A copy that may be written to, as the current folder."""
    shutil.copytree(FIXTURES, tmp_path / "v0.1")
    monkeypatch.chdir(tmp_path / "v0.1")
    return tmp_path / "v0.1"


def recipe_of(earlier: Path, run: str):
    return read_recipe(earlier / run / "settings.toml", f"shards={earlier / 'shards'}", f"heldout={earlier / 'shards'}")


def test_models_load_and_answer_as_they_did(earlier):
    vectors = bertkit.load(earlier / "model").embed(TEXTS)
    np.testing.assert_allclose(vectors, json.loads((earlier / "vectors.json").read_text()), atol=2e-5)
    found = bertkit.load(earlier / "classifier-model").classify(TEXTS)
    expected = json.loads((earlier / "answers.json").read_text())
    assert [each.label for each in found] == [label for label, _ in expected]
    assert [each.probability for each in found] == pytest.approx([share for _, share in expected], abs=2e-5)


def test_shards_open_with_every_checksum_as_written(earlier):
    shards = open_shards(earlier / "shards", verify=True)
    assert shards.documents == 4
    assert len(shards.gather([0], [shards.tokens])[0]) == shards.tokens


@pytest.mark.parametrize("run", RUNS)
def test_a_pre_training_run_goes_on_and_ends_as_a_straight_one(earlier, tmp_path, run):
    assert "format_version" not in (earlier / run / "settings.toml").read_text()
    recipe = recipe_of(earlier, run)
    report = pretrain(recipe, earlier / run, resume=True)
    assert report.progress.step == 4
    pretrain(recipe, tmp_path / "straight")
    resumed, straight = (
        load_file(folder / "model" / "model.safetensors") for folder in (earlier / run, tmp_path / "straight")
    )
    assert resumed.keys() == straight.keys()
    assert all(torch.allclose(resumed[name], straight[name], atol=1e-5) for name in resumed)


def test_a_fine_tuning_run_goes_on_and_ends_as_a_straight_one(earlier):
    given = ("classify", read_settings(*WORDS), Path("model"), Path("data/train.tsv"), Path("data/dev.tsv"))
    assert read_progress(Run(Path("fine-tuning")).latest()).step == 4
    resumed = fine_tune(*given, Path("fine-tuning"), resume=True)
    straight = fine_tune(*given, Path("straight"))
    assert resumed.finished
    assert (resumed.steps, resumed.best_step) == (straight.steps, straight.best_step) == (9, straight.best_step)
    assert resumed.scores == pytest.approx(straight.scores, abs=1e-5)


LATER = {
    "state": ("run-mlm-nsp/checkpoints/step-00000002/state.json", '{"format_version": 2,', "{"),
    "settings": ("run-mlm-nsp/settings.toml", "format_version = 2\nshards", "shards"),
}


@pytest.mark.parametrize("what", LATER)
def test_what_a_later_version_wrote_is_refused(earlier, what):
    name, later, now = LATER[what]
    recipe = recipe_of(earlier, "run-mlm-nsp")
    path = earlier / name
    path.write_text(path.read_text().replace(now, later, 1))
    with pytest.raises(RequestError, match="has format_version=2, and this bertkit reads up to 1") as caught:
        pretrain(recipe, earlier / "run-mlm-nsp", resume=True)
    assert Path(name).name in str(caught.value)


def test_a_later_fine_tuning_run_is_refused(earlier):
    path = earlier / "fine-tuning" / "run.json"
    path.write_text(json.dumps({"format_version": 2, **json.loads(path.read_text())}))
    given = ("classify", read_settings(*WORDS), Path("model"), Path("data/train.tsv"), Path("data/dev.tsv"))
    with pytest.raises(RequestError, match=r"run\.json has format_version=2, and this bertkit reads up to 1"):
        fine_tune(*given, Path("fine-tuning"), resume=True)


def test_what_is_written_now_says_its_version(earlier, tmp_path):
    pretrain(recipe_of(earlier, "run-mlm-nsp"), tmp_path / "run")
    state = json.loads((Run(tmp_path / "run").latest() / "state.json").read_text())
    assert state["format_version"] == 1
    assert (tmp_path / "run" / "settings.toml").read_text().startswith("format_version = 1\n")
