"""Which settings: a small grid by successive halving, and a learning rate by a range test."""

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
from bertkit.finetuning.fine_tuning import run_part
from bertkit.finetuning.learner import TASK, load_start
from bertkit.finetuning.prepare import Prepared
from bertkit.finetuning.result import FineTuned
from bertkit.finetuning.run_state import locked_folder, write_json
from bertkit.finetuning.session import open_session
from bertkit.finetuning.settings import FineTuneSettings, change_settings
from bertkit.progress import ShowProgress, silent
from bertkit.tasks.metrics.table import is_better
from bertkit.tasks.task import Part
from bertkit.train.distributed import process_group
from bertkit.train.loop import LoopSettings, train
from bertkit.train.runs import Run
from bertkit.train.schedule import Budget, Schedule

# Devlin's grid for BERT, and the rate that small models want (Turc 2019).
GRID: Mapping[str, tuple[str, ...]] = {"learning_rate": ("3e-5", "1e-4", "2e-4", "3e-4"), "batch": ("16", "32")}
SHARES = (0.25, 0.5, 1.0)  # of the training data, rung by rung; half of the settings reach the next one


@dataclass(frozen=True)
class Trial:
    """One row of the search: settings, on how much of the data, and what they reached."""

    changes: Mapping[str, str]
    share: float
    score: float

    def __str__(self) -> str:
        told = " ".join(f"{name}={value}" for name, value in self.changes.items())
        return f"{self.share:>5.0%} of the data  {self.score:.4f}  {told}"


@dataclass(frozen=True)
class SearchResult:
    """The best settings of a search, what a run with them gave, and every trial."""

    changes: Mapping[str, str]
    result: FineTuned
    trials: tuple[Trial, ...]


def search(
    prepared: Prepared,
    begin: Checkpoint,
    settings: FineTuneSettings,
    out: Path,
    *,
    grid: Mapping[str, Sequence[str]] = GRID,
    model: Path | None = None,
    show: ShowProgress = silent,
) -> SearchResult:
    """Successive halving: all of the grid on a quarter of the data, the better half on half of it, and so on.

    Each trial is judged by the best of its evaluations. The winner's model becomes out/model. Given again, it keeps
    the trials that are finished and goes on in the one that was stopped, if it is the same search: `model` is where
    `begin` is from.
    """
    with locked_folder(out):
        refuse_other_runs(out, "search")

        def taught(part: Prepared, changes: Mapping[str, str], folder: Path) -> FineTuned:
            wanted = change_settings(settings, changes)
            start = partial(load_start, begin, part.task, wanted)
            return run_part(Run(folder), part, start, wanted, model=model, show=show)

        survivors = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
        trials: list[Trial] = []
        for rung, share in enumerate(SHARES):
            part = subset(prepared, max(2, round(share * len(prepared.train.examples))), settings.learning.seed)
            folders = [out / "search" / f"{rung}-{number}" for number in range(len(survivors))]
            results = [taught(part, *each) for each in zip(survivors, folders, strict=True)]
            trials += [Trial(each, share, _watched(result)) for each, result in zip(survivors, results, strict=True)]
            order = ranked(results)
            best, winner, last = survivors[order[0]], folders[order[0]], share == SHARES[-1]
            if last and not any((folder / "model").is_dir() for folder in (winner, out)):  # somebody has removed it
                shutil.rmtree(winner)
                taught(part, best, winner)
            keep_model(folders, order[0], out if last else winner)
            survivors = [survivors[index] for index in order[: max(1, len(order) // 2)]]
        found = SearchResult(best, results[order[0]], tuple(trials))
        write_json(out / "search.json", {"best": dict(best), "trials": [vars(trial) for trial in found.trials]})
        return found


def ranked(results: Sequence[FineTuned]) -> list[int]:
    """Numbers of the results, best first."""
    metric = results[0].metric

    def compare(one: int, other: int) -> int:
        left, right = _watched(results[one]), _watched(results[other])
        if left == right:  # of equal scores the one with less loss
            return -1 if results[one].scores["loss"] < results[other].scores["loss"] else 1
        return -1 if is_better(metric, left, right) else 1

    return sorted(range(len(results)), key=cmp_to_key(compare))


def _watched(result: FineTuned) -> float:
    """The metric that chose the best step, before the decision layer; the loss has no other."""
    return result.plain.get(result.metric, result.scores[result.metric])


def subset(prepared: Prepared, count: int, seed: int) -> Prepared:
    """The first `count` training examples of a random order: smaller subsets are parts of larger ones."""
    total = len(prepared.train.examples)
    if count > total:
        raise RequestError(f"{count} training examples were asked for, but there are {total}")
    order = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 1, 0])).permutation(total)[:count]
    examples = [prepared.train.examples[number] for number in order]
    windows = [prepared.train.windows[number] for number in order]
    return replace(prepared, train=Part(examples, windows))


@dataclass(frozen=True)
class RateRange:
    """Losses on the way from a tiny learning rate to a huge one."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]  # smoothed

    @property
    def suggestion(self) -> float:
        """A third of the rate at which the loss was least: there it falls fast, and is far from breaking."""
        return self.rates[int(np.argmin(self.losses))] / 3

    def __str__(self) -> str:
        pairs = list(zip(self.rates, self.losses, strict=True))
        shown = pairs[:: max(1, len(pairs) // 12)]
        lines = [f"  {rate:.1e}  {loss:.4f}" for rate, loss in shown]
        return "\n".join(["learning rate, loss", *lines, f"suggested: learning_rate={self.suggestion:.1e}"])


def rate_range(prepared: Prepared, start: Checkpoint, settings: FineTuneSettings, steps: int = 100) -> RateRange:
    """Train with a rate that grows from 1e-7 to 1e-1, until the loss is four times its least (Smith 2015)."""
    with process_group(None) as ranks, TemporaryDirectory() as folder:
        session, progress = open_session(Run(Path(folder)), prepared, start, settings, ranks)
        growth = _Growing(peak=1e-7, warmup=0, decay="constant", steps=steps)
        loop = LoopSettings(budget=Budget(steps=steps), schedule=growth, clip=settings.learning.clip)
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
class _Growing(Schedule):
    steps: int

    def rate(self, step: int, progress: float) -> float:
        """From the peak upwards, a millionfold over all steps."""
        return float(self.peak * 10 ** (6 * step / max(self.steps - 1, 1)))
