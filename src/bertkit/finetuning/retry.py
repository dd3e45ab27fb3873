"""A run that learned nothing starts again at a lower learning rate; what it left is kept beside the new attempt.

The number of folders collapsed-1, collapsed-2 in a run's folder says which attempt it is at, also after a kill.
"""

import shutil
from dataclasses import replace

from bertkit.finetuning.result import FineTuned
from bertkit.finetuning.run_state import RESULT
from bertkit.finetuning.settings import FineTuneSettings
from bertkit.report.page import REPORT
from bertkit.train.runs import Run

RETRIES = 2
SLOWER = 3  # each attempt's learning rate is the last one's divided by this


def may_retry(run: Run, result: FineTuned) -> bool:
    """Whether a run that is done learned nothing and has attempts left."""
    return result.finished and result.collapsed is not None and _retries(run) < RETRIES


def set_aside(run: Run) -> None:
    """Move the result of an attempt out of the way; its model is removed."""
    run.sweep()  # what a kill in here left
    draft = run.folder / ".collapsed.part"
    draft.mkdir()
    for name in (RESULT, REPORT, run.metrics.name):  # without its result, the attempt is not done
        if (run.folder / name).exists():
            (run.folder / name).rename(draft / name)
    for name in ("model", "checkpoints"):
        shutil.rmtree(run.folder / name, ignore_errors=True)
    draft.rename(run.folder / f"collapsed-{_retries(run) + 1}")


def lowered(run: Run, settings: FineTuneSettings) -> tuple[FineTuneSettings, tuple[str, ...]]:
    """The settings of the attempt that a run's folder is at, and what is said about those before it."""
    rates = [settings.learning.learning_rate / SLOWER**number for number in range(_retries(run) + 1)]
    said = [f"attempt {n} learned nothing; started again with learning_rate={rate:.3g}" for n, rate in enumerate(rates)]
    return replace(settings, learning=replace(settings.learning, learning_rate=rates[-1])), tuple(said[1:])


def _retries(run: Run) -> int:
    return sum((run.folder / f"collapsed-{number}").is_dir() for number in range(1, RETRIES + 1))
