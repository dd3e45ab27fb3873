"""`bertkit shards` as a user runs it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from bertkit.text.shards.reader import open_shards

TEXT = "The players played in New York. They were playing a play!\nA second paragraph.\n\nNaïve Café players.\n\n"


@pytest.fixture
def place(tmp_path, uncased_vocab):
    (tmp_path / "text.txt").write_text(TEXT * 40, encoding="utf-8")
    (tmp_path / "vocab.txt").write_bytes(uncased_vocab.read_bytes())
    (tmp_path / "names.txt").write_text("New York\n", encoding="utf-8")
    return tmp_path


def test_a_corpus_becomes_shards(bertkit_command, place):
    done = bertkit_command("shards", "text.txt", "--vocab", "vocab.txt", "--out", "out", cwd=place)
    assert done.returncode == 0, done.stderr
    opened = open_shards(place / "out", verify=True)
    assert (opened.documents, opened.sentences) == (80, 160)
    assert "1 in out" in done.stdout
    assert f"{opened.tokens:,} in" in done.stdout
    assert "160 in 80 documents" in done.stdout
    assert "writing shards: done" in done.stderr
    again = bertkit_command("shards", "text.txt", "--vocab", "vocab.txt", "--out", "out", cwd=place)
    assert again.returncode == 0, again.stderr
    assert "1 of them from an earlier run" in again.stdout


def test_json_and_names(bertkit_command, place):
    arguments = ["--vocab", "vocab.txt", "--out", "out", "--processes", 2, "--entities", "names.txt", "--json"]
    done = bertkit_command("shards", "text.txt", *arguments, cwd=place)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    opened = open_shards(place / "out")
    assert report["tokens"] == opened.tokens
    assert (report["documents"], report["entities"], report["shards"], report["kept"]) == (80, 40, 1, 0)
    assert len(opened.entities) == 40


def test_notes_are_told(bertkit_command, place):
    done = bertkit_command("shards", "text.txt", "text.txt", "--vocab", "vocab.txt", "--out", "out", cwd=place)
    assert "note: file named twice, read once (1, first: text.txt)" in done.stdout


FAULTS = {
    "missing": (["nowhere.txt", "--vocab", "vocab.txt", "--out", "out"], "nowhere.txt does not exist"),
    "no vocabulary": (["text.txt", "--vocab", "nowhere", "--out", "out"], "nowhere does not exist"),
    "vocabulary is no vocabulary": (["text.txt", "--vocab", "text.txt", "--out", "out"], "text.txt lists"),
    "no names": (["text.txt", "--vocab", "vocab.txt", "--out", "out", "--entities", "no"], "no cannot be read"),
    "no processes": (["text.txt", "--vocab", "vocab.txt", "--out", "out", "--processes", "0"], "must be at least 1"),
    "taken": (["text.txt", "--vocab", "vocab.txt", "--out", "."], "exists already"),
    "no out": (["text.txt", "--vocab", "vocab.txt"], "--out"),
    "no text": (["--vocab", "vocab.txt", "--out", "out"], "texts"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_requests_are_one_sentence_and_leave_nothing(command_here, place, fault):
    arguments, words = FAULTS[fault]
    before = sorted(place.rglob("*"))
    done = command_here("shards", *arguments, cwd=place)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert sorted(place.rglob("*")) == before


def test_other_arguments_on_the_same_folder_are_refused(bertkit_command, place):
    bertkit_command("shards", "text.txt", "--vocab", "vocab.txt", "--out", "out", cwd=place)
    done = bertkit_command("shards", "names.txt", "--vocab", "vocab.txt", "--out", "out", cwd=place)
    assert done.returncode == 2
    assert "out was begun with other settings (text files)" in done.stderr


def test_ctrl_c_stops_at_once_and_without_a_traceback(place):
    (place / "long.txt").write_text(TEXT * 300_000, encoding="utf-8")
    command = [sys.executable, "-m", "bertkit", "shards", "long.txt", "--vocab", "vocab.txt", "--out", "out"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*command, "--processes", "2"], cwd=place, text=True, start_new_session=True, **pipes)
    while not (place / "out").is_dir() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=20)  # until the last process that holds the pipe has ended
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert not (place / "out" / "manifest.json").exists()


def test_no_torch_is_imported(place):
    code = (
        "import sys; from bertkit.cli.shards import shards; from pathlib import Path;"
        "shards([Path('text.txt')], Path('vocab.txt'), Path('out'), processes=1);"
        "assert not {'torch', 'rich'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=place)
    assert done.returncode == 0, done.stderr
