"""`bertkit.finetune`, `pretrain` and `evaluate`: Python data of every kind, one result."""

import random
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import bertkit
from bertkit.data.from_python import example_file
from bertkit.data.tables import Columns
from bertkit.tasks.read import read_examples

sys.path += [str(Path(__file__).parent / "finetuning"), str(Path(__file__).parent / "pretraining")]
import tiny

pytestmark = pytest.mark.usefixtures("_one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.tiny_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def rows():
    draw = random.Random(0)
    kinds = [("positive", tiny.GOOD), ("negative", tiny.BAD)] * 60
    return [(tiny.sentence(draw, draw.choice(words)), label) for label, words in kinds]


class Frame:
    """What polars' frames can do."""

    def __init__(self, table):
        self.table = table

    def to_arrow(self):
        return self.table


class Dataset:
    """What `datasets.Dataset` can do; its labels are numbers that its schema names."""

    def __init__(self, table):
        note = b'{"info": {"features": {"label": {"names": ["negative", "positive"], "_type": "ClassLabel"}}}}'
        self.features = type("Features", (), {"arrow_schema": pa.schema([], metadata={b"huggingface": note})})
        self.table = table

    def with_format(self, kind):
        assert kind == "arrow"
        return self

    def __getitem__(self, every):
        return self.table


def test_every_kind_of_data_gives_the_same_examples(rows, tmp_path):
    texts, labels = map(list, zip(*rows, strict=True))
    table = pa.table({"text": texts, "label": labels})
    numbered = pa.table({"text": texts, "label": [int(label == "positive") for label in labels]})
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    dicts = [{"text": text, "label": label} for text, label in rows]
    given = [tmp_path / "rows.tsv", str(tmp_path / "rows.tsv"), rows, iter(rows), dicts, table.to_pydict(), table]
    for number, data in enumerate([*given, Frame(table), Dataset(numbered)]):
        path, columns = example_file(data, tmp_path / str(number), "train")
        found = read_examples("classify", path, Columns(**columns))
        assert [(example.text, example.label) for example in found.examples] == rows, number


def test_tuples_of_three_are_pairs_or_choices(tmp_path):
    path, columns = example_file([("a", "b", 1.5), ("c", "d", 2.5)], tmp_path / "pairs", "train")
    found = read_examples("regress", path, Columns(**columns)).examples
    assert [(each.text, each.pair, each.label) for each in found] == [("a", "b", 1.5), ("c", "d", 2.5)]
    path, columns = example_file([("a", ["b", "c"], 1)], tmp_path / "choices", "train")
    [example] = read_examples("choose", path, Columns(**columns)).examples
    assert (example.question, example.choices, example.label) == ("a", ("b", "c"), 1)
    path, columns = example_file([(["a", "b"], ["O", "B-X"])], tmp_path / "tags", "train")
    [example] = read_examples("tag", path, Columns(**columns)).examples
    assert (example.words, example.tags) == (("a", "b"), ("O", "B-X"))


REFUSED = [
    ([], "train= holds no rows"),
    (7, "train= is int; give a path, rows, a frame or a table"),
    (b"text", "train= is bytes"),
    ([("a", "b"), ("c",)], "all of one kind"),
    ([("a", "b"), {"text": "c"}], "all of one kind"),
    ([("a", 1), ("b", "x")], "the column 'label' mixes kinds of values"),
    ({"text": ["a"], "label": ["x", "y"]}, "not equally long"),
]


@pytest.mark.parametrize(("data", "sentence"), REFUSED, ids=[sentence[:30] for _, sentence in REFUSED])
def test_data_that_cannot_be_used_are_refused(data, sentence, tmp_path):
    with pytest.raises(bertkit.RequestError, match=sentence):
        example_file(data, tmp_path, "train")
    assert not list(tmp_path.iterdir())


def test_a_fine_tuned_model_answers(folder, rows, tmp_path, capsys):
    run = bertkit.finetune("classify", train=rows, model=folder, epochs=20, learning_rate=2e-3, out=tmp_path / "run")
    assert run.finished
    assert "fine-tuning" in capsys.readouterr().err
    assert "no dev file: 12 of 120 training examples are held out" in " ".join(run.notes)
    assert run.model.classify("a lovely film").label == "positive"
    assert run.folder == tmp_path / "run"
    assert run.report.html.startswith("<!doctype html>")
    assert "<iframe" in run.report._repr_html_()
    assert f"<td>{run.scores['accuracy']:.4f}</td>" in run._repr_html_()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"], "data that were written for it are gone"
    evaluation = bertkit.evaluate(run.model, rows)
    assert evaluation.score == evaluation.scores["accuracy"] > 0.9
    assert evaluation.examples == 120
    assert "note: the model was trained on this file; score it on other examples" in evaluation.note
    assert "note:" not in bertkit.evaluate(run.model, rows[:60]).note
    low, high = evaluation.intervals["accuracy"]
    assert low <= evaluation.score <= high
    renamed = [{"review": text, "y": label} for text, label in rows]
    again = bertkit.evaluate(run.folder, renamed, text="review", label="y")
    assert again.scores == evaluation.scores
    assert "text = review, label = y" in str(again)
    assert "<td>accuracy</td>" in again._repr_html_()


def test_a_run_without_a_folder_goes_with_its_result(folder, rows):
    run = bertkit.finetune("classify", rows, rows[:20], folder, epochs=1, test=rows[20:60])
    assert run.test_scores == bertkit.evaluate(run.model, rows[20:60]).scores
    place = run.folder
    model = run.model
    assert place.is_dir()
    assert not place.with_name("run.data").exists()
    del run
    assert not place.exists()
    assert model.classify("a lovely film").label in ("positive", "negative")


def test_vectors_learn_from_pairs(folder, tmp_path):
    pairs = [{"text": f"{word} film", "pair": f"the {word} film"} for word in (*tiny.GOOD, *tiny.BAD) * 4]
    run = bertkit.finetune("vectors", pairs, model=folder, out=tmp_path / "run", text="text", pair="pair", epochs=1)
    assert run.finished
    assert run.model.embed("a film").shape == (32,)


def test_unknown_settings_are_refused(folder, rows, tmp_path):
    with pytest.raises(bertkit.RequestError, match="unknown setting 'epoch'"):
        bertkit.finetune("classify", rows, model=folder, out=tmp_path / "run", epoch=3)
    with pytest.raises(bertkit.RequestError, match="unknown task 'sing'"):
        bertkit.finetune("sing", rows, model=folder, out=tmp_path / "run")


def test_pretraining_from_a_dict_and_from_a_file(tmp_path):
    import tiny_runs

    shards = tiny_runs.make_shards(tmp_path)
    settings = {**tiny_runs.SHAPE, **tiny_runs.DATA, **tiny_runs.TRAIN, "objective": ["mlm", "nsp"], "steps": 4}
    run = bertkit.pretrain(settings, shards=shards, out=tmp_path / "run", heldout=shards)
    assert run.finished
    assert {"mlm", "mlm_loss"} <= set(run.scores)
    assert len(run.model.fill("the [MASK] runs.")) == 5
    assert run.report.html.startswith("<!doctype html>")
    (tmp_path / "recipe.toml").write_text("")
    more = {**tiny_runs.SHAPE, **tiny_runs.DATA, **tiny_runs.TRAIN, "steps": 2}
    other = bertkit.pretrain(tmp_path / "recipe.toml", shards, tmp_path / "other", run.folder / "model", **more)
    assert other.finished
    assert other.folder == tmp_path / "other"


def test_the_command_evaluates(folder, rows, tmp_path, bertkit_command, command_here):
    import json

    run = bertkit.finetune("classify", rows, rows[:20], folder, out=tmp_path / "run", epochs=1)
    (tmp_path / "test.tsv").write_text("review\ty\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    command = ["evaluate", run.folder, tmp_path / "test.tsv", "text=review", "label=y"]
    done = bertkit_command(*command, "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["scores"] == dict(bertkit.evaluate(run.model, rows).scores)
    assert printed["examples"] == 120
    shown = command_here(*command).stdout.splitlines()
    assert shown[0].endswith("text = review, label = y (2 labels, 120 rows)")
    assert shown[1].startswith(f"accuracy {printed['scores']['accuracy']:.4f} (95 % interval ")
    page = tmp_path / "evaluation.html"
    told = command_here(*command, "--report", page).stdout
    assert told.endswith(f"report: {page}\n")
    for part in (
        "run on test.tsv",
        "baseline",
        "<h2>Labels</h2>",
        "Confusion matrix",
        "Calibration",
        "The worst errors",
    ):
        assert part in page.read_text(), part
    assert "exists already" in command_here(*command, "--report", page).stderr
    chosen = bertkit.evaluate(run.model, rows[:20])
    assert "note: the model was chosen by its score on this file" in chosen.note
    refused = command_here(*command[:3], "label=nothing")
    assert refused.returncode == 2
    assert "has no column 'nothing'" in refused.stderr
