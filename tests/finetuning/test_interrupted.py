"""Runs that are killed or stopped: what goes on is what would have been, and Ctrl-C keeps the best so far."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file

import bertkit
from bertkit.finetuning.evaluate import predict
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.result import FineTuned
from bertkit.finetuning.settings import read_settings
from bertkit.progress import silent
from bertkit.tasks.read import read_examples

SETTINGS = ("epochs=6", "batch=8", "learning_rate=3e-3", "save_minutes=0.001", "log_every=1", "evaluations=2")
CHILD = """
import sys, torch
torch.set_num_threads(1)
from pathlib import Path
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.settings import read_settings
task, model, train, dev, out, *settings = sys.argv[1:]
fine_tune(task, read_settings(*settings), *map(Path, (model, train, dev, out)))
"""


pytestmark = pytest.mark.usefixtures("_one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


def test_the_bar_moves_at_every_step(model, tmp_path):
    """Whatever log_every is: ten steps of a large model take a minute."""
    done = []

    class Recorder:
        def update(self, value, facts=None):
            done.append(value)

        def say(self, now):
            done.append(now)

    def show(title, total):
        return nullcontext(Recorder()) if title == "fine-tuning" else silent(title, total)

    settings = read_settings(*SETTINGS, "log_every=100")
    fine_tune("classify", settings, model, *tiny.files(tmp_path, "classify", 24, 8), tmp_path / "run", show=show)
    assert done == [*range(1, 19), "scoring the best weights on dev and saving the model"]


def interrupted(task: str, model: Path, folder: Path, step: int, how: signal.Signals) -> tuple[Path, ...]:
    """A run of another process that got this signal after so many steps; its files."""
    files = tiny.files(folder, task, 96, 24)
    words = [sys.executable, "-c", CHILD, task, model, *files, folder / "run", *SETTINGS]
    child = subprocess.Popen([str(word) for word in words], env=os.environ)
    deadline = time.monotonic() + 120
    metrics = folder / "run" / "metrics.jsonl"
    while not (metrics.is_file() and metrics.read_text().count('"norm"') >= step):
        assert time.monotonic() < deadline, "the run did not get that far"
        assert child.poll() is None, "the run ended by itself"
        time.sleep(0.005)
    child.send_signal(how)
    child.wait(timeout=60)
    return files


def finish(task: str, model: Path, files: tuple[Path, ...], out: Path, **options) -> FineTuned:
    return fine_tune(task, read_settings(*SETTINGS), model, *files, out, **options)


@pytest.mark.parametrize("task", ["tag", "answer"])
def test_killed_in_an_epoch_it_ends_as_if_nothing_had_been(task, model, tmp_path):
    files = interrupted(task, model, tmp_path, 18, signal.SIGKILL)  # in the second epoch of 12 steps
    assert not (tmp_path / "run" / "model").exists()
    resumed = finish(task, model, files, tmp_path / "run", resume=True)
    straight = finish(task, model, files, tmp_path / "straight")
    assert resumed == straight
    one, other = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("run", "straight"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_ctrl_c_keeps_the_best_so_far(model, tmp_path):
    files = interrupted("classify", model, tmp_path, 30, signal.SIGINT)  # after four evaluations or more
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = {line["step"]: line["evaluation"] for line in lines if "evaluation" in line}
    assert not result["finished"]
    assert 30 <= result["steps"] < 72
    assert result["best_step"] == min(found, key=lambda step: (-found[step]["accuracy"], found[step]["loss"], step))
    bert = bertkit.load(tmp_path / "run")
    examples = read_examples("classify", files[1]).examples
    task = bert.answers.task
    scores = task.score(examples, predict(bert.model, task, examples))
    assert scores["accuracy"] == found[result["best_step"]]["accuracy"] == result["plain"]["accuracy"]
    assert finish("classify", model, files, tmp_path / "run", resume=True).finished


def test_a_stopped_run_says_so_on_its_meter(model, tmp_path):
    class Stopper:
        stopped_at = None

        def update(self, done, facts=None):
            self.done = done
            if done == 30:
                os.kill(os.getpid(), signal.SIGTERM)

        def say(self, now):
            pass

        def stop(self):
            self.stopped_at = self.done

    meter, files = Stopper(), tiny.files(tmp_path, "classify", 96, 24)

    def show(title, total):
        return nullcontext(meter) if title == "fine-tuning" else silent(title, total)

    assert not finish("classify", model, files, tmp_path / "run", show=show).finished
    assert meter.stopped_at == 30
    meter.stopped_at = None
    assert finish("classify", model, files, tmp_path / "run", resume=True, show=show).finished
    assert meter.stopped_at is None
