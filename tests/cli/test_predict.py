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
def test_fewer_bits_are_asked_for(model, tmp_path, bertkit_command, dtype):
    (tmp_path / "in.txt").write_text("a b\nc\n")
    words = ("predict", model, tmp_path / "in.txt", "--out")
    for name, more in (("full.jsonl", ()), ("rough.jsonl", ("--dtype", dtype))):
        done = bertkit_command(*words, tmp_path / name, *more, env=ENVIRONMENT)
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
