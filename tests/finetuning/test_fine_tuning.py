"""The loop: it learns, it is exact after a kill, it keeps the best, and what it writes answers as it was measured."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file

import bertkit
from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.data.examples import TextExample
from bertkit.data.tables import Location
from bertkit.errors import RequestError
from bertkit.finetuning.batches import EpochPlan, epoch_steps, within_budget
from bertkit.finetuning.evaluate import predict, run_model
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.learner import (
    freeze_below,
    layer_number,
    load_start,
    lowest_trainable,
    pack,
    rate_scales,
    start_at_prior,
    task_logits,
)
from bertkit.finetuning.prepare import DataFiles, loss_settings, prepare
from bertkit.finetuning.run_state import Best
from bertkit.finetuning.session import evaluation_due
from bertkit.finetuning.settings import read_request, read_settings
from bertkit.poolings import POOLINGS
from bertkit.tasks.folder import read_task
from bertkit.tasks.multilabel import Multilabel
from bertkit.tasks.read import read_examples
from bertkit.tasks.table import TASKS
from bertkit.tasks.task import Dataset, LossSettings

QUICK = ("epochs=6", "learning_rate=3e-3", "batch=16")


pytestmark = pytest.mark.usefixtures("_one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


def teach(task, model, folder, *pairs, out="run", **options):
    train, dev = tiny.files(folder, task)
    return fine_tune(task, read_settings(*(pairs or QUICK)), model, train, dev, folder / out, **options)


@pytest.mark.parametrize(
    ("task", "least"), [("classify", 0.95), ("multilabel", 0.8), ("regress", 0.7), ("tag", 0.9), ("choose", 0.9)]
)
def test_every_task_learns_and_reloads_with_the_same_scores(task, least, model, tmp_path):
    result = teach(task, model, tmp_path)
    assert result.score > least
    bert = bertkit.load(tmp_path / "run")
    examples = read_examples(task, tiny.files(tmp_path, task)[1]).examples
    again, decision = read_task(bert.checkpoint)
    assert again.score(examples, predict(bert.model, again, examples)) == result.plain
    if task != "multilabel":  # thresholds are reported on examples that did not choose them
        scores = again.score(examples, bert.answers.predict(examples))
        assert scores == {k: v for k, v in result.scores.items() if k != "loss"}
    assert decision.to_json() == bert.checkpoint.task["decision"]


def test_the_largest_numbers_that_are_taken_give_finite_scores(model, tmp_path):
    rows = [f"{word}\t{number}" for word, number in zip(tiny.GOOD * 4, ("1e100", "-1e100") * 8, strict=True)]
    file = tmp_path / "numbers.tsv"
    file.write_text("\n".join(["text\tscore", *rows]))
    result = fine_tune("regress", read_settings("epochs=1"), model, file, file, tmp_path / "run")
    assert all(math.isfinite(score) for score in (*result.scores.values(), *result.plain.values()))
    for path in (tmp_path / "run").rglob("*.json"):
        assert not {"NaN", "Infinity"} & set(path.read_text().replace(",", " ").split()), path


def test_answers_are_learned_and_point_into_the_passage(model, tmp_path):
    result = teach("answer", model, tmp_path, "epochs=10", "learning_rate=3e-3", "batch=8")
    assert result.scores["f1"] > 0.6
    passage = "the film was in  rome and ada lives"
    found = bertkit.load(tmp_path / "run").answer("who lives ?", passage)
    assert found.text == ("" if found.start is None else passage[found.start : found.end])
    assert found.candidates
    assert all(passage[each.start : each.end] == each.text for each in found.candidates)


def test_a_fresh_process_gives_identical_outputs(model, tmp_path):
    teach("classify", model, tmp_path, "epochs=1")
    code = "import sys, torch, bertkit; torch.set_num_threads(1)\n"
    code += f"print(bertkit.load({str(tmp_path / 'run')!r}).classify(['the film was great', 'e ex']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == repr(bertkit.load(tmp_path / "run").classify(["the film was great", "e ex"]))


@pytest.mark.parametrize("task", TASKS)
def test_the_count_known_before_the_forward_is_the_loss_s_own(task, model, tmp_path):
    prepared, start, settings = prepared_for(task, model, tmp_path)
    windows = [window for own in prepared.train.windows[:7] for window in own]
    batch = pack(windows, start.model.config)
    logits = task_logits(start.model, prepared.task, batch, windows)
    total, count = prepared.task.loss(logits, batch, windows, loss_of(settings))
    assert int(count) == prepared.task.count_targets(windows)
    assert torch.isfinite(total)


def loss_of(settings):
    return LossSettings(label_smoothing=settings.learning.label_smoothing)


def prepared_for(task, model, folder, *pairs):
    settings = read_settings(*pairs)
    train, dev = tiny.files(folder, task, 64, 32)
    begin = load_checkpoint(model)
    prepared = prepare(task, begin, DataFiles(train=train, dev=dev), settings)
    return prepared, load_start(begin, prepared.task, settings), settings


@pytest.mark.parametrize("pairs", [(), ("label_smoothing=0.1",), ("class_weights=balanced",)])
def test_with_no_gradient_left_for_its_bias_a_new_head_of_many_labels_begins(pairs, model, tmp_path):
    settings = read_settings(*pairs)
    train = tmp_path / "train.jsonl"
    labels = [["a"]] * 3 + [["a", "b"]] * 5 + [["c"]] + [[]] * 55
    train.write_text("".join(json.dumps({"text": "the film", "labels": each}) + "\n" for each in labels))
    begin = load_checkpoint(model)
    prepared = prepare("multilabel", begin, DataFiles(train=train, dev=train), settings)
    start, weights = load_start(begin, prepared.task, settings), loss_settings(prepared.task, prepared.train, settings)
    odds = prepared.task.prior_bias(prepared.train, weights)
    start_at_prior(start.model, prepared.task, odds)
    bias = start.model.heads["classify"].out.bias
    if not pairs:
        assert bias.sigmoid().tolist() == pytest.approx([8 / 64, 5 / 64, 1 / 64])
    windows = [window for own in prepared.train.windows for window in own]
    batch = pack(windows, start.model.config)
    total, count = prepared.task.loss(bias.expand(len(windows), 3), batch, windows, weights)
    (total / count).backward()
    assert bias.grad.abs().max() < 1e-6, "what can be known without reading is known"
    with torch.no_grad():
        bias += 1
    before = bias.tolist()
    start_at_prior(start.model, prepared.task, odds)
    assert bias.tolist() == before, "a head that was taught keeps its own"


def test_labels_that_no_text_or_every_text_has_leave_the_odds_finite():
    rows = [TextExample("x", None, ("a",), Location(Path("a.tsv"), 1)) for _ in range(4)]
    task = Multilabel(tokenizer=tiny.tokenizer(), limit=16, labels=("a", "b"))
    odds = task.prior_bias(Dataset(rows, []), LossSettings())
    assert odds == pytest.approx((math.log(7), -math.log(7)))


@pytest.mark.parametrize("task", ["classify", "tag", "choose"])
def test_a_step_in_parts_is_the_same_step(task, model, tmp_path):
    settings = ("epochs=1", "batch=16", "learning_rate=3e-4", "dropout=0")
    one = teach(task, model, tmp_path, *settings, "tokens=16384", out="whole")
    parts = teach(task, model, tmp_path, *settings, "tokens=64", out="parts")
    assert one.steps == parts.steps
    whole, cut = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    # The bias of choices has no gradient but rounding, which Adam makes large: a softmax does not see it.
    for name in whole.keys() - ({"classifier.bias"} if task == "choose" else set()):
        torch.testing.assert_close(whole[name], cut[name], atol=2e-5, rtol=0)


def weights(run: Path):
    return load_file(run / "model" / "model.safetensors")


def equal(one: Path, other: Path) -> bool:
    left, right = weights(one), weights(other)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


CHILD = """
import sys, torch
torch.set_num_threads(1)
from pathlib import Path
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.settings import read_settings
folder = Path(sys.argv[1])
files = folder / "train.tsv", folder / "dev.tsv"
settings = read_settings(*sys.argv[4:])
result = fine_tune("classify", settings, Path(sys.argv[2]), *files, folder / sys.argv[3], resume=True)
print(result.finished, result.best_step)
"""
LONG = (
    "epochs=4",
    "batch=8",
    "learning_rate=3e-3",
    "save_minutes=0.002",
    "log_every=1",
    "evaluations=2",
    "unfreeze=0.5",
)


def child(folder, model, out) -> subprocess.Popen:
    words = [sys.executable, "-c", CHILD, str(folder), str(model), out, *LONG]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)


def wait_for_step(run: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        path = run / "metrics.jsonl"
        if path.is_file() and path.read_text().count('"norm"') >= step:
            return
        time.sleep(0.01)
    raise AssertionError("the run did not get that far")


@pytest.fixture(scope="module")
def straight(model, tmp_path_factory) -> tuple[Path, str]:
    """A run that nobody disturbed, and what it said."""
    folder = tmp_path_factory.mktemp("straight")
    tiny.files(folder, "classify")
    return folder / "run", child(folder, model, "run").communicate(timeout=300)[0]


def test_killed_and_resumed_gives_the_straight_run_s_model(model, straight, tmp_path):
    tiny.files(tmp_path, "classify")
    killed = child(tmp_path, model, "killed")
    wait_for_step(tmp_path / "killed", 45)  # in the second epoch of 32 steps
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "killed" / "model").exists()
    assert child(tmp_path, model, "killed").communicate(timeout=300)[0] == straight[1] != ""
    assert equal(tmp_path / "killed", straight[0])
    assert not (tmp_path / "killed" / "checkpoints").exists()


def test_asked_to_stop_it_keeps_the_best_so_far_and_goes_on(model, straight, tmp_path):
    tiny.files(tmp_path, "classify")
    stopped = child(tmp_path, model, "stopped")
    wait_for_step(tmp_path / "stopped", 40)
    stopped.send_signal(signal.SIGTERM)
    said = stopped.communicate(timeout=120)[0]
    assert said.startswith("False")
    assert bertkit.load(tmp_path / "stopped").classify("great film").label in ("positive", "negative")
    assert not json.loads((tmp_path / "stopped" / "result.json").read_text())["finished"]
    assert child(tmp_path, model, "stopped").communicate(timeout=300)[0] == straight[1] != ""
    assert equal(tmp_path / "stopped", straight[0])


def test_the_best_is_kept_not_the_last(model, tmp_path):
    result = teach("classify", model, tmp_path, "epochs=3", "learning_rate=3e-3", "evaluations=4", "batch=16")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = {line["step"]: line["evaluation"] for line in lines if "evaluation" in line}
    assert len(found) == 12
    best = min(found, key=lambda step: (-found[step]["accuracy"], found[step]["loss"], step))
    assert result.best_step == best
    assert result.plain["accuracy"] == found[best]["accuracy"]


def test_patience_ends_a_run_that_gets_no_better(model, tmp_path):
    result = teach("classify", model, tmp_path, "epochs=50", "learning_rate=3e-3", "batch=16", "patience=2")
    assert result.steps < 50 * 16
    assert result.finished


def test_any_metric_may_choose_and_an_unknown_one_is_refused(model, tmp_path):
    assert teach("classify", model, tmp_path, "epochs=1", "metric=loss").metric == "loss"
    with pytest.raises(RequestError, match="unknown metric 'blue'; choose from: accuracy, "):
        teach("classify", model, tmp_path, "epochs=1", "metric=blue", out="other")


def test_a_finished_run_is_not_done_again_and_a_changed_one_is_refused(model, tmp_path):
    first = teach("classify", model, tmp_path, "epochs=1")
    assert teach("classify", model, tmp_path, "epochs=1", resume=True) == first
    with pytest.raises(RequestError, match="exists already"):
        teach("classify", model, tmp_path, "epochs=1")
    with pytest.raises(RequestError, match="begun with epochs=1, not 2"):
        teach("classify", model, tmp_path, "epochs=2", resume=True)
    with pytest.raises(RequestError, match="begun with task=classify, not regress"):
        teach("regress", model, tmp_path, "epochs=1", resume=True)
    (tmp_path / "run" / "report.html").unlink()  # as a kill before it would leave the folder
    assert teach("classify", model, tmp_path, "epochs=1", resume=True) == first
    assert (tmp_path / "run" / "report.html").is_file()
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(RequestError, match="begun with epochs=1, not 2"):
        teach("classify", model, tmp_path, "epochs=2", resume=True)
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(RequestError, match=r"run\.json"):
        teach("classify", model, tmp_path, "epochs=1", resume=True)


def test_all_tensors_learn_and_frozen_ones_do_not(model, tmp_path):
    teach("classify", model, tmp_path, "epochs=1")
    teach("classify", model, tmp_path, "epochs=1", "frozen=1", out="frozen")
    before = load_file(model / "model.safetensors")
    free, frozen = weights(tmp_path / "run"), weights(tmp_path / "frozen")
    for name, tensor in before.items():
        low = "embeddings" in name or "layer.0" in name
        assert not torch.equal(free[f"bert.{name}"], tensor), name
        assert torch.equal(frozen[f"bert.{name}"], tensor) == low, name


def test_layers_are_set_free_from_the_top_down():
    settings = read_settings("unfreeze=0.5")
    lowest = [lowest_trainable(settings, 4, progress / 20) for progress in range(21)]
    assert lowest[0] == 5
    assert lowest == sorted(lowest, reverse=True)
    assert lowest[10:] == [0] * 11
    assert set(lowest) == {5, 4, 3, 2, 1, 0}
    assert lowest_trainable(read_settings("frozen=2", "unfreeze=0.5"), 4, 0.9) == 3


def test_lower_layers_learn_slower(model):
    found = load_checkpoint(model).model
    scales = rate_scales(found, 0.5)
    assert scales["encoder.embeddings.word.weight"] == 0.5**3
    assert scales["encoder.layers.0.attention.qkv.weight"] == 0.25
    assert scales["encoder.layers.1.feed_forward.up.bias"] == 0.5
    assert layer_number("pooler.dense.weight", 2) == layer_number("heads.classify.out.weight", 2) == 3
    freeze_below(found, 2)
    assert {layer_number(n, 2) for n, p in found.named_parameters() if not p.requires_grad} == {0, 1}


def test_layer_decay_changes_what_is_learned(model, tmp_path):
    teach("classify", model, tmp_path, "epochs=1", "layer_decay=0.01", "dropout=0")
    moved = {
        name: float((tensor - load_file(model / "model.safetensors")[name]).abs().max())
        for name in ["encoder.layer.0.output.dense.weight", "encoder.layer.1.output.dense.weight"]
        for tensor in [weights(tmp_path / "run")[f"bert.{name}"]]
    }
    low, high = moved.values()
    assert low < high / 20


def test_gradient_checkpointing_gives_the_same_model(model, tmp_path):
    teach("classify", model, tmp_path, "epochs=1")
    teach("classify", model, tmp_path, "epochs=1", "checkpointing=true", out="twice")
    assert equal(tmp_path / "run", tmp_path / "twice")


def test_a_fine_tuned_model_is_a_start_for_another_task(model, tmp_path):
    teach("tag", model, tmp_path, "epochs=1", out="tagger")
    start = load_checkpoint(tmp_path / "tagger")
    _, began, _ = prepared_for("classify", tmp_path / "tagger", tmp_path)
    assert set(began.model.heads) == {"classify"}
    for name, tensor in start.model.encoder.state_dict().items():
        assert torch.equal(began.model.encoder.state_dict()[name], tensor)
    result = teach("classify", tmp_path / "tagger", tmp_path)
    assert result.score > 0.9


def test_the_same_task_with_the_same_labels_goes_on_with_its_head(model, tmp_path):
    teach("classify", model, tmp_path)
    taught = load_checkpoint(tmp_path / "run")
    _, began, _ = prepared_for("classify", tmp_path / "run", tmp_path)
    assert torch.equal(began.model.heads["classify"].out.weight, taught.model.heads["classify"].out.weight)


def test_without_a_dev_file_a_tenth_is_held_out(model, tmp_path):
    train, _ = tiny.files(tmp_path, "classify", 100)
    result = fine_tune("classify", read_settings("epochs=1"), model, train, None, tmp_path / "run")
    assert "no dev file: 10 of 100 training examples are held out" in result.notes
    assert result.steps == 3  # 90 examples, 32 a step


def test_a_model_that_reads_from_left_to_right_learns_so(tmp_path):
    """Its [CLS] sees nothing of the text, so that by default the head reads the mean of all tokens."""
    model = tiny.tiny_folder(tmp_path / "model", causal=True)
    # From random weights all layers have as much to learn.
    assert teach("classify", model, tmp_path, *QUICK, "layer_decay=1", "epochs=10").score > 0.9
    bert = bertkit.load(tmp_path / "run")
    assert bert.model.config.parts.causal
    assert bert.model.config.parts.pooling == "mean"
    one, other = bert.embed(["the film was good", "the film was bad"], pooling="none")
    np.testing.assert_array_equal(one[:4], other[:4])
    with pytest.raises(RequestError, match=r"pooling=first reads \[CLS\] alone, which sees no other token"):
        teach("classify", model, tmp_path, *QUICK, "pooling=first", out="other")


def test_a_causal_tagger_keeps_its_familys_pooling(tmp_path):
    teach("tag", tiny.tiny_folder(tmp_path / "model", causal=True), tmp_path, "epochs=1")
    saved = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert (saved["architectures"], saved["is_decoder"]) == (["BertForTokenClassification"], True)


@pytest.mark.parametrize("pooling", [name for name, row in POOLINGS.items() if row.head])
def test_every_pooling_learns_and_reloads(pooling, model, tmp_path):
    result = teach("classify", model, tmp_path, *QUICK, f"pooling={pooling}")
    assert result.score > 0.9
    bert = bertkit.load(tmp_path / "run")
    assert bert.model.config.parts.pooling == pooling
    examples = read_examples("classify", tmp_path / "dev.tsv").examples
    scores = bert.answers.task.score(examples, bert.answers.predict(examples))
    assert scores["accuracy"] == result.scores["accuracy"]


def test_class_weights_and_smoothing_change_the_run(model, tmp_path):
    plain = teach("classify", model, tmp_path, "epochs=1")
    smooth = teach("classify", model, tmp_path, "epochs=1", "label_smoothing=0.3", out="smooth")
    weighed = teach("classify", model, tmp_path, "epochs=1", "class_weights=balanced", out="weighed")
    assert len({plain.scores["loss"], smooth.scores["loss"], weighed.scores["loss"]}) == 3
    with pytest.raises(RequestError, match="'regress' has none"):
        teach("regress", model, tmp_path, "epochs=1", "class_weights=balanced", out="r")


def faulty(folder: Path, train: str, dev: str = "text\tlabel\ngood\ta\nbad\tb\n"):
    (folder / "train.tsv").write_text(train)
    (folder / "dev.tsv").write_text(dev)
    return folder / "train.tsv", folder / "dev.tsv"


@pytest.mark.parametrize(
    ("train", "dev", "sentence"),
    [
        ("text\tlabel\ngood\ta\nbad\tb\n", "text\tlabel\ngood\ta\nbad\tc\n", "dev.tsv, line 3: the label 'c' is not"),
        ("text\tlabel\ngood\ta\nbad\ta\n", "text\tlabel\ngood\ta\n", "train.tsv: every example has the label 'a'"),
        ("text\tlabel\ngood\ta\nbad\tb\n", "text\tlabel\n", "dev.tsv"),
        ("text\tlabel\ngood\ta\nbad\tb\n", "", "dev.tsv"),
        ("", "text\tlabel\ngood\ta\n", "train.tsv"),
    ],
)
def test_data_that_cannot_be_used_is_named(train, dev, sentence, model, tmp_path):
    files = faulty(tmp_path, train, dev)
    with pytest.raises(RequestError, match=sentence) as caught:
        fine_tune("classify", read_settings("epochs=1"), model, *files, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_million_characters_are_cut_and_said_or_refused_with_the_line(model, tmp_path):
    files = faulty(tmp_path, "text\tlabel\n" + "good " * 200_000 + "\ta\nbad\tb\n")
    result = fine_tune("classify", read_settings("epochs=1"), model, *files, tmp_path / "run")
    assert "train.tsv: 1 of 2 texts are cut to 64 tokens; length=windows reads whole texts" in result.notes
    with pytest.raises(RequestError, match=r"train.tsv, line 2: a text of 200,002 tokens takes .* windows"):
        fine_tune("classify", read_settings("epochs=1", "length=windows"), model, *files, tmp_path / "other")


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ("epoch=3", "unknown setting 'epoch'; choose from: .*epochs"),
        ("epochs=0", "epochs=0 must be at least 1"),
        ("epochs=two", "epochs=two is not a whole number"),
        ("epochs", "'epochs' is not of the form key=value"),
        ("learning_rate=-1", "must be over 0"),
        ("learning_rate=nan", "must be over 0"),
        ("pooling=middle", "unknown pooling 'middle'"),
        ("decay=down", "unknown decay 'down'"),
        ("warmup=2", "warmup=2.0 must be from 0 to 1"),
        ("dropout=1", "dropout=1.0 must be from 0 to 0.9"),
    ],
)
def test_settings_are_checked_at_the_door(pair, sentence):
    with pytest.raises(RequestError, match=sentence):
        read_request(pair)


def test_columns_and_settings_share_the_line():
    settings, columns = read_request("epochs=2", "text=review", "label=stars")
    assert settings.learning.epochs == 2
    assert (columns.text, columns.label) == ("review", "stars")


def test_a_length_policy_that_does_not_fit_the_task_is_refused(model, tmp_path):
    with pytest.raises(RequestError, match="length policy 'head' does not go with 'tag'"):
        teach("tag", model, tmp_path, "length=head")


def test_an_epoch_has_every_example_once_in_runs_of_about_equal_length_that_are_mixed():
    lengths = np.random.default_rng(0).integers(4, 60, size=1003).tolist()
    steps = epoch_steps(lengths, 16, seed=7, epoch=3)
    assert sorted(number for step in steps for number in step) == list(range(1003))
    assert sorted(map(len, steps)) == [11, *[16] * 62]
    assert steps == epoch_steps(lengths, 16, seed=7, epoch=3)
    assert steps != epoch_steps(lengths, 16, seed=8, epoch=3) != epoch_steps(lengths, 16, seed=7, epoch=4)
    assert np.mean([len({lengths[i] for i in step}) for step in steps]) < 7, "at random there are 14 in a step"
    means = [np.mean([lengths[i] for i in step]) for step in steps]
    assert np.std(means) < 0.6 * np.std(lengths), "with one length in each step it is 1"
    assert all(lengths[one] >= lengths[two] for step in steps for one, two in pairwise(step))


def test_steps_are_counted_over_epochs():
    plan = EpochPlan(tuple(range(1, 11)), 4, 0)
    assert plan.steps == 3
    assert [plan.step(number) for number in range(3, 6)] == epoch_steps(range(1, 11), 4, 0, 1)
    assert plan.step(0) == epoch_steps(range(1, 11), 4, 0, 0)[0]


def test_parts_keep_to_the_budget():
    assert list(within_budget([5, 5, 5, 20, 1], 10)) == [[0, 1], [2], [3], [4]]
    assert list(within_budget([], 10)) == []


def test_evaluations_are_spread_over_an_epoch_and_end_it():
    due = [step for step in range(1, 21) if evaluation_due(step, 10, 3)]
    assert due == [4, 7, 10, 14, 17, 20]
    assert [step for step in range(1, 5) if evaluation_due(step, 2, 5)] == [1, 2, 3, 4]


def test_the_best_remembers_score_then_loss():
    best = Best().after(1, "accuracy", 0.5, 1.0)
    better = best.after(2, "accuracy", 0.5, 0.9)
    assert (better.step, better.since) == (2, 1)
    assert better.after(3, "accuracy", 0.4, 0.1).step == 2
    assert better.after(3, "accuracy", float("nan"), 0.1).since == 2


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_outputs_do_not_depend_on_the_batch(task, model, tmp_path):
    prepared, start, _ = prepared_for(task, model, tmp_path)
    together = run_model(start.model, prepared.task, prepared.dev.flat)
    alone = run_model(start.model, prepared.task, prepared.dev.flat, tokens=1)
    for one, other in zip(together.rows, alone.rows, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert together.loss == pytest.approx(alone.loss, abs=1e-5)
