"""`bertkit vocab` as a user runs it, and the progress it shows."""

import io
import json
import os
import pty
import subprocess
import sys

import pytest
import transformers

from bertkit.errors import RequestError
from bertkit.progress import progress, silent
from bertkit.text.tokenizer import Tokenizer

TEXT = "The players played well. They were playing a play!\n\nNaïve Café players re-play the played plays.\n"


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 3, encoding="utf-8")
    return path


def test_the_folder_is_a_tokenizer_for_us_and_for_transformers(bertkit_command, text, tmp_path):
    done = bertkit_command("vocab", text, "--size", 70, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written >= {"report.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    pieces = (tmp_path / "out" / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    assert len(pieces) == len(set(pieces)) == 70
    assert pieces[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    ours = Tokenizer.load(tmp_path / "out").encode(TEXT)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(TEXT)
    assert list(ours.ids) == theirs["input_ids"]
    assert pieces.index("[UNK]") not in ours.ids  # the alphabet is whole, so every word has its pieces
    assert "70 pieces" in done.stdout
    assert "whole words" in done.stdout
    assert "counting words: done" in done.stderr


def test_json_is_the_saved_report(bertkit_command, text, tmp_path):
    done = bertkit_command("vocab", text, "--size", 60, "--out", tmp_path / "out", "--json")
    report = json.loads(done.stdout)
    assert report == json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert sum(report["pieces"].values()) == report["size"] == 60
    assert report["corpus"]["documents"] == 4
    assert report["corpus"]["sentences"] == 9


def test_cased_keeps_case_and_accents(bertkit_command, text, tmp_path):
    done = bertkit_command("vocab", text, "--size", 80, "--cased", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    pieces = (tmp_path / "out" / "vocab.txt").read_text(encoding="utf-8").split("\n")
    assert {"T", "N", "ï", "é", "##é"} <= set(pieces)
    assert Tokenizer.load(tmp_path / "out").encode("Té").ids != Tokenizer.load(tmp_path / "out").encode("te").ids


FAULTS = {
    "missing": (["nowhere.txt", "--out", "out"], "nowhere.txt does not exist"),
    "pattern": (["*.nothing", "--out", "out"], "no file matches *.nothing"),
    "large": (["text.txt", "--size", "100000", "--out", "out"], "100,000 were asked for"),
    "small": (["text.txt", "--size", "9", "--out", "out"], "ask for at least"),
    "zero": (["text.txt", "--min-count", "0", "--out", "out"], "min_count=0 must be at least 1"),
    "word": (["text.txt", "--size", "many", "--out", "out"], "--size"),
    "no out": (["text.txt"], "--out"),
    "no text": (["--out", "out"], "texts"),
    "taken": (["text.txt", "--out", "."], "exists already"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_requests_are_one_sentence_and_leave_nothing(command_here, text, fault):
    arguments, words = FAULTS[fault]
    before = sorted(text.parent.rglob("*"))
    done = command_here("vocab", *arguments, cwd=text.parent)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert sorted(text.parent.rglob("*")) == before


def test_an_output_that_exists_is_refused_before_any_reading(bertkit_command, tmp_path):
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)  # reading it would wait for ever
    done = bertkit_command("vocab", pipe, "--out", tmp_path, timeout=60)
    assert done.returncode == 2
    assert "exists already" in done.stderr


def test_no_torch_is_imported(text, tmp_path):
    code = (
        "import sys; from bertkit.cli.vocab import vocab; from pathlib import Path;"
        f"vocab([Path({str(text)!r})], Path({str(tmp_path / 'out')!r}), size=60);"
        "assert not {'torch', 'rich'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_lines_off_a_terminal_come_at_intervals():
    stream = io.StringIO()
    with progress("working", 100, every=0, stream=stream) as meter:
        meter.update(0)
        meter.update(25, {"tokens/s": "61,000", "loss": 2.5})
    began, quarter, done = stream.getvalue().splitlines()
    assert began == "working: 0 s so far"
    assert quarter.startswith("working: 25 %, ")
    assert quarter.endswith("s left, tokens/s 61,000, loss 2.5")
    assert done.startswith("working: done in ")
    stream = io.StringIO()
    with progress("working", 100, every=60, stream=stream) as meter:
        for done_so_far in range(1000):
            meter.update(done_so_far)
    assert len(stream.getvalue().splitlines()) == 1


def test_an_unknown_total_and_an_error_show_no_wrong_end():
    stream = io.StringIO()

    def fail() -> None:
        with progress("working", 0, every=0, stream=stream) as meter:
            meter.update(7)
            raise RequestError("no")

    with pytest.raises(RequestError):
        fail()
    assert stream.getvalue() == "working: 0 s so far\n"
    with silent("working", 5) as meter:
        meter.update(1)


def test_a_terminal_gets_a_bar():
    code = (
        "from bertkit.progress import progress\n"
        "with progress('working', 4) as meter:\n"
        "    meter.update(2, {'tokens/s': '[bold]61'})\n"
    )
    parent, child = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    subprocess.run([sys.executable, "-c", code], stderr=child, env=environment, check=True, timeout=60)
    os.close(child)
    shown = os.read(parent, 100_000).decode()
    os.close(parent)
    assert "working" in shown
    assert "100%" in shown
    assert "tokens/s [bold]61" in shown  # markup in a fact is text
