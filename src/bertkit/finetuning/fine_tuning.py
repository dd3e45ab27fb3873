"""Fine-tuning runs: from a model, labeled files and settings to a model folder for a task."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint
from bertkit.data.tables import Columns
from bertkit.errors import RequestError
from bertkit.files import refuse_to_overwrite
from bertkit.finetuning.distill import Teacher, load_teacher
from bertkit.finetuning.evaluate import run_model
from bertkit.finetuning.few import chooses_few, few_note, few_start, open_few
from bertkit.finetuning.learner import load_start
from bertkit.finetuning.new_start import NEW, is_default, new_start
from bertkit.finetuning.prepare import DataFiles, Prepared, prepare, read_files
from bertkit.finetuning.result import DecidedDev, FineTuned, HeldOut, result_from_json
from bertkit.finetuning.run_state import RESULT, begin_folder, finished, locked_folder, write_json, write_json_lines
from bertkit.finetuning.session import open_session
from bertkit.finetuning.settings import FineTuneSettings, few_settings
from bertkit.model.model import BertModel
from bertkit.progress import ShowProgress, silent
from bertkit.report.page import REPORT_FILE
from bertkit.settings import pick
from bertkit.tasks.folder import read_task
from bertkit.tasks.table import TASKS
from bertkit.tasks.task import Dataset
from bertkit.train.distributed import process_group, stop_requests
from bertkit.train.runs import Run

if TYPE_CHECKING:
    from bertkit.finetuning.scored import Scored

TEST_PREDICTIONS = "test_predictions.jsonl"
MAX_RETRIES = 2  # of a run that learned nothing; its results are kept in collapsed-1, collapsed-2
RATE_DIVISOR = 3  # each retry divides the learning rate by it


def fine_tune(
    task: str,
    settings: FineTuneSettings,
    model: Path,
    train_file: Path,
    dev_file: Path | None,
    out: Path,
    *,
    test_file: Path | None = None,
    columns: Columns | None = None,
    teacher: Path | None = None,
    resume: bool = False,
    retry: bool = False,
    device: str | None = None,
    show: ShowProgress = silent,
) -> FineTuned:
    """Fine-tune a model for a task; the model is in `out/model` at the end.

    SIGTERM and Ctrl-C save a checkpoint, keep the best model so far, and stop; `resume` continues from there. The saved
    model is scored on `test_file`, or on the setting `test_share` of the training examples, at the end; its predictions
    for them are in `out/test_predictions.jsonl`. With `retry`,
    a run that learned nothing starts again at a third of its learning rate, at most twice.
    """
    run, description = Run(Path(out)), describe_run(task, settings, model, train_file, dev_file, teacher, test_file)
    with locked_folder(run.folder):
        done = finished(run, description) if resume else None
        if done and retry and may_retry(run, result_from_json(done)):
            archive_attempt(run)
            done = None
        if done and ((run.folder / REPORT_FILE).exists() or not (run.folder / "model").exists()):
            return result_from_json(done)
        if not resume:
            refuse_to_overwrite(run.folder)  # before the files are read
        read = partial(open_data, task, test_file=test_file, columns=columns, show=show)
        base, prepared = read(settings, model, train_file, dev_file)
        if teacher is None and chooses_few(prepared, settings, model):
            settings, note = few_settings(), few_note(prepared)
            base, prepared = read(settings, model, train_file, dev_file)
            prepared = replace(prepared, notes=(note, *prepared.notes))
        loaded_teacher = load_teacher(Path(teacher), prepared.task, prepared.train.flat) if teacher else None
        begin_folder(run, {**description, "data": prepared.fingerprint}, resume=resume)

        def attempt() -> FineTuned:
            (run.folder / REPORT_FILE).unlink(missing_ok=True)  # of a session that was stopped
            changed, notes = attempt_settings(run, settings)
            start = load_start(base, prepared.task, changed)
            data = replace(prepared, notes=(*prepared.notes, *notes))
            return run_prepared(run, data, start, changed, teacher=loaded_teacher, device=device, show=show)

        result = result_from_json(done) if done else attempt()  # `done`: it was killed before its report was written
        while retry and may_retry(run, result):
            archive_attempt(run)
            result = attempt()
        with show("writing the report", 1):
            return write_result_report(run, prepared, result, base.model, device)


def describe_run(
    task: str,
    settings: FineTuneSettings,
    model: Path,
    train_file: Path,
    dev_file: Path | None,
    teacher: Path | None = None,
    test_file: Path | None = None,
) -> dict[str, Any]:
    """The inputs of a run, for its run.json."""
    files = {"task": task, "from": str(model), "train": str(train_file), "dev": str(dev_file)}
    others = {name: str(path) for name, path in (("teacher", teacher), ("test", test_file)) if path}
    return files | others | {"settings": settings.flat()}


def run_or_resume(
    run: Run,
    prepared: Prepared,
    start: Callable[[], Checkpoint],
    settings: FineTuneSettings,
    *,
    model: Path | None,
    show: ShowProgress = silent,
) -> FineTuned:
    """One of several runs: trained, resumed, or only read if it has finished.

    An existing folder must have the same data, settings and `model`. Raises KeyboardInterrupt if it is stopped.
    """
    inputs = {"task": prepared.task.name, "from": str(model), "data": prepared.fingerprint}
    description = {**inputs, "settings": settings.flat()}
    if done := finished(run, description, with_model=False):
        return result_from_json(done)
    begin_folder(run, description, resume=True)
    result = run_prepared(run, prepared, start(), settings, show=show)
    if not result.finished:
        raise KeyboardInterrupt
    return result


def open_data(
    task: str,
    settings: FineTuneSettings,
    model: Path,
    train_file: Path,
    dev_file: Path | None,
    *,
    test_file: Path | None = None,
    columns: Columns | None = None,
    show: ShowProgress = silent,
) -> tuple[Checkpoint, Prepared]:
    """(the checkpoint to start from, the task with its files read)."""
    row = pick(TASKS, task, "task")
    dev, test = (Path(path) if path else None for path in (dev_file, test_file))
    files = DataFiles(train=Path(train_file), dev=dev, test=test, columns=columns)
    if str(model) == NEW:
        train = read_files(task, files, settings.learning.seed, settings.run.test_share).train
        base = new_start(row, row.all_texts(train), settings)
    elif is_default(settings.shape):
        base = load_checkpoint(few_start(model) if settings.learning.few else model)
    else:
        raise RequestError(f"the shape of {model} is fixed; leave out width, depth, vocab and so on, or use --from new")
    return base, prepare(task, base, files, settings, show)


def write_result_report(
    run: Run, prepared: Prepared, result: FineTuned, base: BertModel, device: str | None = None
) -> FineTuned:
    """Write report.html and the result with its intervals: the saved model on dev and test, and doubtful labels.

    `base` is the model before fine-tuning, whose features the labels are checked with; not for a stopped run. A result
    that was read from disk has no outputs: the saved model then reads the dev data again.
    """
    from bertkit.finetuning.explore.features import doubtful_labels  # scikit-learn takes a second to import
    from bertkit.finetuning.report import Evaluated, write_report
    from bertkit.finetuning.scored import predicted_rows

    with process_group(device) as ranks:  # on the device of training: on a CPU, the data of a GPU run take minutes
        decided = result.decided or _read_data(run, prepared.dev, ranks.device)
        doubts = doubtful_labels(base.to(ranks.device), prepared) if result.finished else None
        test = _score_test(run, prepared, result.metric, ranks.device) if prepared.test and result.finished else None
    content = Evaluated(prepared, result, decided, doubts, test)
    measured = replace(result, intervals=content.dev.intervals, test=_held_out(test))
    if test is not None:
        write_json_lines(run.folder / TEST_PREDICTIONS, predicted_rows(test))
    write_json(run.folder / RESULT, measured.to_json())
    write_report(run.folder, content)
    return measured


def _held_out(test: "Scored | None") -> HeldOut | None:
    if test is None:
        return None
    return HeldOut(examples=len(test.examples), scores=test.scores, intervals=test.intervals)


def _read_data(run: Run, data: Dataset, device: torch.device) -> DecidedDev:
    saved = load_checkpoint(run.folder / "model")
    task, decision = read_task(saved)
    return DecidedDev(run_model(saved.model.to(device), task, data.flat).rows, decision)


def _score_test(run: Run, prepared: Prepared, metric: str, device: torch.device) -> "Scored":
    """The saved model's predictions for the test examples."""
    from bertkit.finetuning.scored import Scored, baseline_scores

    test, task = prepared.test, prepared.task
    assert test is not None
    decided = _read_data(run, test, device)
    predictions = task.decode(test.examples, test.flat, decided.outputs, decided.decision)
    baseline = baseline_scores(task, prepared.train, test)
    scores = task.score(test.examples, predictions)
    return Scored(task, test.examples, predictions, scores, metric, baseline)


def run_prepared(
    run: Run,
    prepared: Prepared,
    start: Checkpoint,
    settings: FineTuneSettings,
    *,
    teacher: Teacher | None = None,
    device: str | None = None,
    show: ShowProgress = silent,
) -> FineTuned:
    """Train on data in memory in an existing run folder, from its latest checkpoint if it has one."""
    with process_group(device) as ranks, stop_requests(ranks) as stop:
        opened = open_few if settings.learning.few else open_session
        session, progress = opened(run, prepared, start, settings, ranks, teacher)
        with show("fine-tuning", session.total) as meter:
            return session.train(progress, meter, stop)


def may_retry(run: Run, result: FineTuned) -> bool:
    """Whether a finished run learned nothing and has retries left."""
    return result.finished and result.collapsed is not None and _retries(run) < MAX_RETRIES


def archive_attempt(run: Run) -> None:
    """Move the result of an attempt to collapsed-1 or collapsed-2, and remove its model."""
    run.remove_partial()  # remove what a kill in this function left
    draft = run.folder / ".collapsed.part"
    draft.mkdir()
    # The result first: without it the attempt is not finished.
    for name in (RESULT, REPORT_FILE, TEST_PREDICTIONS, run.metrics.name):
        if (run.folder / name).exists():
            (run.folder / name).rename(draft / name)
    for name in ("model", "checkpoints"):
        shutil.rmtree(run.folder / name, ignore_errors=True)
    draft.rename(run.folder / f"collapsed-{_retries(run) + 1}")


def attempt_settings(run: Run, settings: FineTuneSettings) -> tuple[FineTuneSettings, tuple[str, ...]]:
    """(settings of the next attempt in a run's folder, notes on the attempts before it)."""
    rates = [settings.learning.learning_rate / RATE_DIVISOR**number for number in range(_retries(run) + 1)]
    notes = [
        f"attempt {number} learned nothing; started again with learning_rate={rate:.3g}"
        for number, rate in enumerate(rates[1:], start=1)
    ]
    return replace(settings, learning=replace(settings.learning, learning_rate=rates[-1])), tuple(notes)


def _retries(run: Run) -> int:
    return sum((run.folder / f"collapsed-{number}").is_dir() for number in range(1, MAX_RETRIES + 1))
