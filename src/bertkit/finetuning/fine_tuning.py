"""A fine-tuning run: a model, labeled files and settings in, a model folder that answers out."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint
from bertkit.data.tables import Columns
from bertkit.files import refuse_to_overwrite
from bertkit.finetuning.distill import Teacher, load_teacher
from bertkit.finetuning.evaluate import predict
from bertkit.finetuning.learner import load_start
from bertkit.finetuning.prepare import DataFiles, Prepared, prepare
from bertkit.finetuning.result import FineTuned, result_from_json
from bertkit.finetuning.run_state import RESULT, begin_folder, finished, locked_folder
from bertkit.finetuning.session import open_session
from bertkit.finetuning.settings import FineTuneSettings
from bertkit.model.model import BertModel
from bertkit.progress import ShowProgress, silent
from bertkit.report.page import REPORT_FILE
from bertkit.settings import pick
from bertkit.tasks.folder import read_task
from bertkit.tasks.table import TASKS
from bertkit.train.distributed import process_group, stop_requests
from bertkit.train.runs import Run

RETRIES = 2  # of a run that learned nothing; what each left is in collapsed-1, collapsed-2
SLOWER = 3  # each attempt's learning rate is the last one's divided by this


def fine_tune(
    task: str,
    settings: FineTuneSettings,
    model: Path,
    train_file: Path,
    dev_file: Path | None,
    out: Path,
    *,
    columns: Columns | None = None,
    teacher: Path | None = None,
    resume: bool = False,
    retry: bool = False,
    device: str | None = None,
    show: ShowProgress = silent,
) -> FineTuned:
    """Teach a model a task; the model is in `out/model` at the end.

    SIGTERM and Ctrl-C save a checkpoint, keep the best model so far, and stop; `resume` goes on from there. With
    `retry`, a run that learned nothing starts again at a third of its learning rate, at most twice.
    """
    run, asked = Run(Path(out)), describe(task, settings, model, train_file, dev_file, teacher)
    with locked_folder(run.folder):
        done = finished(run, asked) if resume else None
        if done and retry and may_retry(run, result_from_json(done)):
            archive_attempt(run)
            done = None
        if done and ((run.folder / REPORT_FILE).exists() or not (run.folder / "model").exists()):
            return result_from_json(done)
        if not resume:
            refuse_to_overwrite(run.folder)  # before the work of reading
        begin, prepared = open_data(task, settings, model, train_file, dev_file, columns=columns, show=show)
        listened = load_teacher(Path(teacher), prepared.task, prepared.train.flat) if teacher else None
        begin_folder(run, {**asked, "data": prepared.fingerprint}, resume=resume)

        def attempt() -> FineTuned:
            wanted, said = attempt_settings(run, settings)
            start = load_start(begin, prepared.task, wanted)
            told = replace(prepared, said=(*prepared.said, *said))
            return run_prepared(run, told, start, wanted, teacher=listened, device=device, show=show)

        result = result_from_json(done) if done else attempt()  # done, but for its report: it was killed right before
        while retry and may_retry(run, result):
            archive_attempt(run)
            result = attempt()
        if result.finished:  # what follows is for the eye
            write_result_report(run, prepared, result, begin.model, device)
        return result


def describe(
    task: str,
    settings: FineTuneSettings,
    model: Path,
    train_file: Path,
    dev_file: Path | None,
    teacher: Path | None = None,
) -> dict[str, Any]:
    """What a run is begun with, for its run.json."""
    files = {"task": task, "from": str(model), "train": str(train_file), "dev": str(dev_file)}
    return files | ({"teacher": str(teacher)} if teacher else {}) | {"settings": settings.flat()}


def run_part(
    run: Run,
    prepared: Prepared,
    start: Callable[[], Checkpoint],
    settings: FineTuneSettings,
    *,
    model: Path | None,
    show: ShowProgress = silent,
) -> FineTuned:
    """One of several runs that belong together: a finished one is not trained again, another goes on where it stands.

    It must have been begun with the same data, settings and `model`. KeyboardInterrupt if somebody asks to stop.
    """
    asked = {"task": prepared.task.name, "from": str(model), "data": prepared.fingerprint, "settings": settings.flat()}
    if done := finished(run, asked, with_model=False):
        return result_from_json(done)
    begin_folder(run, asked, resume=True)
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
    columns: Columns | None = None,
    show: ShowProgress = silent,
) -> tuple[Checkpoint, Prepared]:
    """The model to start from, as it is, and the task with both files read."""
    pick(TASKS, task, "task")
    begin = load_checkpoint(model)
    files = DataFiles(train=Path(train_file), dev=Path(dev_file) if dev_file else None, columns=columns)
    return begin, prepare(task, begin, files, settings, show)


def write_result_report(
    run: Run, prepared: Prepared, result: FineTuned, untaught: BertModel, device: str | None = None
) -> None:
    """Write report.html: the saved model's predictions on dev, and the labels that the untaught one doubts."""
    from bertkit.finetuning.explore.features import doubtful_labels  # scikit-learn takes a second to import
    from bertkit.finetuning.report import Evaluated, write_report

    saved = load_checkpoint(run.folder / "model")
    task, decision = read_task(saved)
    with process_group(device) as ranks:  # where it was trained: a GPU's data would keep a CPU busy for minutes
        predictions = predict(saved.model.to(ranks.device), task, prepared.dev.examples, decision)
        doubts = doubtful_labels(untaught.to(ranks.device), prepared)
    said = (*([result.collapsed] if result.collapsed else []), *result.said)
    write_report(run.folder, Evaluated(task, prepared.dev, predictions, result.scores, said, doubts))


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
    """The same from data in memory, in a run's folder that is there; goes on where the folder stands."""
    with process_group(device) as ranks, stop_requests(ranks) as stop:
        session, progress = open_session(run, prepared, start, settings, ranks, teacher)
        with show("fine-tuning", session.total) as meter:
            return session.train(progress, meter, stop)


def may_retry(run: Run, result: FineTuned) -> bool:
    """Whether a run that is done learned nothing and has attempts left."""
    return result.finished and result.collapsed is not None and _retries(run) < RETRIES


def archive_attempt(run: Run) -> None:
    """Move the result of an attempt out of the way; its model is removed."""
    run.remove_partial()  # what a kill in here left
    draft = run.folder / ".collapsed.part"
    draft.mkdir()
    for name in (RESULT, REPORT_FILE, run.metrics.name):  # without its result, the attempt is not done
        if (run.folder / name).exists():
            (run.folder / name).rename(draft / name)
    for name in ("model", "checkpoints"):
        shutil.rmtree(run.folder / name, ignore_errors=True)
    draft.rename(run.folder / f"collapsed-{_retries(run) + 1}")


def attempt_settings(run: Run, settings: FineTuneSettings) -> tuple[FineTuneSettings, tuple[str, ...]]:
    """The settings of the attempt that a run's folder is at, and what is said about those before it."""
    rates = [settings.learning.learning_rate / SLOWER**number for number in range(_retries(run) + 1)]
    said = [f"attempt {n} learned nothing; started again with learning_rate={rate:.3g}" for n, rate in enumerate(rates)]
    return replace(settings, learning=replace(settings.learning, learning_rate=rates[-1])), tuple(said[1:])


def _retries(run: Run) -> int:
    return sum((run.folder / f"collapsed-{number}").is_dir() for number in range(1, RETRIES + 1))
