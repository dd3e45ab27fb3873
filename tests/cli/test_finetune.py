"""`bertkit finetune` as a command: what it prints, what it refuses, how it is stopped."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bertkit.cli.finetune import _print_result
from bertkit.finetuning.result import FineTuned
from bertkit.progress import VERBOSITY
from bertkit.tasks.table import TASKS

sys.path.insert(0, str(Path(__file__).parents[1] / "finetuning"))
import tiny

import bertkit

QUICK = ("epochs=2", "batch=16", "learning_rate=3e-3")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


def words(model, folder, *more, task="classify"):
    train, dev = tiny.files(folder, task)
    return ("finetune", task, "--from", model, "--train", train, "--dev", dev, "--out", folder / "run", *more)


def test_it_teaches_and_tells(model, tmp_path, bertkit_command, command_here):
    done = bertkit_command(*words(model, tmp_path, *QUICK))
    assert done.returncode == 0, done.stderr
    assert "text = text, label = label (2 labels, 256 rows)" in done.stdout
    assert "accuracy " in done.stdout
    assert f"model in {tmp_path / 'run' / 'model'}" in done.stdout
    assert f"report: {tmp_path / 'run' / 'report.html'}\n" in done.stdout
    assert "fine-tuning: scoring the best weights on dev and saving the model\n" in done.stderr
    assert "writing the report: done in" in done.stderr
    assert "fine-tuning: done in" in done.stderr
    again = command_here(*words(model, tmp_path, *QUICK, "--resume", "--json"))
    found = json.loads(again.stdout)
    assert found["finished"]
    assert set(found["scores"]) == {"accuracy", "matthews", "macro_f1", "weighted_f1", "f1", "loss"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("epoch=2",), "unknown setting 'epoch'; choose from:"),
        ((__file__,), f"{__file__} is a file and not a setting; the training file is given as --train"),
        (("text=nothing",), "has no column 'nothing'"),
        (("--train", "missing.tsv"), "missing.tsv does not exist"),
        (("--from", "missing"), "missing is not a folder"),
        (("--dev", "/dev/null"), "/dev/null"),
    ],
)
def test_a_wrong_request_is_one_sentence(change, sentence, model, tmp_path, command_here):
    done = command_here(*words(model, tmp_path, *change))
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("written", [["--epochs", "0"], ["--epochs=0"], ["epochs=0"]], ids=" ".join)
def test_settings_may_be_written_as_options(written, model, tmp_path, command_here):
    done = command_here(*words(model, tmp_path, *written))
    assert done.returncode == 2
    assert done.stderr == "bertkit: epochs=0 must be at least 1\n"


def test_glue_has_a_folder_and_options_of_its_own(model, tmp_path, command_here):
    assert "bertkit finetune glue FOLDER" in command_here("finetune", "glue").stderr
    assert "--only and --json go with glue" in command_here("finetune", "glue", tmp_path, "--resume").stderr
    done = command_here("glue", tmp_path / "nowhere", "--from", model)
    assert done.returncode == 2
    note, refusal = done.stderr.splitlines()
    assert note == "bertkit: note: 'bertkit glue' is now 'bertkit finetune glue'; the old spelling goes in 0.3"
    assert "nowhere is not a folder; give one with a folder for each task" in refusal


def test_an_unknown_task_lists_the_tasks(model, tmp_path, command_here):
    train, dev = tiny.files(tmp_path, "classify")
    done = command_here("finetune", "sing", "--from", model, "--train", train, "--dev", dev, "--out", tmp_path / "r")
    assert done.returncode == 2
    assert {"answer", "choose", "classify", "multilabel", "regress", "tag"} <= set(TASKS)
    assert f"unknown task 'sing'; choose from: {', '.join(sorted([*TASKS, 'vectors']))}" in done.stderr


def test_ctrl_c_keeps_the_best_so_far(model, tmp_path):
    command = [
        sys.executable,
        "-m",
        "bertkit",
        *map(str, words(model, tmp_path, "epochs=200", "batch=8", "log_every=1")),
    ]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 120
    while time.monotonic() < deadline and not (metrics.is_file() and "evaluation" in metrics.read_text()):
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    out, errors = run.communicate(timeout=120)
    assert run.returncode == 130, errors
    assert "stopped; best of" in out
    assert f"report: {tmp_path / 'run' / 'report.html'}\n" in out
    assert "stopped before its end" in (tmp_path / "run" / "report.html").read_text()
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    assert "Traceback" not in errors


def test_a_second_process_is_refused_and_a_killed_one_leaves_no_lock(model, tmp_path, command_here):
    long = words(model, tmp_path, "epochs=2000", "batch=8", "log_every=1", "save_minutes=0.001")
    first = subprocess.Popen([sys.executable, "-m", "bertkit", *map(str, long)], stderr=subprocess.DEVNULL)
    saved, deadline = tmp_path / "run" / "checkpoints", time.monotonic() + 120
    while time.monotonic() < deadline and not (saved.is_dir() and any(saved.glob("step-*"))):
        time.sleep(0.05)
    try:
        for more in ((), ("--resume",)):
            second = command_here(*long, *more)
            assert second.returncode == 2, second.stderr
            said = f"bertkit: another process is writing to {tmp_path / 'run'}; wait for it, or stop it\n"
            assert second.stderr == said
        assert first.poll() is None, "the first goes on"
    finally:
        first.kill()
        first.wait()
    stopped = subprocess.Popen([sys.executable, "-m", "bertkit", *map(str, long), "--resume"], stderr=subprocess.PIPE)
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.read_bytes().count(b"\n")
    while time.monotonic() < deadline and metrics.read_bytes().count(b"\n") <= lines + 2:
        assert stopped.poll() is None, stopped.stderr.read()
        time.sleep(0.05)
    stopped.send_signal(signal.SIGINT)
    stopped.communicate(timeout=120)
    assert stopped.returncode == 130


def test_a_run_that_learned_nothing_says_so_last_and_retry_starts_it_again(model, tmp_path, command_here):
    done = command_here(*words(model, tmp_path, "epochs=1", "learning_rate=1e-9", "--retry"))
    assert done.returncode == 0, done.stderr
    assert "attempt 2 learned nothing; started again with learning_rate=1.11e-10" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("the model learned nothing: all 64 dev examples get the same answer")
    refused = command_here(*words(model, tmp_path, "--search", "--retry"))
    assert "--retry does not go with --search" in refused.stderr


def test_scores_have_intervals_and_meanings_and_a_test_of_their_own(model, tmp_path, command_here):
    done = command_here(*words(model, tmp_path, *QUICK, "--test-share", "0.25"))
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    low, high = result["intervals"]["accuracy"]
    lines = done.stdout.splitlines()
    dev = lines.index("on 64 dev examples:")
    assert lines[dev + 1].split() == [
        *("accuracy", f"{result['scores']['accuracy']:.4f}", "95", "%", "interval", f"{low:.3f}–{high:.3f}"),
        *["(share", "of", "correct", "answers)"],
    ]
    assert "(Matthews correlation: 1 perfect, 0 guessing)" in lines[dev + 2]
    assert "the dev examples also chose the weights, so new examples may score lower" in lines
    assert "no test file: 64 of 256 training examples are held out" in lines
    test = lines.index("on 64 test examples, which had no part in training:")
    assert lines[test + 1].split()[1] == f"{result['test']['scores']['accuracy']:.4f}"
    rows = [json.loads(line) for line in (tmp_path / "run" / "test_predictions.jsonl").read_text().splitlines()]
    assert list(rows[0])[:5] == ["location", "texts", "gold", "label", "probability"]
    correct = sum(row["gold"] == row["label"] for row in rows) / 64
    assert correct == pytest.approx(result["test"]["scores"]["accuracy"])
    page = (tmp_path / "run" / "report.html").read_text()
    assert "on test" in page
    assert "new examples may score lower." in page
    refused = command_here(*words(model, tmp_path, "--test", "x.tsv", "--search"))
    assert "--test does not go with --search" in refused.stderr


def test_quiet_leaves_out_notes_and_hints(capsys):
    numbers = {"scores": {"accuracy": 0.9}, "plain": {}, "calibration": {}, "best_step": 2, "steps": 4}
    done = FineTuned(task="classify", metric="accuracy", finished=True, notes=("said",), chosen_on_dev=True, **numbers)
    usual = VERBOSITY.set(-1)
    _print_result(done, Path("run"), as_json=False)
    VERBOSITY.reset(usual)
    assert capsys.readouterr().out.splitlines() == [
        "scores:",
        "  accuracy 0.9000    (share of correct answers)",
        f"best of 4 steps: 2; model in {Path('run/model')}",
        f"report: {Path('run/report.html')}",
    ]


def test_it_ends_with_the_report_and_the_next_command(capsys):
    numbers = {"scores": {"accuracy": 0.9}, "plain": {}, "calibration": {}, "best_step": 2, "steps": 4, "notes": ()}
    done = FineTuned(task="classify", metric="accuracy", finished=True, **numbers)
    report = f"best of 4 steps: 2; model in {Path('run/model')}\nreport: {Path('run/report.html')}\n"
    for result, last in (
        (done, "try: bertkit predict run TEXT, or bertkit serve run --open"),
        (replace(done, task="vectors"), "try: bertkit embed texts.txt --model run --out vectors.npy"),
        (replace(done, collapsed="the model learned nothing"), "the model learned nothing"),
    ):
        _print_result(result, Path("run"), as_json=False)
        assert capsys.readouterr().out.endswith(f"{report}{last}\n")


def test_few_rows_a_label_are_tuned_by_contrast(model, tmp_path, command_here):
    rows = "".join(f"{'t0w1' if n % 2 else 't1w2'} {n},{'yes' if n % 2 else 'no'}\n" for n in range(20))
    (tmp_path / "few.csv").write_text(f"text,label\n{rows}")
    asked = ("finetune", "classify", "--from", model, "--train", tmp_path / "few.csv")
    done = command_here(*asked, "label=label", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "no dev file: 2 of 20 training examples are held out" in done.stdout
    assert "9 rows a label are few, so few=true was chosen" in done.stdout
    assert "best of 15 steps: 15" in done.stdout
    assert "the dev examples also chose the weights" not in done.stdout
    assert command_here("predict", tmp_path / "run", "t0w1").returncode == 0
    tuned = command_here(*asked, "--few", "false", "--epochs", "1", "--out", tmp_path / "tuned")
    assert tuned.returncode == 0, tuned.stderr
    assert "are few" not in tuned.stdout


def test_features_save_a_model_that_the_other_commands_use(model, tmp_path, command_here):
    asked, dev = words(model, tmp_path, "--features"), tmp_path / "dev.tsv"
    done = command_here(*asked)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    assert len({line.index("accuracy") for line in rows[:-2]}) == 1, "the columns stand below each other"
    assert f"chosen on the training data; model in {tmp_path / 'run' / 'model'}" in rows[-2]
    said_file = tmp_path / "said.jsonl"
    assert command_here("predict", tmp_path / "run" / "model", dev, "--out", said_file).returncode == 0
    said = [json.loads(line) for line in said_file.read_text().splitlines()]
    found = bertkit.load(tmp_path / "run").classify([row["text"] for row in said])
    assert [row["predicted_label"] for row in said] == [each.label for each in found]
    layer = json.loads((tmp_path / "run" / "model" / "bertkit.json").read_text())["task"]["record"]["features"]["layer"]
    told = next(float(line.split("accuracy ")[1].split()[0]) for line in rows if line.startswith(f"layer {layer} "))
    right = sum(row["predicted_label"] == row["label"] for row in said)
    assert right / len(said) == pytest.approx(told, abs=1e-4)
    assert "exists already" in command_here(*asked).stderr


def test_columns_of_training_need_no_name_later(model, tmp_path, command_here):
    """Named once, or the only ones left, the columns are in the model's training record."""
    rows = [("a b c a b c", "left"), ("d e f d e f", "right")] * 8
    (tmp_path / "all.csv").write_text("words,side\n" + "".join(f"{text},{side}\n" for text, side in rows))
    (tmp_path / "more.csv").write_text("id,side,words\n" + "".join(f"7,{side},{text}\n" for text, side in rows))
    done = command_here(
        "finetune", "classify", "--from", model, "--train", tmp_path / "all.csv", *QUICK, "--out", tmp_path / "run"
    )
    assert done.returncode == 0, done.stderr
    assert "text = words, label = side" in done.stdout + done.stderr
    evaluated = command_here("evaluate", tmp_path / "run" / "model", tmp_path / "more.csv")
    assert "text = words, label = side" in evaluated.stdout, evaluated.stderr
    predicted = command_here("predict", tmp_path / "run" / "model", tmp_path / "more.csv")
    assert "(16 rows, label = side)" in predicted.stderr
    (tmp_path / "run" / "model" / "bertkit.json").write_text(
        json.dumps(
            json.loads((tmp_path / "run" / "model" / "bertkit.json").read_text())
            | {"record": {"columns": {"text": 3, "header": "x", "label": "side"}}}
        )
    )
    odd = command_here("evaluate", tmp_path / "run" / "model", tmp_path / "more.csv", "text=words")
    assert "text = words, label = side" in odd.stdout, odd.stderr
