"""What the data decide: labels and their order, what is held out, weights; and settings that do not fit a task."""

import io
import math
from collections import Counter
from pathlib import Path

import pytest
import tiny

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.data.examples import Example, TextExample
from bertkit.data.tables import Location
from bertkit.errors import RequestError
from bertkit.finetuning.check.check_data import check_data
from bertkit.finetuning.embeddings.settings import VectorTuning
from bertkit.finetuning.prepare import (
    DataFiles,
    Prepared,
    hold_out,
    loss_settings,
    prepare,
)
from bertkit.finetuning.settings import read_settings
from bertkit.progress import silent
from bertkit.tasks.shared.labels import sorted_labels


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


def labeled(*labels: str | tuple[str, ...]) -> list[Example]:
    return [TextExample("a", None, label, Location(Path("f"), number)) for number, label in enumerate(labels)]


def prepared(model: Path, train: Path, task: str, *settings: str) -> Prepared:
    return prepare(task, load_checkpoint(model), DataFiles(train=train, dev=train), read_settings(*settings))


def test_labels_are_sorted_by_name_and_numbers_by_value():
    assert sorted_labels(dict.fromkeys(["b", "10", "2", "-1", "1.5", "a", "nan"], 1)) == (
        "-1",
        "1.5",
        "2",
        "10",
        "a",
        "b",
        "nan",
    )


def test_no_label_is_held_out_with_its_last_example():
    examples = labeled(*["common"] * 60, *[f"rare {number}" for number in range(20)])
    for seed in range(20):
        rest, apart = hold_out(examples, seed, labeled=True)
        assert len({example.label for example in rest}) == 21
        assert {example.label for example in apart} <= {"common"}
        assert len(rest) + len(apart) == 80
        assert len(apart) == 8
    several = labeled(*[("common",)] * 60, *[("common", f"rare {number}") for number in range(20)])
    sizes = {len(hold_out(several, seed, labeled=True)[1]) for seed in range(20)}
    assert min(sizes) < max(sizes) == 8, "a label's only example stays"
    assert all(len(hold_out(examples, seed)[1]) == 8 for seed in range(20))


def test_every_label_has_its_share_of_what_is_held_out():
    examples = labeled(*["a"] * 100, *["b"] * 40, *["c"] * 10)
    parts = [hold_out(examples, seed, labeled=True)[1] for seed in range(10)]
    for apart in parts:
        assert Counter(example.label for example in apart) == {"a": 10, "b": 4, "c": 1}
    assert len({tuple(example.location.line for example in apart) for apart in parts}) == 10, "at random"
    half = hold_out(examples, 0, labeled=True, share=0.5)[1]
    assert Counter(example.label for example in half) == {"a": 50, "b": 20, "c": 5}


def test_where_nothing_can_be_held_out_a_dev_file_is_asked_for(model, tmp_path):
    (tmp_path / "a.csv").write_text("text,label\ngood film,x\nbad film,y\n")
    files = DataFiles(train=tmp_path / "a.csv")
    with pytest.raises(RequestError, match="each label has one example; give a --dev file"):
        prepare("classify", load_checkpoint(model), files, read_settings())


def test_a_label_of_every_row_and_one_that_is_given_twice_have_weights(model, tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"text": "good film", "labels": ["x", "x"]}\n{"text": "bad film", "labels": ["x", "y"]}\n'
    )
    found = prepared(model, tmp_path / "a.jsonl", "multilabel", "class_weights=balanced")
    weights = loss_settings(found.task, found.train, read_settings("class_weights=balanced"))
    assert weights.class_weights == (0.25, 1.0)
    assert all(map(math.isfinite, found.task.prior_bias(found.train, weights)))


def test_texts_without_any_label_are_refused_and_checked(model, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good film", "labels": []}\n' * 3)
    with pytest.raises(RequestError, match="no example has a label"):
        prepared(model, path, "multilabel")
    assert [stop.what for stop in check_data(path, task="multilabel").stops] == ["no labels"]


@pytest.mark.parametrize(
    ("task", "setting", "said"),
    [
        ("regress", "abstain=0.9", "abstain=0.9 goes with classify"),
        ("tag", "pooling=mean", "'tag' reads every token"),
        ("classify", "metric=blue", "unknown metric 'blue'; choose from: accuracy, "),
        ("tag", "metric=matthews", "unknown metric 'matthews'"),
    ],
)
def test_settings_that_mean_nothing_for_a_task(model, tmp_path, task, setting, said):
    train, _ = tiny.files(tmp_path, task, 8, 8)
    with pytest.raises(RequestError, match=said):
        prepared(model, train, task, setting)


def test_the_f1_of_three_labels_is_refused_before_the_first_step(model, tmp_path):
    (tmp_path / "a.csv").write_text("text,label\ngood,x\nbad,y\nfilm,z\n")
    with pytest.raises(
        RequestError, match="unknown metric 'f1'; choose from: accuracy, loss, macro_f1, matthews, weighted_f1"
    ):
        prepared(model, tmp_path / "a.csv", "classify", "metric=f1")


@pytest.mark.parametrize("pair", ["seed=-1", "seed=99999999999999999999999", "learning_rate=inf"])
def test_numbers_that_no_run_can_begin_with(pair):
    with pytest.raises(RequestError, match=pair.split("=")[0]):
        read_settings(pair)


def test_a_seed_that_is_too_large_for_vectors():
    with pytest.raises(RequestError, match="must be from 0 to"):
        VectorTuning(seed=2**70)


def test_what_was_guessed_is_told_before_the_training(model, tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    (data := tmp_path / "a.csv").write_text("request,intent\n" + "rain,weather\nsong,music\n" * 8)
    for show in (silent, lambda title, total: silent(title, total)):
        assert terminal.getvalue() == ""
        prepare("classify", load_checkpoint(model), DataFiles(train=data), read_settings(), show)
    assert terminal.getvalue().startswith(
        f"{data}: text = request, label = intent (2 labels, 16 rows)\nno dev file: 2 of 16"
    )
