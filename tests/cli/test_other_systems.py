"""Windows and macOS: nothing that is imported or done needs what only Linux, or only POSIX, has."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "finetuning"))
import tiny

HELPER = Path(__file__).with_name("without_posix.py")
ROOT = Path(__file__).parents[2] / "src" / "bertkit"
# A server has needs of its own, and Triton is for GPUs under Linux. The last would run a command.
ELSEWHERE = ("serve/", "model/triton_", "__main__")
LOCK = {"mode": 2, "bytes": 1}


@pytest.fixture
def elsewhere(tmp_path):
    """Runs code under the rules of Windows; gives the locks that it asked for."""

    def run(code: str) -> list[dict]:
        notes = tmp_path / "notes.jsonl"
        words = [sys.executable, str(HELPER), code, str(notes)]
        done = subprocess.run(words, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []

    return run


def command(*words: object) -> str:
    return f"from bertkit.cli.main import run; raise SystemExit(run({[str(word) for word in words]!r}))"


def test_every_module_can_be_imported(elsewhere):
    files = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
    chosen = [path for path in files if not path.as_posix().startswith(ELSEWHERE)]
    names = [".".join(("bertkit", *path.with_suffix("").parts)).removesuffix(".__init__") for path in chosen]
    assert {
        "bertkit",
        "bertkit.cli.finetune",
        "bertkit.predict.files.resume",
        "bertkit.finetuning.embeddings.tuning",
    } <= set(names)
    elsewhere(f"import importlib\nfor name in {names!r}: importlib.import_module(name)")


def test_texts_are_embedded_to_a_file(elsewhere, tmp_path):
    (tmp_path / "in.txt").write_text("a cat\na river bank\n")
    assert elsewhere("import bertkit; assert bertkit.load().embed('a cat').shape == (256,)") == []
    [lock] = elsewhere(command("embed", "in.txt", "--out", "out.npy"))
    assert lock == {"file": str(tmp_path / ".out.npy.part.lock"), **LOCK}
    assert np.load(tmp_path / "out.npy").shape == (2, 256)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "notes.jsonl", "out.npy"]


def test_a_model_is_fine_tuned_and_answers_a_file(elsewhere, tmp_path):
    model, (train, dev) = tiny.tiny_folder(tmp_path / "tiny"), tiny.files(tmp_path, "classify", 64, 32)
    words = ("finetune", "classify", "--from", model, "--train", train, "--dev", dev, "--out", "run", "epochs=1")
    assert elsewhere(command(*words)) == [{"file": str(tmp_path / ".run.lock"), **LOCK}]
    locks = elsewhere(command("predict", "run/model", dev, "--out", "out.jsonl"))
    assert locks[1:] == [{"file": str(tmp_path / ".out.jsonl.part.lock"), **LOCK}]
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 32
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
