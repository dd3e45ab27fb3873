"""Hyperparameter search: a small grid by successive halving, and a learning rate range test."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cmp_to_key, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.errors import RequestError
from bertkit.finetuning.explore.seeds import keep_model, refuse_other_runs
from bertkit.finetuning.fine_tuning import run_or_resume
from bertkit.finetuning.learner import TASK, load_start
from bertkit.finetuning.prepare import Prepared
from bertkit.finetuning.result import FineTuned
from bertkit.finetuning.run_state import locked_folder, write_json
from bertkit.finetuning.session import open_session
from bertkit.finetuning.settings import FineTuneSettings
from bertkit.progress import ShowProgress, silent
from bertkit.settings import change
from bertkit.tasks.metrics.table import is_better
from bertkit.tasks.task import Dataset
from bertkit.train.distributed import process_group
from bertkit.train.loop import LoopSettings, train
from bertkit.train.runs import Run
from bertkit.train.schedule import Budget, Schedule

# The grid of Devlin et al. 2018 for BERT, and the learning rate of small models (Turc et al. 2019).
GRID: Mapping[str, tuple[str, ...]] = {"learning_rate": ("3e-5", "1e-4", "2e-4", "3e-4"), "batch": ("16", "32")}
DATA_SHARES = (0.25, 0.5, 1.0)  # of the training data in each round; half of the settings reach the next round


@dataclass(frozen=True)
class Trial:
    """One trial of the search: changed settings, the share of the training data, and the score."""

    changes: Mapping[str, str]
    share: float
    score: float

    def __str__(self) -> str:
        changes = " ".join(f"{name}={value}" for name, value in self.changes.items())
        return f"{self.share:>5.0%} of the data  {self.score:.4f}  {changes}"


@dataclass(frozen=True)
class SearchResult:
    """The best settings of a search, the result with them, and all trials."""

    changes: Mapping[str, str]
    result: FineTuned
    trials: tuple[Trial, ...]


def search(
    prepared: Prepared,
    base: Checkpoint,
    settings: FineTuneSettings,
    out: Path,
    *,
    grid: Mapping[str, Sequence[str]] = GRID,
    model: Path | None = None,
    show: ShowProgress = silent,
) -> SearchResult:
    """Successive halving: the whole grid on a quarter of the data, the better half on half of the data, and so on.

    The score of a trial is that of its best evaluation. The best model becomes out/model. Called again, it reads the
    finished trials and resumes the one that was stopped, if the settings and `model`, the path of `base`, are the same.
    """
    with locked_folder(out):
        refuse_other_runs(out, "search")

        def run_trial(part: Prepared, changes: Mapping[str, str], folder: Path) -> FineTuned:
            changed = change(settings, changes)
            start = partial(load_start, base, part.task, changed)
            return run_or_resume(Run(folder), part, start, changed, model=model, show=show)

        candidates = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
        trials: list[Trial] = []
        for number, share in enumerate(DATA_SHARES):
            count = max(2, round(share * len(prepared.train.examples)))
            part = training_subset(prepared, count, settings.learning.seed)
            folders = [out / "search" / f"{number}-{trial}" for trial in range(len(candidates))]
            results = [run_trial(part, *trial) for trial in zip(candidates, folders, strict=True)]
            pairs = zip(candidates, results, strict=True)
            trials += [Trial(changes, share, _plain_score(result)) for changes, result in pairs]
            order = ranked(results)
            best, winner, last = candidates[order[0]], folders[order[0]], share == DATA_SHARES[-1]
            if last and not any((folder / "model").is_dir() for folder in (winner, out)):  # the model was removed
                shutil.rmtree(winner)
                run_trial(part, best, winner)
            keep_model(folders, order[0], out if last else winner)
            candidates = [candidates[index] for index in order[: max(1, len(order) // 2)]]
        write_json(out / "search.json", {"best": dict(best), "trials": [vars(trial) for trial in trials]})
        return SearchResult(best, results[order[0]], tuple(trials))


def ranked(results: Sequence[FineTuned]) -> list[int]:
    """Indices of the results, best first; of equal scores the one with the lower loss."""
    metric = results[0].metric

    def compare(one: int, other: int) -> int:
        left, right = _plain_score(results[one]), _plain_score(results[other])
        if left == right:
            return -1 if results[one].scores["loss"] < results[other].scores["loss"] else 1
        return -1 if is_better(metric, left, right) else 1

    return sorted(range(len(results)), key=cmp_to_key(compare))


def _plain_score(result: FineTuned) -> float:
    """The score without decision layer, as it chose the best step; `loss` is only in `scores`."""
    return result.plain.get(result.metric, result.scores[result.metric])


def training_subset(prepared: Prepared, count: int, seed: int) -> Prepared:
    """The first `count` training examples of a random order, so that smaller subsets are in larger ones."""
    total = len(prepared.train.examples)
    if count > total:
        raise RequestError(f"{count} training examples are needed, but there are {total}")
    order = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 1, 0])).permutation(total)[:count]
    examples = [prepared.train.examples[number] for number in order]
    windows = [prepared.train.windows[number] for number in order]
    return replace(prepared, train=Dataset(examples, windows))


@dataclass(frozen=True)
class RateRange:
    """The loss by learning rate, from a very low to a very high rate."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]  # smoothed

    @property
    def suggestion(self) -> float:
        """A third of the rate with the lowest loss: there the loss falls fast and training is stable."""
        return self.rates[int(np.argmin(self.losses))] / 3

    def __str__(self) -> str:
        pairs = list(zip(self.rates, self.losses, strict=True))
        lines = [f"  {rate:.1e}  {loss:.4f}" for rate, loss in pairs[:: max(1, len(pairs) // 12)]]
        return "\n".join(["learning rate, loss", *lines, f"suggested: learning_rate={self.suggestion:.1e}"])


def rate_range(prepared: Prepared, start: Checkpoint, settings: FineTuneSettings, steps: int = 100) -> RateRange:
    """Train with a learning rate that grows from 1e-7 to 1e-1, until the loss is 4 times its minimum (Smith 2015)."""
    with process_group(None) as ranks, TemporaryDirectory() as folder:
        session, progress = open_session(Run(Path(folder)), prepared, start, settings, ranks)
        schedule = _ExponentialGrowth(peak=1e-7, warmup=0, decay="constant", steps=steps)
        loop = LoopSettings(budget=Budget(steps=steps), schedule=schedule, clip=settings.learning.clip)
        rates: list[float] = []
        losses: list[float] = []
        smooth = 0.0
        for report in train(
            session.module, {TASK: 1.0}, session.micro_batches, session.optimizers, loop, ranks, progress
        ):
            smooth = 0.9 * smooth + 0.1 * report.losses[TASK]
            rates.append(report.rate)
            losses.append(smooth / (1 - 0.9 ** len(rates)))
            if not losses[-1] < 4 * min(losses):
                break
    return RateRange(tuple(rates), tuple(losses))


@dataclass(frozen=True, kw_only=True)
class _ExponentialGrowth(Schedule):
    steps: int

    def rate(self, step: int, progress: float) -> float:
        """From `peak` to a million times `peak` at the last step."""
        return float(self.peak * 10 ** (6 * step / max(self.steps - 1, 1)))
