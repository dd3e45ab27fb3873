"""A fine-tuned model of each task answers the same in a fresh process, and in transformers."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
import transformers

import bertkit
from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.errors import RequestError
from bertkit.finetuning.evaluate import make_windows, run_model
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.learner import load_start
from bertkit.finetuning.settings import read_settings
from bertkit.tasks.folder import build_task, read_task
from bertkit.tasks.read import read_examples
from bertkit.tasks.table import TASKS

AUTO = {  # by head
    "classify": transformers.AutoModelForSequenceClassification,
    "tag": transformers.AutoModelForTokenClassification,
    "answer": transformers.AutoModelForQuestionAnswering,
    "choose": transformers.AutoModelForMultipleChoice,
}
SAY = """
import sys, torch
from pathlib import Path
torch.set_num_threads(1)
import bertkit
from bertkit.tasks.read import read_examples
for task, run, file in zip(sys.argv[1::3], sys.argv[2::3], sys.argv[3::3], strict=True):
    print([vars(each) for each in bertkit.load(run).answers.predict(read_examples(task, Path(file)).examples)])
"""


pytestmark = pytest.mark.usefixtures("_one_thread")


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> dict[str, tuple[Path, Path]]:
    """For each task the folder of a short run, and its dev file."""
    home = tmp_path_factory.mktemp("taught")
    model = tiny.tiny_folder(home / "tiny")
    settings = read_settings("epochs=6", "learning_rate=3e-3", "batch=16", "metric=loss")
    runs = {}
    for task in TASKS:
        (home / task).mkdir()
        train, dev = tiny.files(home / task, task, 256, 24)
        fine_tune(task, settings, model, train, dev, home / task / "run")
        runs[task] = home / task / "run", dev
    return runs


def test_a_fresh_process_says_the_same_of_every_task(taught):
    words = [str(word) for task, (run, dev) in taught.items() for word in (task, run, dev)]
    done = subprocess.run([sys.executable, "-c", SAY, *words], capture_output=True, text=True, check=True)
    here = []
    for task, (run, dev) in taught.items():
        checkpoint = load_checkpoint(run / "model")
        own, decision = read_task(checkpoint)
        examples = read_examples(task, dev).examples
        windows = make_windows(own, examples)
        found = own.decode(examples, windows, run_model(checkpoint.model, own, windows).rows, decision)
        here.append(repr([vars(each) for each in found]))
    assert done.stdout.splitlines() == here
    assert all(len(line) > 1000 for line in here)


def test_transformers_writes_the_taught_texts(taught):
    run, dev = taught["write"]
    checkpoint = load_checkpoint(run / "model")
    own, _ = read_task(checkpoint)
    windows = make_windows(own, read_examples("write", dev).examples)
    ours = run_model(checkpoint.model, own, windows).rows
    theirs = transformers.EncoderDecoderModel.from_pretrained(run / "model").eval()
    for window, row in zip(windows, ours, strict=True):
        ids = theirs.generate(torch.tensor([window.ids]), max_new_tokens=len(row), num_beams=1, do_sample=False)
        assert ids[0, 1:].tolist() == row.tolist()


@pytest.mark.parametrize("task", [name for name, row in TASKS.items() if not row.generates])
def test_transformers_gives_the_taught_logits(task, taught):
    run, dev = taught[task]
    checkpoint = load_checkpoint(run / "model")
    own, _ = read_task(checkpoint)
    windows = make_windows(own, read_examples(task, dev).examples)
    ours = run_model(checkpoint.model, own, windows).rows
    theirs, told = AUTO[TASKS[task].head].from_pretrained(run / "model", output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    theirs.eval()
    gaps = []
    for window, row in zip(windows, ours, strict=True):
        inputs = {"input_ids": torch.tensor([window.ids]), "token_type_ids": torch.tensor([window.segments])}
        with torch.inference_mode():
            logits = their_logits(theirs, task, inputs)
        assert logits.shape == row.shape
        gaps.append(np.abs(logits - row).max())
    assert max(gaps) < 1e-5
    assert np.ptp([row.ravel()[0] for row in ours]) > 0.01, "a head that says one thing would agree too"
    names = tuple(theirs.config.id2label[number] for number in range(theirs.config.num_labels))
    assert not own.labels or names == own.labels


def their_logits(model, task, inputs) -> np.ndarray:
    if task == "choose":
        inputs = {name: tensor[None] for name, tensor in inputs.items()}  # one question with one choice
    found = model(**inputs)
    logits = torch.stack((found.start_logits, found.end_logits), dim=-1) if task == "answer" else found.logits
    return logits[0].numpy()


def test_a_stride_of_nothing_stays_nothing(taught):
    """0 is a choice: windows that share no token."""
    checkpoint = load_checkpoint(taught["answer"][0] / "model")
    for asked, wanted in (("stride=0", 0), ("stride=5", 5)):
        task = build_task("answer", checkpoint, read_settings(asked).reading)
        assert task.length.stride == wanted
    assert build_task("answer", checkpoint, read_settings().reading).length.stride == 128


def test_a_head_goes_on_where_task_and_labels_are_the_same_whoever_taught_it(taught, tmp_path):
    """A folder without bertkit.json says by its head what it was taught."""
    settings = read_settings()
    for task, (run, _) in taught.items():
        folder = tmp_path / task
        shutil.copytree(run / "model", folder)
        own = load_checkpoint(folder)
        expected = read_task(own)[0]
        (folder / "bertkit.json").unlink()
        found = load_checkpoint(folder)
        start = load_start(found, expected, settings).model.state_dict()
        kept = [torch.equal(start[name], tensor) for name, tensor in own.model.state_dict().items() if "heads." in name]
        assert kept
        assert all(kept) == (not TASKS[task].saved_fields), task


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("classify", {"limit": "x"}),
        ("classify", {"limit": None}),
        ("classify", {"limit": 1e999}),
        ("classify", {"labels": None}),
        ("classify", {"labels": [1, 2]}),
        ("regress", {"center": "x"}),
        ("regress", {"spread": math.nan}),
        ("regress", {"spread": 0}),
    ],
)
def test_a_damaged_task_is_one_sentence(taught, tmp_path, task, changes):
    shutil.copytree(taught[task][0] / "model", tmp_path / "model")
    path = tmp_path / "model" / "bertkit.json"
    content = json.loads(path.read_text())
    content["task"] |= changes
    path.write_text(json.dumps(content))
    with pytest.raises(RequestError, match=f"bertkit.json: {next(iter(changes))}=.* is not as bertkit writes it"):
        read_task(load_checkpoint(tmp_path / "model"))


def test_what_is_no_text_is_refused_by_name(taught):
    berts = {task: bertkit.load(taught[task][0]) for task in ("tag", "choose")}
    for wrong, said in (
        (None, "not NoneType"),
        ([5], r"texts\[0\] must be a list"),
        ([["a", 5]], r"texts\[0\] must be a list"),
    ):
        with pytest.raises(RequestError, match=said):
            berts["tag"].tag(wrong)
    for question, choices in (("Where?", "abc"), (["q", "r"], ["ab", "cd"])):
        with pytest.raises(RequestError, match="question 1 has to choose from must be a list of texts"):
            berts["choose"].choose(question, choices)
    words = np.array(["good", "film"], dtype=object)
    assert berts["tag"].tag([words]) == berts["tag"].tag([["good", "film"]])
    assert berts["choose"].choose("good?", words) == berts["choose"].choose("good?", ["good", "film"])
