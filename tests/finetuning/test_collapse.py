"""A run that learned nothing says so, with the remedy, and starts again where that is asked for."""

import json

import numpy as np
import pytest
import tiny

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.finetuning import fine_tuning, session
from bertkit.finetuning.evaluate import Outputs
from bertkit.finetuning.explore.seeds import run_seeds
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.judge import describe_collapse
from bertkit.finetuning.prepare import DataFiles, prepare
from bertkit.finetuning.result import result_from_json
from bertkit.finetuning.settings import LearningSettings, read_settings
from bertkit.tasks.shared.calibration import likelihood_gain
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.table import TASKS

pytestmark = pytest.mark.usefixtures("_one_thread")
QUICK = ("epochs=6", "learning_rate=3e-3", "batch=16")
TOO_FAST = ("epochs=1", "learning_rate=1", "batch=16")  # a thousand times what these models want


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


def teach(task, model, folder, *pairs, **options):
    return fine_tune(task, read_settings(*pairs), model, *tiny.files(folder, task), folder / "run", **options)


@pytest.mark.parametrize("task", TASKS)
def test_a_rate_far_too_high_is_named_and_a_good_one_is_not(task, model, tmp_path):
    result = teach(task, model, tmp_path, *TOO_FAST)
    assert result.collapsed is not None
    assert "learned nothing" in result.collapsed
    assert "lower learning_rate (it was 1), a longer warmup (0.2) or more epochs (1)" in result.collapsed
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["collapsed"] == result.collapsed
    assert "the model learned nothing" in (tmp_path / "run" / "report.html").read_text()
    (tmp_path / "good").mkdir()
    good = teach(task, model, tmp_path / "good", *QUICK)
    assert good.collapsed is None
    assert json.loads((tmp_path / "good" / "run" / "result.json").read_text())["collapsed"] is None


def test_the_number_of_epochs_is_named_where_it_was_not_given(model, tmp_path):
    result = teach("classify", model, tmp_path, "learning_rate=1e-9")
    assert result.collapsed.endswith("or more epochs (20)")


def test_the_only_answer_is_named(model, tmp_path):
    assert (
        "all 64 dev examples get the same answer, 'negative'"
        in teach("classify", model, tmp_path, "epochs=1", "learning_rate=1e-9").collapsed
    )
    (tmp_path / "tag").mkdir()
    tags = teach("tag", model, tmp_path / "tag", "epochs=3", "learning_rate=0.3")
    assert "dev words get the same answer, 'O'" in tags.collapsed


def test_results_of_before_have_no_such_field(model, tmp_path):
    teach("classify", model, tmp_path, *TOO_FAST)
    content = json.loads((tmp_path / "run" / "result.json").read_text())
    del content["collapsed"]
    assert result_from_json(content).collapsed is None


def test_the_gain_does_not_depend_on_scale_and_bias():
    gold = np.arange(200) % 3
    noise = np.random.default_rng(0).normal(size=(200, 3))
    hints = noise + 2 * np.eye(3)[gold]
    assert likelihood_gain(np.tile([3.0, -1.0, 2.0], (200, 1)), gold) == pytest.approx(0)
    assert likelihood_gain(noise, gold) < 0.01
    assert likelihood_gain(hints, gold) > 0.3
    assert likelihood_gain(hints * 30 + [0, 100, 5], gold) == pytest.approx(likelihood_gain(hints, gold), abs=0.05)
    yes = np.eye(3)[gold].astype(bool)
    assert likelihood_gain(noise, yes) < 0.02
    assert likelihood_gain(hints, yes) > 0.3


def test_a_model_of_rare_labels_that_ranks_well_has_not_collapsed(tmp_path):
    """All examples are most likely 'no', yet the five 'yes' are by far the likeliest of them."""
    rows = ["text\tlabel", *["the film\tyes"] * 5, *["the story\tno"] * 95]
    (tmp_path / "a.tsv").write_text("\n".join(rows) + "\n")
    begin = load_checkpoint(tiny.tiny_folder(tmp_path / "model"))
    files = DataFiles(train=tmp_path / "a.tsv", dev=tmp_path / "a.tsv")
    prepared = prepare("classify", begin, files, read_settings())
    task, dev = prepared.task, prepared.dev

    def described(yes: float):
        shares = [yes if example.label == "yes" else 0.01 for example in dev.examples]
        rows = [np.log([1 - share, share] if task.labels[1] == "yes" else [share, 1 - share]) for share in shares]
        predictions = task.decode(dev.examples, dev.flat, rows, Decision())
        return describe_collapse(task, dev, Outputs(rows, 0.1), predictions, Decision(), LearningSettings(epochs=3))

    collapsed, notes = described(0.45)
    assert collapsed is None
    assert notes == (
        "all 100 dev examples get the same answer, 'no', although its scores differ: class_weights=balanced may help",
    )
    assert "learned nothing" in described(0.01)[0]
    assert described(0.9) == (None, ())


def test_labels_that_are_never_predicted_are_named(tmp_path):
    rows = ["text\tlabel", *(f"the {label}\t{label}" for label in ["film"] * 20 + ["story"] * 20 + ["actor"] * 3)]
    (tmp_path / "a.tsv").write_text("\n".join(rows) + "\n")
    begin, files = (
        load_checkpoint(tiny.tiny_folder(tmp_path / "model")),
        DataFiles(train=tmp_path / "a.tsv", dev=tmp_path / "a.tsv"),
    )
    prepared = prepare("classify", begin, files, read_settings())
    task, dev = prepared.task, prepared.dev

    def notes(known: set[str]):
        guesses = [example.label if example.label in known else "film" for example in dev.examples]
        outputs = [np.log(np.where(np.array(task.labels) == guess, 0.9, 0.05)) for guess in guesses]
        predictions = task.decode(dev.examples, dev.flat, outputs, Decision())
        return describe_collapse(task, dev, Outputs(outputs, 0.1), predictions, Decision(), LearningSettings())[1]

    assert notes({"film", "story"}) == (
        "never predicted on dev: actor; more epochs, or more examples of them, may help",
    )
    assert notes({"film", "story", "actor"}) == ()


@pytest.fixture
def _collapsing_rates(monkeypatch):
    """A run at a rate of 5e-3 or more counts as collapsed, whatever it has learned: so on every kind of CPU."""
    judged = session.describe_collapse

    def describe(task, dev, outputs, predictions, decision, learning):
        if learning.learning_rate >= 5e-3:
            return "the model learned nothing: said by the test", ()
        return judged(task, dev, outputs, predictions, decision, learning)

    monkeypatch.setattr(session, "describe_collapse", describe)


@pytest.mark.usefixtures("_collapsing_rates")
def test_retry_starts_again_at_a_third_of_the_rate_and_says_so(model, tmp_path):
    result = teach("tag", model, tmp_path, "epochs=6", "learning_rate=9e-3", "batch=16", retry=True)
    assert result.collapsed is None
    assert result.scores["f1"] > 0.9
    assert "attempt 1 learned nothing; started again with learning_rate=0.003" in result.notes
    run = tmp_path / "run"
    assert json.loads((run / "collapsed-1" / "result.json").read_text())["collapsed"]
    assert not (run / "collapsed-1" / "model").exists()
    assert json.loads((run / "model" / "bertkit.json").read_text())["task"]["record"]["settings"][
        "learning_rate"
    ] == pytest.approx(3e-3)
    again = teach("tag", model, tmp_path, "epochs=6", "learning_rate=9e-3", "batch=16", retry=True, resume=True)
    assert again == result


def test_it_gives_up_after_two_retries(model, tmp_path):
    result = teach("classify", model, tmp_path, "epochs=1", "learning_rate=1e-9", retry=True)
    assert result.collapsed
    assert len(result.notes) >= 2
    assert [path.name for path in sorted((tmp_path / "run").glob("*collapsed*"))] == ["collapsed-1", "collapsed-2"]
    assert (tmp_path / "run" / "model").is_dir()


class Killed(BaseException):
    """As if the process were gone."""


@pytest.mark.usefixtures("_collapsing_rates")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_between_attempts_it_goes_on(moment, model, tmp_path, monkeypatch):
    words = ("epochs=6", "learning_rate=9e-3", "batch=16")
    (tmp_path / "straight").mkdir()
    straight = teach("tag", model, tmp_path / "straight", *words, retry=True)
    archive_attempt = fine_tuning.archive_attempt

    def killed(run):
        if moment == "after":
            archive_attempt(run)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(fine_tuning, "archive_attempt", killed)
        teach("tag", model, tmp_path, *words, retry=True)
    result = teach("tag", model, tmp_path, *words, retry=True, resume=True)
    assert result.scores == straight.scores
    assert (tmp_path / "run" / "collapsed-1").is_dir()
    assert not (tmp_path / "run" / "collapsed-2").exists()


@pytest.mark.usefixtures("_collapsing_rates")
def test_of_several_seeds_each_starts_again_by_itself(model, tmp_path):
    train, dev = tiny.files(tmp_path, "tag")

    def own(settings, folder):
        return fine_tune("tag", settings, model, train, dev, folder, resume=True, retry=True)

    found = run_seeds(own, read_settings("epochs=6", "learning_rate=9e-3", "batch=16"), 2, tmp_path / "out")
    assert (tmp_path / "out" / "seed-0" / "collapsed-1").is_dir()
    assert found.to_json()["collapsed"] == [None, None]
    assert (tmp_path / "out" / "model").is_dir()


def test_seeds_that_learned_nothing_are_named(model, tmp_path):
    train, dev = tiny.files(tmp_path, "classify")

    def own(settings, folder):
        return fine_tune("classify", settings, model, train, dev, folder, resume=True)

    found = run_seeds(own, read_settings("epochs=1", "learning_rate=1e-9"), 2, tmp_path / "out")
    assert "seed 1: the model learned nothing" in str(found)
