"""`bertkit predict` as a command: from a pipe, in several processes, and what is left behind."""

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "predict"))
import taught

ENVIRONMENT = os.environ | taught.ONE_THREAD


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return taught.taught_folder(tmp_path_factory.mktemp("taught") / "model", "classify")


def test_from_a_pipe_as_lines_and_as_a_table(model, tmp_path, bertkit_command):
    lines = bertkit_command("predict", model, "-", "--out", tmp_path / "a.jsonl", input="a b\nc\n", env=ENVIRONMENT)
    assert lines.returncode == 0, lines.stderr
    assert lines.stdout == f"2 rows with label, probability, windows, cut in {tmp_path / 'a.jsonl'}\n"
    table = "review,n\na b,1\nc,2\n"
    words = ("predict", model, "-", "format=csv", "--out", tmp_path / "b.jsonl", "--json")
    done = bertkit_command(*words, input=table, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert "note: -: text = review" in done.stderr
    assert json.loads(done.stdout)["columns"] == ["label", "probability", "windows", "cut"]
    ours, theirs = ((tmp_path / name).read_text().splitlines() for name in ("a.jsonl", "b.jsonl"))
    assert [json.loads(row)["probability"] for row in ours] == [json.loads(row)["probability"] for row in theirs]
    assert json.loads(theirs[1])["n"] == "2"


@pytest.mark.parametrize(
    ("content", "format"),
    [
        ("review,stars\na b,1\nc,2\n", "csv"),
        ("review\tstars\na b\t1\n", "tsv"),
        ('{"review": "a b"}\n', "jsonl"),
        ("a b, and c.\nd, e f.\n", None),
        ("a b\n\nc\n", None),
        ("", None),
    ],
)
def test_lines_that_look_like_a_table_are_noted(model, tmp_path, command_here, content, format):
    (tmp_path / "in.dat").write_text(content)
    done = command_here("predict", model, tmp_path / "in.dat")
    assert done.returncode == (0 if content else 2), done.stderr
    note = f"each line is read as a text; if this is a table, add format={format}"
    assert (note in done.stderr) is (format is not None)
    if format:
        assert command_here("predict", model, tmp_path / "in.dat", f"format={format}").returncode == 0


def test_two_processes_write_the_bytes_of_one_and_leave_nothing(model, tmp_path, bertkit_command):
    (tmp_path / "in.txt").write_text("".join(f"a {'b ' * (n % 29)}\n" for n in range(5000)))
    for name, workers in (("one.csv", 0), ("two.csv", 2)):
        words = ("predict", model, tmp_path / "in.txt", "--out", tmp_path / name, "--workers", workers)
        done = bertkit_command(*words, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    assert len((tmp_path / "one.csv").read_text().splitlines()) == 5001
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "one.csv", "two.csv"]


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_fewer_bits_are_asked_for(model, tmp_path, command_here, dtype):
    (tmp_path / "in.txt").write_text("a b\nc\n")
    words = ("predict", model, tmp_path / "in.txt", "--out")
    for name, more in (("full.jsonl", ()), ("rough.jsonl", ("--dtype", dtype))):
        done = command_here(*words, tmp_path / name, *more)
        assert done.returncode == 0, done.stderr
    full, rough = (
        [json.loads(row)["probability"] for row in (tmp_path / name).read_text().splitlines()]
        for name in ("full.jsonl", "rough.jsonl")
    )
    assert full != rough
    assert full == pytest.approx(rough, abs=0.02)


@pytest.mark.parametrize(
    ("more", "said"), [(("--device", "moon"), "cannot be put on 'moon'"), (("--dtype", "int4"), "unknown dtype 'int4'")]
)
def test_places_and_numbers_that_there_are_not(model, tmp_path, command_here, more, said):
    (tmp_path / "in.txt").write_text("a b\n")
    done = command_here("predict", model, tmp_path / "in.txt", "--out", tmp_path / "x.jsonl", *more)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "x.jsonl").exists()


def test_a_text_and_a_pipe_get_jsonl(model, tmp_path, command_here, bertkit_command):
    done = command_here("predict", model, "a b")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["text"] == "a b"
    assert row["label"] in taught.LABELS["classify"]
    assert json.loads(command_here("predict", model, "a b", "probabilities=true").stdout)["probabilities"]
    (tmp_path / "in.txt").write_text("a b\nc\n")
    for words in ((tmp_path / "in.txt",), (tmp_path / "in.txt", "--out", "-")):
        lines = command_here("predict", model, *words).stdout.splitlines()
        assert [json.loads(line)["text"] for line in lines] == ["a b", "c"]
        assert json.loads(lines[0])["probability"] == pytest.approx(row["probability"])
    piped = bertkit_command("predict", model, "-", input="a b\n", env=ENVIRONMENT)
    assert json.loads(piped.stdout)["label"] == row["label"]


def test_a_terminal_gets_lines(model, tmp_path, command_here, monkeypatch):
    from bertkit.cli import predict
    from bertkit.predict.files.answers import TERMINAL

    monkeypatch.setattr(predict, "_form", lambda _: TERMINAL)
    (tmp_path / "in.csv").write_text("text,label\na b,fine\nc,good\n")
    words = ("predict", model, tmp_path / "in.csv")
    row = json.loads(command_here(*words, "--out", tmp_path / "o.jsonl", "--json").stdout)
    answers = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    done = command_here(*words)
    expected = [f"{a['probability']:.3f}  {a['predicted_label']:<12}  {a['text']}" for a in answers]
    assert done.stdout.splitlines() == expected
    assert f"score: accuracy {row['scores']['accuracy']:.4f}" in done.stderr
    assert "(2 rows, label = label)" in done.stderr
    assert command_here("predict", model, "a b").stdout == expected[0].removesuffix("  a b") + "\n"


def test_the_score_is_that_of_evaluate(model, tmp_path, command_here):
    rows = [("a b", "fine"), ("c", "good"), ("d e f", "bad"), ("g", "fine")]
    (tmp_path / "in.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    done = command_here("predict", model, tmp_path / "in.csv", "--out", tmp_path / "o.csv")
    evaluated = json.loads(command_here("evaluate", model, tmp_path / "in.csv", "--json").stdout)
    scores = evaluated["scores"]
    assert {label: row["examples"] for label, row in evaluated["groups"].items()} == {"bad": 1, "fine": 2, "good": 1}
    by_label = command_here("evaluate", model, tmp_path / "in.csv").stdout.splitlines()[-2]
    assert by_label.startswith(f"fine  precision {evaluated['groups']['fine']['precision']:.3f}  recall ")
    assert f"score: accuracy {scores['accuracy']:.4f}, matthews {scores['matthews']:.4f}" in done.stdout
    (tmp_path / "other.csv").write_text("text,label\na b,unheard-of\n")
    other = command_here("predict", model, tmp_path / "other.csv")
    assert other.returncode == 0
    assert "note: no score: " in other.stderr
    assert "score: accuracy" not in other.stderr


def test_lines_of_text_have_no_labels_to_score(model, tmp_path, command_here):
    tagger = taught.taught_folder(tmp_path / "tagger", "tag")
    (tmp_path / "in.txt").write_text("a b\n\nc d\n")
    for each in (model, tagger):
        done = command_here("predict", each, tmp_path / "in.txt")
        assert done.returncode == 0, done.stderr
        assert "score" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere.csv",), "nowhere.csv cannot be read: No such file or directory"),
        (("a text", "--out", "x.jsonl"), "a text: no such file; --out goes with a file of texts"),
        (("a text", "--resume"), "--resume goes with --out FILE"),
        (("a", "--pair", "b", "--pair", "c"), "--pair is given 2 times"),
        (("-", "--pair", "b"), "--pair goes with a text; - is a file"),
    ],
)
def test_predictions_that_cannot_be_asked_for(model, command_here, words, said):
    done = command_here("predict", model, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""
