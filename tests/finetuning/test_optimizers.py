"""Every optimizer of the table fine-tunes, with a learning rate for each layer, and resumes."""

from pathlib import Path

import pytest
import tiny
import torch

from bertkit.errors import RequestError
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.settings import LearningSettings, read_settings
from bertkit.train.optimizer import build_optimizer
from bertkit.train.optimizer_rows import OPTIMIZERS, OptimizerSettings


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_row_fine_tunes(name, model, tmp_path):
    files = tiny.files(tmp_path, "classify", 48, 24)
    settings, changed = (
        read_settings(f"optimizer={row}", "epochs=2", "batch=16", "learning_rate=1e-3") for row in (name, other(name))
    )
    result = fine_tune("classify", settings, model, *files, tmp_path / "run")
    assert result.finished
    assert result.steps == 6
    assert fine_tune("classify", settings, model, *files, tmp_path / "run", resume=True) == result
    with pytest.raises(RequestError, match=r"run\.json: this run was begun with optimizer="):
        fine_tune("classify", changed, model, *files, tmp_path / "run", resume=True)


def other(name: str) -> str:
    return next(row for row in OPTIMIZERS if row != name)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_parameter_steps_at_its_own_multiple_of_the_learning_rate(name):
    net = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])})
    net = torch.nn.ModuleDict({"encoder": net})
    scales = {key: 0.5 ** int(key.split(".")[2]) for key, _ in net.named_parameters()}
    optimizers = build_optimizer(net, OptimizerSettings(name=name), scales)
    names = {id(parameter): key for key, parameter in net.named_parameters()}
    found = {}
    for part, _ in optimizers.parts:
        for group in part.param_groups:
            found |= {names[id(parameter)]: group["scale"] for parameter in group["params"]}
    assert found == scales


def test_an_unknown_one_is_refused_before_anything_is_read():
    assert LearningSettings().optimizer == OptimizerSettings().name
    with pytest.raises(RequestError, match="unknown optimizer 'sgd'; choose from: adamw, muon"):
        read_settings("optimizer=sgd")
