"""Never lose a run: killed anywhere, it goes on to the bytes of a run that was not."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file
from tiny_runs import Stopper, child, make_shards, recipe_words, server, showing, tiny_recipe, weights

from bertkit import files
from bertkit.errors import BertkitError, RequestError
from bertkit.files import locked
from bertkit.pretraining import verify
from bertkit.pretraining.planning.gauge import Gauge
from bertkit.pretraining.pretraining import pretrain
from bertkit.pretraining.recipe import read_recipe, recipe_toml
from bertkit.train.runs import Run, read_progress

KILLS = 4


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("corpus"))


def started(recipe, out, pause):
    """A process that resumes the run, and the event of its first step. Bytes are promised for one number of threads."""
    context = server()
    ready = context.Event()
    process = context.Process(target=child, args=(recipe, out, pause, ready))
    process.start()
    return process, ready


def to_the_end(recipe, out):
    process, _ready = started(recipe, out, 0.0)
    process.join()
    assert process.exitcode == 0


def killed_again_and_again(recipe, out, kills, seed):
    """Start or resume the run, kill -9 at a random moment, look at every file; then let it end."""
    rng = random.Random(seed)
    for number in range(kills):
        process, ready = started(recipe, out, 0.02)
        deadline = time.monotonic() + 60
        while not ready.wait(0.02) and process.is_alive():  # a run that has ended never takes a step
            assert time.monotonic() < deadline
        while number == 0 and not Run(out).checkpoints():  # one kill at least is in the middle
            time.sleep(0.001)
        time.sleep(rng.uniform(0.0, 0.4))
        process.kill()
        process.join()
        assert number or not (out / "model").exists()
        everything_is_readable(out)
    to_the_end(recipe, out)


def everything_is_readable(out):
    for checkpoint in Run(out).checkpoints():
        assert read_progress(checkpoint).step == int(checkpoint.name[-8:])
        names = {str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*")}
        assert {"optimizer.safetensors", "model/model.safetensors", "model/config.json"} <= names
    for path in out.rglob("*.safetensors"):
        if ".part" not in str(path):
            load_file(path)
    if (out / "settings.toml").exists():
        read_recipe(out / "settings.toml")


def steps_logged(out) -> list[int]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "loss" in line]


@pytest.mark.parametrize("changes", [{}, {"objective": "rtd,fill", "optimizer": "muon"}], ids=["bert", "electra-muon"])
def test_killed_at_random_moments_the_run_ends_with_the_same_bytes(shards, tmp_path, changes):
    recipe = tiny_recipe(shards, **changes)
    to_the_end(recipe, tmp_path / "straight")
    killed_again_and_again(recipe, tmp_path / "killed", KILLS, seed=len(changes))
    assert weights(tmp_path / "killed") == weights(tmp_path / "straight")
    assert steps_logged(tmp_path / "killed") == steps_logged(tmp_path / "straight") == list(range(1, 25))
    assert not list((tmp_path / "killed").rglob(".*")), "leftovers of killed processes"
    assert [path.name for path in Run(tmp_path / "killed").checkpoints()] == ["step-00000020", "step-00000024"]


def test_sigterm_saves_and_stops_and_resume_goes_on(shards, tmp_path):
    recipe, out = tmp_path / "recipe.toml", tmp_path / "run"
    recipe.write_text("")
    words = recipe_words(shards, steps=4000, save_every=1000)
    command = [sys.executable, "-m", "bertkit", "pretrain", str(recipe), *words, "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (out / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "stopped and saved" in said
    stopped_at = read_progress(Run(out).latest()).step
    assert f"{stopped_at:,} steps" in said
    assert stopped_at % 1000, "it should have stopped between two checkpoints"
    assert not (out / "model").exists()
    assert steps_logged(out) == list(range(1, stopped_at + 1))


def test_a_stopped_run_goes_on_byte_equal(shards, tmp_path):
    """In one process, with the signal sent from the meter at step 7."""

    recipe, meter = tiny_recipe(shards), Stopper(7)
    report = pretrain(recipe, tmp_path / "stopped", show=showing(meter))
    assert report.progress.step == 7
    assert meter.was_stopped
    assert [path.name for path in Run(tmp_path / "stopped").checkpoints()] == ["step-00000004", "step-00000007"]
    assert pretrain(recipe, tmp_path / "stopped", resume=True).progress.step == 24
    pretrain(recipe, tmp_path / "straight")
    assert weights(tmp_path / "stopped") == weights(tmp_path / "straight")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_resumed_run_measures_its_share_from_where_it_goes_on(shards, tmp_path, monkeypatch):
    starts = []
    gauge_of = Gauge.of.__func__
    monkeypatch.setattr(
        Gauge, "of", classmethod(lambda cls, *given: starts.append((gauge := gauge_of(cls, *given)).start) or gauge)
    )
    recipe = tiny_recipe(shards, steps=8)
    pretrain(recipe, tmp_path / "run", show=showing(Stopper(5)))
    pretrain(recipe, tmp_path / "run", resume=True)
    assert [start.step for start in starts] == [0, 5]


def test_resuming_a_finished_run_says_so_and_changes_nothing(shards, tmp_path, command_here):
    recipe = tiny_recipe(shards, steps=5, save_every=2)
    pretrain(recipe, tmp_path / "run")
    before = weights(tmp_path / "run")
    (tmp_path / "recipe.toml").write_text(recipe_toml(recipe))
    done = command_here("pretrain", tmp_path / "recipe.toml", "--out", tmp_path / "run", "--resume")
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0)
    assert "finished already" in done.stdout
    assert weights(tmp_path / "run") == before
    assert steps_logged(tmp_path / "run") == [1, 2, 3, 4, 5]


def test_a_kill_between_the_last_checkpoint_and_the_model_is_mended(shards, tmp_path):
    recipe = tiny_recipe(shards, steps=4)
    pretrain(recipe, tmp_path / "run")
    before = weights(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    assert pretrain(recipe, tmp_path / "run", resume=True) is None
    assert weights(tmp_path / "run") == before


def test_other_settings_are_refused_but_harmless_ones_may_change(shards, tmp_path):
    pretrain(tiny_recipe(shards, steps=2, seed=3), tmp_path / "run")
    with pytest.raises(RequestError, match=r"was begun with learning_rate=0\.003, not 0\.1; continue with the same"):
        pretrain(tiny_recipe(shards, steps=2, seed=3, learning_rate=0.1), tmp_path / "run", resume=True)
    with pytest.raises(RequestError, match="was begun with seed=3, not 4"):
        pretrain(tiny_recipe(shards, steps=2, seed=4), tmp_path / "run", resume=True)
    with pytest.raises(RequestError, match="was begun with width=16, not 32"):
        pretrain(tiny_recipe(shards, steps=2, seed=3, width=32), tmp_path / "run", resume=True)
    pretrain(tiny_recipe(shards, steps=2, seed=3, keep=1, log_every=7), tmp_path / "run", resume=True)


def test_a_folder_that_is_no_run_is_refused(shards, tmp_path):
    (tmp_path / "thesis.txt").write_text("do not touch")
    with pytest.raises(RequestError, match=r"is not the folder of a run: it has no settings\.toml"):
        pretrain(tiny_recipe(shards), tmp_path, resume=True)


@pytest.mark.parametrize("resume", [True, False])
def test_a_folder_that_another_process_trains_in_is_refused(shards, tmp_path, resume, monkeypatch):
    monkeypatch.setattr(files, "LOCK_TIMEOUT", 0.0)
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run", 0.0), pytest.raises(RequestError, match="another process is writing .*run; wait"):
        pretrain(tiny_recipe(shards, steps=1), tmp_path / "run", resume=resume)
    pretrain(tiny_recipe(shards, steps=1), tmp_path / "run", resume=resume)


def damage(path, how):
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-20])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "missing":
        path.unlink()
    else:
        path.write_text(how)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("optimizer.safetensors", "truncated"),
        ("optimizer.safetensors", "missing"),
        ("model/model.safetensors", "truncated"),
        ("model/model.safetensors", "empty"),
        ("model/config.json", "{"),
        ("state.json", '{"step": 4, "mood": "bad"}'),
        ("state.json", "missing"),
    ],
)
def test_a_damaged_checkpoint_gives_one_sentence_and_the_one_before_it_serves(shards, tmp_path, name, how):
    recipe = tiny_recipe(shards, steps=6, save_every=4)
    pretrain(recipe, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    newest = Run(tmp_path / "run").latest()
    damage(newest / name, how)
    with pytest.raises(RequestError, match="step-00000006 is damaged .*; remove that folder") as caught:
        pretrain(recipe, tmp_path / "run", resume=True)
    assert "\n" not in str(caught.value)
    shutil.rmtree(newest)
    assert pretrain(recipe, tmp_path / "run", resume=True).progress.step == 6


def test_the_memory_of_another_model_is_refused(shards, tmp_path):
    recipe = tiny_recipe(shards, steps=2)
    pretrain(recipe, tmp_path / "run")
    pretrain(tiny_recipe(shards, steps=2, inner=48), tmp_path / "other")
    theirs = Run(tmp_path / "other").latest() / "optimizer.safetensors"
    (Run(tmp_path / "run").latest() / "optimizer.safetensors").write_bytes(theirs.read_bytes())
    with pytest.raises(RequestError, match="is damaged .*where this model has"):
        pretrain(recipe, tmp_path / "run", resume=True)


def test_verify_resume_tells_the_verdict(shards, tmp_path, command_here):
    (tmp_path / "recipe.toml").write_text("")
    words = recipe_words(shards, steps=6)
    done = command_here("pretrain", tmp_path / "recipe.toml", *words, "--verify-resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "6 steps straight, and killed " in done.stdout
    assert "equal byte for byte" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]


def test_verify_resume_finds_a_difference(shards, tmp_path, monkeypatch):
    def in_process(folder, name, start):
        seed = 0 if name == "straight" else 1  # what a run that depends on its history would look like
        pretrain(tiny_recipe(shards, steps=2, seed=seed), folder / name, resume=True)

    monkeypatch.setattr(verify, "_start", in_process)
    monkeypatch.setattr(verify, "_finish", lambda process: None)
    with pytest.raises(BertkitError, match="resuming is not exact here: step-00000002/.*safetensors differs"):
        verify.verify_resume(tiny_recipe(shards), kills=0)


def test_verify_resume_says_what_is_wrong_with_the_request(shards):
    with pytest.raises(RequestError, match="^length=999 is over the model's max_length"):
        verify.verify_resume(tiny_recipe(shards, length=999))
