"""A folder that one process fine-tunes in is refused to every other, in each way to use it."""

import random
from pathlib import Path

import pytest
import tiny

from bertkit import files
from bertkit.cli.main import run
from bertkit.errors import RequestError
from bertkit.finetuning.embeddings.settings import read_vector_request
from bertkit.finetuning.embeddings.tuning import tune_vectors
from bertkit.finetuning.explore.curve import learning_curve
from bertkit.finetuning.explore.glue import GLUE_TASKS, GlueFiles, run_glue
from bertkit.finetuning.explore.search import search
from bertkit.finetuning.explore.seeds import run_seeds
from bertkit.finetuning.fine_tuning import fine_tune, open_data
from bertkit.finetuning.settings import read_settings

ONE = read_settings("epochs=1", "learning_rate=3e-3", "batch=16")
GRID = {"batch": ("16", "32")}

pytestmark = pytest.mark.usefixtures("_one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


def fine_tuned(model, folder, out):
    return fine_tune("classify", ONE, model, *tiny.files(folder, "classify", 64, 32), out, resume=True)


def tuned_vectors(model, folder, out):
    draw = random.Random(0)
    (folder / "lines.txt").write_text("".join(f"{tiny.sentence(draw, 'good')}\n" for _ in range(64)))
    settings = read_vector_request("epochs=1", "batch=16", "max_length=16")[0]
    return tune_vectors(settings, model, folder / "lines.txt", None, out, resume=True)


def seeds(model, folder, out):
    return run_seeds(lambda settings, own: fine_tuned(model, folder, own), ONE, 1, out)


def searched(model, folder, out):
    begin, prepared = open_data("classify", ONE, model, *tiny.files(folder, "classify", 64, 32))
    return search(prepared, begin, ONE, out, grid=GRID)


def curve(model, folder, out):
    begin, prepared = open_data("classify", ONE, model, *tiny.files(folder, "classify", 64, 32))
    return learning_curve(prepared, begin, ONE, [16], out)


def glue(model, folder, out):
    return run_glue([GlueFiles(GLUE_TASKS["sst2"], *tiny.files(folder, "classify", 64, 32))], model, ONE, out)


@pytest.mark.parametrize("work", [fine_tuned, tuned_vectors, seeds, searched, curve, glue])
def test_one_process_at_a_time(work, model, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LOCK_TIMEOUT", 0.0)
    out = tmp_path / "out"
    out.mkdir()
    with files.locked(out), pytest.raises(RequestError, match="another process is writing to .*out; wait for it"):
        work(model, tmp_path, out)
    assert list(out.iterdir()) == []
    work(model, tmp_path, out)
    assert list(out.iterdir()) != []


def test_a_wrong_request_leaves_no_folder(model, tmp_path):
    with pytest.raises(RequestError, match=r"missing\.tsv does not exist"):
        fine_tune("classify", ONE, model, tmp_path / "missing.tsv", None, tmp_path / "a" / "run")
    assert list(tmp_path.iterdir()) == []


def test_trying_learning_rates_changes_nothing_of_a_run_in_the_folder(model, tmp_path, capsys):
    settings = read_settings("epochs=1", "learning_rate=3e-3", "batch=16", "log_every=1")
    train, dev = tiny.files(tmp_path, "classify", 64, 32)
    fine_tune("classify", settings, model, train, dev, tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert len(before.splitlines()) > 4
    words = ("finetune", "classify", "--find-rate", "--from", model, "--train", train, "--dev", dev)
    assert run([str(word) for word in (*words, "--out", tmp_path / "run")]) == 0
    assert "suggested: learning_rate=" in capsys.readouterr().out
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
