"""The decision layer is judged on examples that did not fit it."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax
from sklearn.metrics import f1_score

from bertkit.data.examples import TextExample
from bertkit.data.tables import Location
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.judge import cross_validate_decision, random_halves, still_improving, subset
from bertkit.finetuning.settings import read_settings
from bertkit.tasks.classify import Classify
from bertkit.tasks.multilabel import Multilabel
from bertkit.tasks.regress import Regress
from bertkit.tasks.shared import calibration
from bertkit.tasks.shared.calibration import calibration_error
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.length import Seen
from bertkit.tasks.task import Dataset, Window

LABELS = tuple("abcde")


def texts(labels, targets, windows: int = 1) -> Dataset:
    """A part of dev whose texts are their numbers, each read through so many windows."""
    examples = [TextExample(str(n), None, label, Location(Path("dev"), n + 1)) for n, label in enumerate(labels)]
    made = [[Window((2, 3), (0, 0), n, target, Seen(1, 0, windows))] * windows for n, target in enumerate(targets)]
    return Dataset(examples, made)


def multilabel(gold: np.ndarray) -> tuple[Multilabel, Dataset]:
    rows = [tuple(np.flatnonzero(row).tolist()) for row in gold]
    names = [tuple(LABELS[n] for n in row) for row in rows]
    return Multilabel(tokenizer=tiny.tokenizer(), limit=16, labels=LABELS), texts(names, rows)


def classes(gold: np.ndarray) -> tuple[Classify, Dataset]:
    task = Classify(tokenizer=tiny.tokenizer(), limit=16, labels=LABELS)
    return task, texts([LABELS[n] for n in gold], gold.tolist())


@given(count=st.integers(2, 200), seed=st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_halves_part_all_and_share_nothing(count, seed):
    one, other = random_halves(count, seed)
    assert sorted(one + other) == list(range(count))
    assert len(other) - len(one) in (0, 1)
    assert random_halves(count, seed) == (one, other)


def test_thresholds_for_noise_shine_on_their_own_rows_only():
    """Scores without meaning: thresholds that see the rows they are measured on gain, others cannot."""
    gains, honest = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        gold = rng.random((60, len(LABELS))) < 0.5
        logits = rng.normal(scale=0.2, size=gold.shape)
        task, dev = multilabel(gold)
        rows = list(logits)
        fitted = task.decode(dev.examples, dev.flat, rows, task.fit_decision(dev, rows).decision)
        same_rows = task.score(dev.examples, fitted)["macro_f1"]
        judged = cross_validate_decision(task, dev, rows).scores["macro_f1"]
        always_yes = f1_score(gold, np.ones_like(gold), average="macro")  # the best that noise can do
        gains.append(same_rows - always_yes)
        honest.append(judged - always_yes)
    assert np.mean(gains) > 0.01
    assert np.mean(honest) < 0.0


def test_no_example_is_decided_by_what_it_fitted(monkeypatch):
    task, dev = classes(np.random.default_rng(0).integers(5, size=31))
    fitted_on: list[set[str]] = []
    decided: list[set[str]] = []
    fit, decode = Classify.fit_decision, Classify.decode

    def fitting(task, part, rows, abstain=None):
        fitted_on.append({example.text for example in part.examples})
        return fit(task, part, rows, abstain)

    def decoding(self, examples, windows, outputs, decision):
        decided.append({example.text for example in examples})
        return decode(self, examples, windows, outputs, decision)

    monkeypatch.setattr(Classify, "fit_decision", fitting)
    monkeypatch.setattr(Classify, "decode", decoding)
    cross_validate_decision(task, dev, list(np.random.default_rng(1).normal(size=(31, 5))))
    plain, *halves = decided
    assert len(plain) == 31
    assert len(fitted_on) == len(halves) == 2
    assert all(not fitted & own for fitted, own in zip(fitted_on, halves, strict=True))
    assert set.union(*halves) == plain


def test_each_half_has_the_other_half_s_temperature():
    rng = np.random.default_rng(3)
    logits = rng.normal(scale=2, size=(40, 5))
    task, dev = classes(rng.integers(5, size=40))
    rows, gold = list(logits), np.array([own[0].target for own in dev.windows])
    scaled = logits.copy()
    one, other = random_halves(40, 0)
    for own, fitting in ((one, other), (other, one)):
        scaled[own] /= task.fit_decision(*subset(dev, rows, fitting)).decision.temperature
    found = cross_validate_decision(task, dev, rows).calibration
    assert found == {"before": calibration_error(logits, gold), "after": pytest.approx(calibration_error(scaled, gold))}


ERROR = "calibration error (mean gap between confidence and accuracy)"


@pytest.mark.parametrize(
    ("rows", "improving"),
    [
        ([(0.5, 0.7)], False),  # nothing to compare with
        ([(0.5, 0.7), (0.6, 0.6)], True),
        ([(0.5, 0.7), (0.6, 0.695)], False),  # the loss hardly falls
        ([(0.5, 0.7), (0.7, 0.6), (0.6, 0.58)], False),  # an earlier score is better
        ([(0.5, 0.7), (0.7, 0.6), (0.6, 0.5)], True),  # but the loss falls much
        ([(0.5, 0.7), (0.7, 0.4), (0.6, 0.6), (0.6, 0.5)], False),  # not below that of an earlier step
        ([(0.5, 0.7), (0.5, 0.69)], False),
        ([(0.5, None), (0.6, None)], True),  # without a loss the score alone counts
        ([(0.5, 0.7), (None, 0.1)], False),
    ],
)
def test_a_score_that_rises_with_a_falling_loss_is_still_improving(rows, improving):
    evaluations = [{"accuracy": score, "loss": loss} for score, loss in rows]
    assert still_improving(evaluations, "accuracy") is improving


def test_a_model_that_is_too_sure_is_mended_on_rows_it_did_not_fit():
    rng = np.random.default_rng(0)
    honest = rng.normal(scale=1.5, size=(2000, 5))
    gold = np.array([rng.choice(5, p=row) for row in softmax(honest, axis=1)])
    task, dev = classes(gold)
    judged = cross_validate_decision(task, dev, list(3 * honest))
    assert judged.calibration["before"] > 0.1
    assert judged.calibration["after"] < 0.03
    [said] = judged.notes
    assert said.startswith(f"{ERROR} {judged.calibration['before']:.4f} before, ")


def test_a_temperature_that_stays_has_no_error_after_it():
    """Halves may each fit one; what is saved has none, so that its calibration error is the model's own."""
    rng = np.random.default_rng(3)
    logits = rng.normal(scale=2, size=(40, 5))
    task, dev = classes(rng.integers(5, size=40))
    rows = list(logits)
    estimated = cross_validate_decision(task, dev, rows).calibration
    assert estimated["before"] != estimated["after"]
    judged = cross_validate_decision(task, dev, rows, Decision())
    assert judged.calibration == {"before": estimated["before"], "after": estimated["before"]}
    assert judged.notes == (f"{ERROR} {estimated['before']:.4f}, unchanged",)
    changed = cross_validate_decision(task, dev, rows, Decision(temperature=1.5))
    assert changed.calibration == estimated


def test_a_run_whose_temperature_stays_tells_one_calibration_error(tmp_path, monkeypatch):
    """In its result, on the command line and in its report."""
    real = calibration.calibration_error
    monkeypatch.setattr(calibration, "calibration_error", lambda *table: real(*table) + (len(table) == 3))
    files = tiny.files(tmp_path, "classify", 64, 40)
    quick = read_settings("epochs=1", "learning_rate=3e-3")
    result = fine_tune("classify", quick, tiny.tiny_folder(tmp_path / "tiny"), *files, tmp_path / "run")
    assert any(sentence.startswith("probabilities left as they are (temperature 1.0): ") for sentence in result.notes)
    assert result.calibration["before"] == result.calibration["after"]
    assert result.notes[-1] == f"{ERROR} {result.calibration['before']:.4f}, unchanged"
    page = (tmp_path / "run" / "report.html").read_text()
    assert result.notes[-1] in page
    assert " before, " not in page


def test_thresholds_that_mean_something_beat_a_half():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(600, len(LABELS)))
    gold = rng.random(hidden.shape) < expit(3 * (hidden - 1))
    task, dev = multilabel(gold)
    rows = list(3 * (hidden - 2.5))  # rare labels, too little said
    plain = task.score(dev.examples, task.decode(dev.examples, dev.flat, rows, Decision()))
    judged = cross_validate_decision(task, dev, rows)
    assert judged.scores["macro_f1"] > plain["macro_f1"] + 0.05
    assert f"macro_f1 {plain['macro_f1']:.4f} without thresholds" in judged.notes[0]


@pytest.mark.parametrize("windows", [1, 3])
def test_a_part_takes_its_own_rows(windows):
    dev = texts("abcd", range(4), windows)
    rows = [np.array([number, window]) for number in range(4) for window in range(windows)]
    part, taken = subset(dev, rows, [1, 3])
    assert [example.text for example in part.examples] == ["1", "3"]
    assert [row.tolist() for row in taken] == [[number, window] for number in (1, 3) for window in range(windows)]


def test_what_has_no_decision_and_what_is_too_little_are_told_plainly():
    task = Regress(tokenizer=tiny.tokenizer(), limit=16)
    numbers = [1.0, 2.0, 4.0]
    judged = cross_validate_decision(task, texts(numbers, numbers), [np.array([x]) for x in (1.0, 2.5, 3.0)])
    assert judged.calibration == {}
    assert judged.notes == ()
    alone, dev = classes(np.array([1]))
    assert cross_validate_decision(alone, dev, [np.arange(5.0)]).scores["accuracy"] == 0.0


def test_the_result_and_the_report_tell_what_was_judged(tmp_path):
    model = tiny.tiny_folder(tmp_path / "tiny")
    files = tiny.files(tmp_path, "multilabel", 64, 40)
    result = fine_tune("multilabel", read_settings("epochs=2", "learning_rate=3e-3"), model, *files, tmp_path / "run")
    told = [sentence for sentence in result.notes if "judged by what the other half fitted" in sentence]
    assert len(told) == 1
    assert told[0] in (tmp_path / "run" / "report.html").read_text()
    saved = json.loads((tmp_path / "run" / "result.json").read_text())
    assert saved["calibration"] == result.calibration
    assert set(result.calibration) == {"before", "after"}
    assert (
        len(json.loads((tmp_path / "run" / "model" / "bertkit.json").read_text())["task"]["decision"]["thresholds"])
        == 2
    )
