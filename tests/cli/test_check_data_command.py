"""`bertkit check FILE` as a user runs it."""

import json

import pytest


@pytest.fixture
def place(tmp_path):
    rows = "".join(f"sentence number {n}\t{'no' if n % 2 else 'yes'}\n" for n in range(20))
    (tmp_path / "train.tsv").write_text(f"sentence\tlabel\n{rows}")
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nsentence number 3\tno\nother\tmaybe\n")
    (tmp_path / "odd.csv").write_text("remark,verdict\nI like it,good\nI do not,bad\n")
    (tmp_path / "folder").mkdir()
    return tmp_path


def test_a_clean_file_leaves_with_0(command_here, place):
    done = command_here("check", "train.tsv", cwd=place)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "task      classify",
        "file      train.tsv: text = sentence, label = label (2 labels, 20 rows)",
        "labels    yes 10 (50.0%), no 10 (50.0%)",
    ]


def test_json_with_a_dev_file_and_a_model(command_here, place, minilm):
    done = command_here("check", "train.tsv", "--dev", "dev.tsv", "--model", minilm, "--json", cwd=place)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert [stop["what"] for stop in report["stops"]] == ["labels in dev that are not in train"]
    assert any("letter by letter" in note["what"] for note in report["notes"])
    assert report["files"][0]["lengths"] == {"mean": 5.0, "median": 5, "most": 5, "longest": 5, "limit": 256, "over": 0}


def test_columns_are_named(command_here, place):
    done = command_here("check", "odd.csv", cwd=place)
    assert done.returncode == 2
    assert "no column looks like the text" in done.stderr
    assert "remark, verdict" in done.stderr
    done = command_here("check", "odd.csv", "text=remark", "label=verdict", "--task", "classify", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "text = remark, label = verdict (2 labels, 2 rows)" in done.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["missing.tsv"], "missing.tsv"),
        (["train.tsv", "--task", "sing"], "unknown task 'sing'"),
        (["train.tsv", "--masks"], "--masks goes with a folder of shards; train.tsv is a file"),
        (["train.tsv", "tex=a"], "unknown column setting 'tex'"),
        (["train.tsv", "--dev", "folder"], "folder is a folder, not a file"),
        (["folder", "--dev", "dev.tsv"], "--dev goes with a file of labeled examples; folder is a folder"),
    ],
)
def test_wrong_requests_end_in_one_sentence(command_here, place, words, sentence):
    done = command_here("check", *words, cwd=place)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
