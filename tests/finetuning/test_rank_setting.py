"""`rank=8`: the trunk stays, updates and head are trained, a run resumes, settings that do not fit are refused."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from tiny import files, tiny_folder, write_classes

import bertkit
from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.errors import RequestError
from bertkit.finetuning.fine_tuning import open_data
from bertkit.finetuning.learner import load_start
from bertkit.finetuning.session import open_session
from bertkit.finetuning.settings import read_settings
from bertkit.progress import silent
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.table import TASKS
from bertkit.train.distributed import Ranks
from bertkit.train.low_rank import LowRank
from bertkit.train.runs import Run


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    return tiny_folder(folder / "trunk"), write_classes(folder / "rows.tsv", 40)


def session_of(given, tmp_path, *settings):
    trunk, rows = given
    wanted = read_settings(*settings)
    base, prepared = open_data("classify", wanted, trunk, rows, None, show=silent)
    start = load_start(base, prepared.task, wanted)
    return open_session(Run(tmp_path / "run"), prepared, start, wanted, Ranks(device=torch.device("cpu")))[0]


ATTENTION = ("attention/qkv/weight#0", "attention/qkv/weight#1", "attention/qkv/weight#2", "attention/out/weight")
FEED_FORWARD = ("feed_forward/up/weight", "feed_forward/down/weight")
CHOSEN = [
    (["rank=2"], (0, 1), ATTENTION),
    (["rank=2", "matrices=feed-forward"], (0, 1), FEED_FORWARD),
    (["rank=2", "frozen=1", "matrices=all"], (1,), ATTENTION + FEED_FORWARD),
]


@pytest.mark.parametrize(("settings", "layers", "maps"), CHOSEN, ids=["attention", "feed-forward", "upper layer"])
def test_which_maps_have_updates_and_what_is_trained(settings, layers, maps, given, tmp_path):
    module = session_of(given, tmp_path, *settings).module
    assert isinstance(module, LowRank)
    assert set(module.up) == {f"model/encoder/layers/{layer}/{name}" for layer in layers for name in maps}
    trained = {name for name, p in module.named_parameters() if p.requires_grad and name.startswith("module.")}
    assert trained == {
        f"module.model.{n}.{k}" for n in ("pooler.dense", "heads.classify.out") for k in ("weight", "bias")
    }


def test_updates_start_at_zero_and_are_scaled_by_alpha(given, tmp_path):
    module = session_of(given, tmp_path, "rank=2", "alpha=6").module
    matrices = dict(module.module.named_parameters())
    assert all(torch.equal(changed, matrices[name]) for name, changed in module.updated_matrices().items())
    key = next(iter(module.up))
    with torch.no_grad():
        module.up[key].fill_(1.0)
    name = next(part.matrix for part in module.parts if part.key == key)
    change = (module.updated_matrices()[name] - matrices[name]).detach()[:32]
    torch.testing.assert_close(change, 3 * module.down[key].detach().sum(0).expand(32, -1), atol=1e-5, rtol=1e-5)


def test_updates_have_a_higher_learning_rate_than_the_head(given, tmp_path):
    groups = session_of(given, tmp_path, "rank=2", "layer_decay=0.5").optimizers.parts[0][0].param_groups
    assert {group["scale"] for group in groups} == {1.0, 30 * 0.5, 30 * 0.25}


def tuned(given, out, **settings):
    trunk, rows = given
    more = {"rank": 2, "epochs": 2, "learning_rate": 0.003, **settings}
    return bertkit.finetune("classify", rows, model=trunk, out=out, **more)


def test_the_trunk_is_not_changed_and_the_saved_model_starts_another_run(given, tmp_path):
    trunk = load_checkpoint(given[0]).model.state_dict()
    run = tuned(given, tmp_path / "run", average=0.5)
    state = run.model.model.state_dict()
    changed = {name for name in trunk if name in state and not torch.equal(trunk[name], state[name])}
    layers = {f"encoder.layers.{n}.attention.{m}.weight" for n in (0, 1) for m in ("qkv", "out")}
    assert changed == layers
    assert sum(path.stat().st_size for path in (tmp_path / "run" / "model").iterdir()) < 30_000
    bertkit.finetune("classify", given[1], model=tmp_path / "run", out=tmp_path / "next", epochs=1)
    assert (tmp_path / "next" / "model" / "model.safetensors").is_file()
    with pytest.raises(
        RequestError, match="an adapter names the folder of its trunk: start from a whole model, not run"
    ):
        tuned((tmp_path / "run", given[1]), tmp_path / "third")


@pytest.mark.parametrize("task", [name for name, row in TASKS.items() if not row.generates])
def test_every_task_has_adapters(task, given, tmp_path):
    """The outputs of the reloaded adapter are those that the run's scores were computed from."""
    train, dev = files(tmp_path, task, 24, 24)
    run = bertkit.finetune(task, train, dev, given[0], tmp_path / "run", rank=2, epochs=1, learning_rate=0.01)
    assert (tmp_path / "run" / "model" / "adapter_model.safetensors").is_file()
    bert, plain = run.model, json.loads((tmp_path / "run" / "result.json").read_text())["plain"]
    bert.answers = replace(bert.answers, decision=Decision())  # without thresholds
    scored = bertkit.evaluate(bert, dev).scores
    assert {name: scored[name] for name in plain} == pytest.approx(plain, abs=1e-6)


def test_text_is_not_generated_by_adapters(tmp_path):
    train, dev = files(tmp_path, "write", 24, 24)
    with pytest.raises(RequestError, match="'write' generates text; leave rank out"):
        bertkit.finetune("write", train, dev, "new", tmp_path / "run", rank=2)


def test_a_stopped_run_resumes_to_the_same_adapter(given, tmp_path, monkeypatch):
    whole = tuned(given, tmp_path / "whole", save_minutes=0)
    session = "bertkit.finetuning.session.FineTuneSession.should_end_early"
    steps = iter([False] * 3)

    def stopping(self):
        if next(steps, True):
            raise KeyboardInterrupt
        return False

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(session, stopping)
        tuned(given, tmp_path / "killed", save_minutes=0)
    resumed = tuned(given, tmp_path / "killed", save_minutes=0, resume=True)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        first, second = ((tmp_path / run / "model" / name).read_bytes() for run in ("whole", "killed"))
        assert first == second
    assert resumed.scores == whole.scores


REFUSED = [
    ({"rank": 0, "alpha": 4}, "alpha and matrices go with rank; give rank=8"),
    ({"rank": 33}, "rank=33 is larger than a matrix with a side of 32; choose a smaller one"),
    ({"rank": -1}, "rank=-1"),
    ({"unfreeze": 0.5}, "unfreeze changes which weights are trained or kept; with rank, leave it out"),
    ({"checkpointing": True}, "checkpointing changes which weights are trained or kept"),
    ({"frozen": 2}, "rank=2 leaves no matrix to be tuned; unfreeze some layers"),
    ({"matrices": "queries"}, "matrices"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=[next(iter(s)) for s, _ in REFUSED])
def test_settings_that_do_not_go_with_rank(settings, message, given, tmp_path):
    with pytest.raises(RequestError, match=message):
        tuned(given, tmp_path / "run", **settings)
