"""A search or a learning curve that is given again trains nothing twice."""

import json
import shutil
from pathlib import Path

import pytest
import tiny

from bertkit.finetuning.explore.curve import learning_curve
from bertkit.finetuning.explore.search import search
from bertkit.finetuning.fine_tuning import open_data
from bertkit.finetuning.session import FineTuneSession
from bertkit.finetuning.settings import read_settings

pytestmark = pytest.mark.usefixtures("_one_thread")
ONE = read_settings("epochs=1", "batch=16")
GRID = {"learning_rate": ("1e-4", "3e-3"), "batch": ("8", "16")}


@pytest.fixture
def given(tmp_path):
    """The model, the checkpoint that was read from it, and the data."""
    model = tiny.tiny_folder(tmp_path / "model")
    return model, *open_data("classify", ONE, model, *tiny.files(tmp_path, "classify", 64, 32))


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    """The folders in which a run was trained, in order."""
    folders: list[str] = []
    train = FineTuneSession.train

    def noting(self, *given):
        folders.append(self.run.folder.name)
        return train(self, *given)

    monkeypatch.setattr(FineTuneSession, "train", noting)
    return folders


def search_again(given, out: Path):
    model, begin, prepared = given
    return search(prepared, begin, ONE, out, grid=GRID, model=model)


def test_finished_trials_are_not_trained_again(given, trained, tmp_path):
    first = search_again(given, tmp_path / "out")
    assert trained == ["0-0", "0-1", "0-2", "0-3", "1-0", "1-1", "2-0"]
    told = (tmp_path / "out" / "search.json").read_text()
    weights = (tmp_path / "out" / "model" / "model.safetensors").read_bytes()
    trained.clear()
    assert search_again(given, tmp_path / "out") == first
    assert trained == []
    assert (tmp_path / "out" / "search.json").read_text() == told
    assert (tmp_path / "out" / "model" / "model.safetensors").read_bytes() == weights


def test_a_search_that_was_stopped_goes_on_in_the_trial_that_was_not_finished(given, trained, tmp_path, monkeypatch):
    straight = search_again(given, tmp_path / "straight")
    noting = FineTuneSession.train

    def killed(self, *given):
        if self.run.folder.name == "1-0":
            raise KeyboardInterrupt
        return noting(self, *given)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(FineTuneSession, "train", killed)
        search_again(given, tmp_path / "out")
    trained.clear()
    assert search_again(given, tmp_path / "out") == straight
    assert trained == ["1-0", "1-1", "2-0"]


def test_a_winner_whose_model_is_gone_is_trained_once_more(given, trained, tmp_path):
    first = search_again(given, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "model")
    trained.clear()
    assert search_again(given, tmp_path / "out") == first
    assert trained == ["2-0"]
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()


def test_finished_points_of_a_curve_are_not_trained_again(given, trained, tmp_path):
    model, begin, prepared = given
    first = learning_curve(prepared, begin, ONE, [16, 32], tmp_path / "out", model=model)
    assert len(trained) == 4
    trained.clear()
    more = learning_curve(prepared, begin, ONE, [16, 32, 48], tmp_path / "out", model=model)
    assert more[:2] == first
    assert trained == ["48-pretrained", "48-random"]
    assert len(json.loads((tmp_path / "out" / "curve.json").read_text())["points"]) == 3
