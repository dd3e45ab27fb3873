"""The same run with several seeds: mean and standard deviation of the scores."""

import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertkit.checkpoint.tensors import read_object
from bertkit.errors import RequestError
from bertkit.finetuning.result import FineTuned
from bertkit.finetuning.run_state import SETTINGS, locked_folder, write_json
from bertkit.finetuning.settings import FineTuneSettings

TrainRun = Callable[[FineTuneSettings, Path], FineTuned]  # trains with these settings in a folder


@dataclass(frozen=True)
class Seeds:
    """The results of several runs that differ only in their seed."""

    results: tuple[FineTuned, ...]

    @property
    def metric(self) -> str:
        """The metric that chose the best steps."""
        return self.results[0].metric

    @property
    def means(self) -> dict[str, float]:
        """The mean of each metric."""
        return {name: statistics.fmean(values) for name, values in self._columns().items()}

    @property
    def medians(self) -> dict[str, float]:
        """The median of each metric."""
        return {name: statistics.median(values) for name, values in self._columns().items()}

    @property
    def deviations(self) -> dict[str, float]:
        """The sample standard deviation of each metric; 0 for one run."""
        return {n: statistics.stdev(values) if len(values) > 1 else 0.0 for n, values in self._columns().items()}

    @property
    def median(self) -> int:
        """The index of the run with the median score; of two in the middle, the lower one."""
        order = sorted(range(len(self.results)), key=lambda number: self.results[number].score)
        return order[(len(order) - 1) // 2]

    def to_json(self) -> dict[str, Any]:
        """The content of seeds.json."""
        scores = [dict(result.scores) for result in self.results]
        return {"metric": self.metric, "means": self.means, "deviations": self.deviations} | {
            "median": self.median,
            "scores": scores,
            "collapsed": [result.collapsed for result in self.results],
        }

    def __str__(self) -> str:
        means, deviations = self.means, self.deviations
        names = [self.metric, *(name for name in means if name != self.metric)]
        scores = ", ".join(f"{name} {means[name]:.4f} ± {deviations[name]:.4f}" for name in names)
        collapsed = [f"seed {n}: {result.collapsed}" for n, result in enumerate(self.results) if result.collapsed]
        return "\n".join([f"{len(self.results)} seeds: {scores}", *collapsed])

    def _columns(self) -> Mapping[str, list[float]]:
        """The values of the metrics that every run has: a random held-out set may lack some."""
        shared = [name for name in self.results[0].scores if all(name in result.scores for result in self.results)]
        return {name: [result.scores[name] for result in self.results] for name in shared}


def run_seeds(train: TrainRun, settings: FineTuneSettings, count: int, out: Path) -> Seeds:
    """Runs in out/seed-0, seed-1, ...; the median run's model becomes out/model, the others are removed."""
    if count < 1:
        raise RequestError(f"--seeds {count}: at least one is needed")
    with locked_folder(out):
        refuse_other_runs(out, "seed-0")
        return _run_seeds(train, settings, count, out)


def _run_seeds(train: TrainRun, settings: FineTuneSettings, count: int, out: Path) -> Seeds:
    def run_seed(number: int) -> FineTuned:
        learning = replace(settings.learning, seed=settings.learning.seed + number)
        return train(replace(settings, learning=learning), out / f"seed-{number}")

    results: list[FineTuned] = []
    while len(results) < count and all(result.finished for result in results):
        results.append(run_seed(len(results)))
    seeds = Seeds(tuple(results))
    if not results[-1].finished:
        return seeds
    summary, median = out / "seeds.json", out / f"seed-{seeds.median}"
    earlier_median = read_object(summary).get("median") if summary.is_file() else None
    # After a call with another number of seeds, the model of the new median may have been removed.
    if earlier_median != seeds.median and not (median / "model").is_dir():
        shutil.rmtree(median)
        if not (again := run_seed(seeds.median)).finished:
            return Seeds((*results, again))
    write_json(summary, seeds.to_json())  # before the model is moved: a run in seeds.json counts as finished
    keep_model([out / f"seed-{number}" for number in range(count)], seeds.median, out)
    return seeds


def refuse_other_runs(out: Path, part: str) -> None:
    """Refuse a folder with a model but without `part`, which is in the folder of these runs: it is of another run."""
    if (out / SETTINGS).exists() or ((out / "model").exists() and not (out / part).exists()):
        raise RequestError(f"{out} holds the model of another run; name another folder or remove it first")


def keep_model(runs: Sequence[Path], chosen: int, out: Path) -> None:
    """Move the model of run `chosen` to out/model, replacing an earlier one, and remove the models of the others."""
    for run in runs:
        if run != runs[chosen]:
            shutil.rmtree(run / "model", ignore_errors=True)
    if (runs[chosen] / "model").is_dir() and runs[chosen] != out:
        shutil.rmtree(out / "model", ignore_errors=True)
        (runs[chosen] / "model").rename(out / "model")
