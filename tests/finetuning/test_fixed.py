"""Tensors of a fixed form: the same losses and gradients as from windows, few forms, and one graph for each."""

from dataclasses import replace

import pytest
import tiny
import torch
from safetensors.torch import load_file
from torch.fx.experimental.proxy_tensor import make_fx

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.errors import RequestError
from bertkit.finetuning.learner import TASK, Learner, load_start, pack
from bertkit.finetuning.prepare import DataFiles, prepare
from bertkit.finetuning.session import open_session
from bertkit.finetuning.settings import read_settings
from bertkit.progress import silent
from bertkit.tasks.shared.fixed_batch import LENGTH_MULTIPLE, FixedBatch, fixed_batch, supports_fixed_batches
from bertkit.tasks.table import TASKS
from bertkit.tasks.task import LossSettings
from bertkit.train.distributed import Ranks
from bertkit.train.half import HalfPrecision
from bertkit.train.loop import train
from bertkit.train.replay import Replay
from bertkit.train.runs import Run

PLAIN = LossSettings()


pytestmark = pytest.mark.usefixtures("_one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


def prepared_for(task, model, folder, *pairs):
    settings = read_settings(*pairs)
    train_file, dev_file = tiny.files(folder, task, 64, 16)
    begin = load_checkpoint(model)
    prepared = prepare(task, begin, DataFiles(train=train_file, dev=dev_file), settings)
    return prepared, load_start(begin, prepared.task, settings), settings


def windows_of(prepared, start, stop):
    return [window for own in prepared.train.windows[start:stop] for window in own]


def weights_for(prepared, kind):
    if kind == "smooth":
        return LossSettings(label_smoothing=0.2)
    labels = len(prepared.task.labels)
    if kind == "balanced" and labels:
        return LossSettings(class_weights=tuple(0.5 + i for i in range(labels)))
    return PLAIN


def loss_and_gradients(learner, *inputs):
    learner.zero_grad()
    total, count, _ = learner(*inputs)[TASK]
    total.backward()
    return total.item(), int(count), {n: p.grad.clone() for n, p in learner.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", ["plain", "smooth", "balanced"])
@pytest.mark.parametrize("task", TASKS)
def test_filling_changes_neither_loss_nor_gradient(task, kind, model, tmp_path):
    prepared, start, _ = prepared_for(task, model, tmp_path, "dropout=0")
    weights = weights_for(prepared, kind)
    learner = Learner(start.model.train(), prepared.task, weights)
    for first, stop in ((0, 8), (8, 11)):  # a whole step, and an epoch's small last one
        windows = windows_of(prepared, first, stop)
        fixed = fixed_batch(prepared.task, windows, start.model.config, weights, 8)
        assert len(fixed.ids) > sum(len(window.ids) for window in windows)
        plain = loss_and_gradients(learner, pack(windows, start.model.config), windows)
        filled = loss_and_gradients(learner, fixed)
        assert filled[0] == pytest.approx(plain[0], rel=1e-5)
        assert filled[1] == plain[1]
        assert filled[2].keys() == plain[2].keys()
        for name, gradient in plain[2].items():
            torch.testing.assert_close(filled[2][name], gradient, atol=2e-5, rtol=1e-4, msg=name)


def test_what_has_no_twin_stays_as_it_is(model, tmp_path):
    prepared, start, _ = prepared_for("classify", model, tmp_path, "max_length=8", "length=windows")
    windows = windows_of(prepared, 0, 8)
    assert len(windows) > 8
    assert fixed_batch(prepared.task, windows, start.model.config, PLAIN, 8) is None
    assert supports_fixed_batches(prepared.task, PLAIN, start.model.config)
    mean = replace(start.model.config, parts=replace(start.model.config.parts, pooling="mean"))
    assert not supports_fixed_batches(prepared.task, PLAIN, mean)
    joined, start, _ = prepared_for("classify", model, tmp_path, "max_length=8", "length=hierarchical")
    assert not supports_fixed_batches(joined.task, PLAIN, start.model.config)
    tags, start, _ = prepared_for("tag", model, tmp_path)
    assert not supports_fixed_batches(
        tags.task, LossSettings(label_smoothing=0.1, class_weights=(1.0, 2.0, 3.0)), start.model.config
    )


def test_a_form_never_asks_for_positions_that_the_model_lacks(tmp_path):
    model = tiny.tiny_folder(tmp_path / "odd", max_length=13)
    prepared, start, _ = prepared_for("tag", model, tmp_path)
    windows = windows_of(prepared, 0, 8)
    assert max(len(window.ids) for window in windows) == 13
    fixed = fixed_batch(prepared.task, windows, start.model.config, PLAIN, 8)
    assert fixed.longest == 13
    assert int(fixed.positions.max()) < 13
    assert torch.isfinite(Learner(start.model, prepared.task, PLAIN)(fixed)[TASK][0])


@pytest.mark.parametrize("task", TASKS)
def test_steps_have_few_forms(task, model, tmp_path):
    prepared, start, settings = prepared_for(task, model, tmp_path, "batch=8")
    session, _ = open_session(Run(tmp_path / "run"), prepared, start, settings, Ranks())
    forms = set()
    for step in range(session.plan.steps):
        windows = [window for number in session.plan.step(step) for window in prepared.train.windows[number]]
        fixed = fixed_batch(prepared.task, windows, start.model.config, PLAIN, 8)
        assert len(fixed.ids) % (8 * LENGTH_MULTIPLE) == 0
        forms.add(fixed.form)
    assert len(forms) <= 4


@pytest.mark.parametrize("task", TASKS)
def test_one_graph_serves_every_mix_of_a_form(task, model, tmp_path):
    """Nothing of a step may depend on the values of one mix: a graph would repeat them for ever."""
    prepared, start, _ = prepared_for(task, model, tmp_path, "dropout=0")
    learner = HalfPrecision(Learner(start.model.train(), prepared.task, PLAIN))
    mixes: dict[object, list[FixedBatch]] = {}
    for first in range(0, 64, 4):
        fixed = fixed_batch(prepared.task, windows_of(prepared, first, first + 4), start.model.config, PLAIN, 8)
        mixes.setdefault(fixed.form, []).append(fixed)
    same = max(mixes.values(), key=len)
    assert len(same) >= 4

    def call(*tensors):
        return learner(same[0].refilled(tensors))[TASK][0]

    graph = make_fx(call)(*same[0].tensors)  # as CUDA does: what is not a tensor's value stands in it for good
    losses = [graph(*fixed.tensors).item() for fixed in same]
    assert losses == pytest.approx([call(*fixed.tensors).item() for fixed in same])
    assert len(set(losses)) > 1


def replaying(run):
    """What a graph does, without one: the same function again, on the same buffers."""
    kept = []
    return lambda: kept.append(run()) or kept, lambda: kept[-1]


@pytest.mark.parametrize("task", ["classify", "tag", "choose"])
def test_replayed_steps_are_the_steps(task, model, tmp_path):
    """Dropout and all: the seed of a step decides, not whether it is replayed."""
    runs = []
    for replays in (False, True):
        prepared, start, settings = prepared_for(task, model, tmp_path, "batch=8", "epochs=3", "learning_rate=1e-3")
        folder = tmp_path / f"run{replays}"
        session, progress = open_session(Run(folder), prepared, start, settings, Ranks())
        session.__dict__["_replays"] = True  # fixed forms on both sides
        take = Replay(torch.device("cpu"), replaying) if replays else None
        loop = session.options.loop
        steps = train(
            session.module, {TASK: 1.0}, session.micro_batches, session.optimizers, loop, Ranks(), progress, take
        )
        losses = [(report.losses[TASK], report.norm) for report in steps]
        runs.append((losses, {name: p.detach().clone() for name, p in session.module.named_parameters()}))
        if replays:
            assert take.recorded
            assert len(take.recorded) < len(losses)
    assert len(runs[0][0]) == 24
    for plain, again in zip(*(run[0] for run in runs), strict=True):
        assert again == pytest.approx(plain, rel=1e-4)
    for name, value in runs[0][1].items():
        torch.testing.assert_close(runs[1][1][name], value, atol=1e-4, rtol=1e-3, msg=name)


def test_a_step_that_no_graph_can_hold_is_taken_as_usual(model, tmp_path):
    prepared, start, settings = prepared_for("classify", model, tmp_path, "batch=8", "epochs=2")
    session, progress = open_session(Run(tmp_path / "run"), prepared, start, settings, Ranks())
    session.__dict__["_replays"] = True

    def refuse(run):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    take = Replay(torch.device("cpu"), refuse)
    loop = session.options.loop
    args = (session.module, {TASK: 1.0}, session.micro_batches, session.optimizers, loop, Ranks(), progress, take)
    with pytest.warns(UserWarning, match="one kernel at a time.*not permitted when stream is capturing.$"):
        steps = list(train(*args))
    assert len(steps) == 16
    assert take.disabled
    assert not take.recorded


def test_the_last_step_can_be_kept_so_that_nothing_is_chosen_on_dev(model, tmp_path):
    results = {}
    for keep in ("best", "last"):
        prepared, start, settings = prepared_for("classify", model, tmp_path, "epochs=3", "batch=16", f"keep={keep}")
        (tmp_path / keep).mkdir()
        session, progress = open_session(Run(tmp_path / keep), prepared, start, settings, Ranks())
        # no accuracy can be better
        session.best = replace(session.best, step=4, score=2.0, state=session.snapshot())
        with silent("", session.total) as meter:
            results[keep] = session.train(progress, meter, lambda: False)
    assert results["best"].best_step == 4
    assert results["last"].best_step == results["last"].steps == 12
    kept, last = (load_file(tmp_path / keep / "model" / "model.safetensors") for keep in ("best", "last"))
    assert any(not torch.equal(kept[name], last[name]) for name in kept)
    with pytest.raises(RequestError, match="keep"):
        read_settings("keep=first")
