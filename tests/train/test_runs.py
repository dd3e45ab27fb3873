"""A run's folder: the last checkpoints are kept whole, leftovers are swept, the record has no torn line."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from bertkit.errors import BertkitError, RequestError
from bertkit.train.runs import OPTIMIZER_FILE, Progress, Run, SavedTensors, read_progress, read_tensor_file


class Part:
    def __init__(self, text="weights", fails=False):
        self.text, self.fails = text, fails

    def save(self, folder):
        folder.mkdir()
        (folder / "file").write_text(self.text)
        if self.fails:
            raise OSError(28, "No space left on device")


def saved(run, step, keep=2, **options):
    return run.save(Progress(step=step, seconds=1.5, skipped=1), {"model": Part(**options)}, {"a": torch.ones(2)}, keep)


def test_the_last_checkpoints_are_kept_and_come_back(tmp_path):
    run = Run(tmp_path)
    assert run.latest() is None
    for step in (5, 10, 15, 100_000):
        saved(run, step)
    assert [path.name for path in run.checkpoints()] == ["step-00000015", "step-00100000"]
    assert run.latest().name == "step-00100000"
    assert read_progress(run.latest()) == Progress(step=100_000, seconds=1.5, skipped=1)
    assert torch.equal(read_tensor_file(run.latest() / OPTIMIZER_FILE)["a"], torch.ones(2))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000015", "step-00100000"]


def test_a_checkpoint_of_the_same_step_is_never_taken_apart(tmp_path):
    run = Run(tmp_path)
    path = saved(run, 5)
    saved(run, 5, text="other")
    assert (path / "model" / "file").read_text() == "weights"


def test_a_full_disk_leaves_the_checkpoints_as_they_were(tmp_path):
    run = Run(tmp_path)
    saved(run, 5)
    with pytest.raises(BertkitError, match="No space left on device"):
        saved(run, 6, fails=True)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000005"]


def test_a_disk_that_is_full_only_for_tensors_is_told_in_a_sentence(tmp_path, monkeypatch):
    """The library that writes them has an error of its own, which is no OSError."""

    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("bertkit.checkpoint.tensors.save_file", full)
    for parts in ({"model": SavedTensors({"a": torch.ones(2)})}, {"model": Part()}):
        with pytest.raises(BertkitError, match="No space left on device; nothing is left of it"):
            Run(tmp_path).save(Progress(step=1), parts, {"a": torch.ones(2)}, 2)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_leftovers_of_a_kill_are_no_checkpoints_and_are_swept(tmp_path):
    run = Run(tmp_path)
    saved(run, 5)
    for name in ("checkpoints/.step-00000009.abc.part", "checkpoints/.step-00000001.old.part", ".settings.toml.x.part"):
        (tmp_path / name / "draft").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-9").mkdir()  # somebody else's
    assert run.latest().name == "step-00000005"
    run.remove_partial()
    assert not list(tmp_path.rglob(".*"))
    assert (tmp_path / "checkpoints" / "step-9").is_dir()


def test_lines_of_steps_to_be_done_again_and_torn_ones_go(tmp_path):
    run = Run(tmp_path)
    run.truncate_metrics(3)
    assert not run.metrics.exists()
    lines = [json.dumps({"step": step}) for step in (1, 2, 3, 4)]
    run.metrics.write_text("\n".join(lines) + '\n{"step": 5, "lo')
    run.truncate_metrics(3)
    assert run.metrics.read_text() == "".join(f"{line}\n" for line in lines[:3])


def test_a_disk_that_is_full_for_a_line_names_the_file(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(BertkitError, match=r"metrics\.jsonl was not written: No space left on device; make room"):
        Run(tmp_path).append({"step": 1})


NUMBERS_THAT_ARE_NONE = ['{"step": "x"}', '{"step": -1}', '{"seconds": NaN}', '{"begun": ["x"]}', '{"begun": 3}']


@pytest.mark.parametrize("text", ['{"steps": 3}', "[]", "{", "", *NUMBERS_THAT_ARE_NONE])
def test_a_state_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(RequestError, match=r"state\.json"):
        read_progress(tmp_path)


def test_a_corrupt_memory_is_refused(tmp_path):
    (tmp_path / "optimizer.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(RequestError, match=r"optimizer\.safetensors is truncated or corrupt"):
        read_tensor_file(tmp_path / OPTIMIZER_FILE)
