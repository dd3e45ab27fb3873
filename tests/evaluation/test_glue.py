"""GLUE-style folders: the score is the mean over tasks of the median run at its last step; seeds; what is refused."""

import sys
from pathlib import Path

import pytest

import bertkit
from bertkit.errors import RequestError
from bertkit.evaluation import glue
from bertkit.finetuning.explore.glue import glue_table, run_glue

sys.path.insert(0, str(Path(__file__).parents[1] / "finetuning"))
import tiny

METRICS = {"SST-2": "accuracy", "STS-B": "spearman"}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    for name, task in (("SST-2", "classify"), ("STS_B", "regress")):
        (folder / name).mkdir()
        tiny.files(folder / name, task, 16, 12)
    return folder


def test_the_score_is_the_mean_of_the_median_runs_at_their_last_step(model, tasks, monkeypatch):
    runs = {}
    monkeypatch.setattr(glue, "run_glue", lambda *args, **named: runs.update(done := run_glue(*args, **named)) or done)
    found = bertkit.evaluate(model, tasks, seeds=2)
    medians = {name: min(run.scores[METRICS[name]] for run in runs[name].results) for name in METRICS}  # of two
    assert {name: group["score"] for name, group in found.groups.items()} == pytest.approx(medians, abs=1e-5)
    assert found.score == pytest.approx(sum(medians.values()) / 2, abs=1e-5)
    assert not any(run.chosen_on_dev for seeds in runs.values() for run in seeds.results)  # keep=last
    assert (found.task, found.examples) == ("glue", 24)
    assert found.note == "2 tasks, the median of 2 seeds each, weights of the last step"
    low, high = found.intervals["score"]
    assert low < found.score < high
    assert "SST-2  score 0." in str(found)
    assert "median of seeds  " in glue_table(runs, "mine")


def test_two_models_are_compared_on_the_dev_examples(model, tasks, tmp_path):
    (tmp_path / "sst2").symlink_to(tasks / "SST-2")
    same = bertkit.evaluate(model, tmp_path, seeds=1, against=model).against
    assert (same.difference, same.interval, same.p_value) == (0.0, (0.0, 0.0), 1.0)  # the same seed, the same run


def test_seeds_and_models_that_cannot_be_are_refused(model, tasks):
    with pytest.raises(RequestError, match="seeds=0: give one at least"):
        bertkit.evaluate(model, tasks, seeds=0)
    pairs = [{"sentence1": "a", "sentence2": "b", "score": 1.0}]
    with pytest.raises(RequestError, match="seeds=2: similarity draws nothing; leave it out"):
        bertkit.evaluate(model, pairs, seeds=2)
    unsaved = bertkit.Bert(bertkit.load(model).checkpoint.__class__(model=bertkit.load(model).model))
    with pytest.raises(RequestError, match="this one has none; save it, and load that"):
        bertkit.evaluate(unsaved, tasks)
    quick = bertkit.Classifier(str(model), layer=1).fit(["good film", "bad film"] * 4, ["a", "b"] * 4)
    quick.save(tasks.parent / "quick")
    with pytest.raises(RequestError, match="seeds=2: a fine-tuned model is scored as it is; leave it out"):
        bertkit.evaluate(tasks.parent / "quick", [("good film", "a")], seeds=2)
