"""The same run with several seeds: one number from one run is luck, mean and deviation are a result."""

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

# Settings and a folder in, what came of it out.
Teach = Callable[[FineTuneSettings, Path], FineTuned]


@dataclass(frozen=True)
class Seeds:
    """Several runs that differ in their seed alone."""

    results: tuple[FineTuned, ...]

    @property
    def metric(self) -> str:
        """The one that was watched."""
        return self.results[0].metric

    @property
    def means(self) -> dict[str, float]:
        """Each metric's mean."""
        return {name: statistics.fmean(values) for name, values in self._columns().items()}

    @property
    def deviations(self) -> dict[str, float]:
        """Each metric's standard deviation, as of a sample; 0 for one run."""
        return {n: statistics.stdev(values) if len(values) > 1 else 0.0 for n, values in self._columns().items()}

    @property
    def median(self) -> int:
        """Number of the run in the middle: the lower of two."""
        order = sorted(range(len(self.results)), key=lambda number: self.results[number].score)
        return order[(len(order) - 1) // 2]

    def to_json(self) -> dict[str, Any]:
        """For seeds.json."""
        scores = [dict(result.scores) for result in self.results]
        return {"metric": self.metric, "means": self.means, "deviations": self.deviations} | {
            "median": self.median,
            "scores": scores,
            "collapsed": [result.collapsed for result in self.results],
        }

    def __str__(self) -> str:
        means, deviations = self.means, self.deviations
        names = [self.metric, *(name for name in means if name != self.metric)]
        told = ", ".join(f"{name} {means[name]:.4f} ± {deviations[name]:.4f}" for name in names)
        failed = [f"seed {n}: {each.collapsed}" for n, each in enumerate(self.results) if each.collapsed]
        return "\n".join([f"{len(self.results)} seeds: {told}", *failed])

    def _columns(self) -> Mapping[str, list[float]]:
        """Of the scores that every run has: what is held out by chance may not have all of them."""
        shared = [name for name in self.results[0].scores if all(name in result.scores for result in self.results)]
        return {name: [result.scores[name] for result in self.results] for name in shared}


def run_seeds(teach: Teach, settings: FineTuneSettings, count: int, out: Path) -> Seeds:
    """Runs in out/seed-0, seed-1, ...; the median's model becomes out/model, the others' are removed."""
    if count < 1:
        raise RequestError(f"--seeds {count}: at least one is needed")
    with locked_folder(out):
        refuse_other_runs(out, "seed-0")
        return _run_seeds(teach, settings, count, out)


def _run_seeds(teach: Teach, settings: FineTuneSettings, count: int, out: Path) -> Seeds:
    def taught(number: int) -> FineTuned:
        learning = replace(settings.learning, seed=settings.learning.seed + number)
        return teach(replace(settings, learning=learning), out / f"seed-{number}")

    results: list[FineTuned] = []
    while len(results) < count and all(result.finished for result in results):
        results.append(taught(len(results)))
    found = Seeds(tuple(results))
    if not results[-1].finished:
        return found
    told, median = out / "seeds.json", out / f"seed-{found.median}"
    kept = read_object(told).get("median") if told.is_file() else None
    if kept != found.median and not (median / "model").is_dir():  # removed when there were more or fewer seeds
        shutil.rmtree(median)
        if not (again := taught(found.median)).finished:
            return Seeds((*results, again))
    write_json(told, found.to_json())  # first: what is told there is done, even where its model is still to be moved
    keep_model([out / f"seed-{number}" for number in range(count)], found.median, out)
    return found


def refuse_other_runs(out: Path, part: str) -> None:
    """What holds a model must hold `part` of these runs, too: else the model is another run's, which stays."""
    if (out / SETTINGS).exists() or ((out / "model").exists() and not (out / part).exists()):
        raise RequestError(f"{out} holds the model of another run; name another folder or remove it first")


def keep_model(runs: Sequence[Path], chosen: int, out: Path) -> None:
    """Move the chosen run's model to out/model, in place of an earlier one's, and remove those of the others."""
    for run in runs:
        if run != runs[chosen]:
            shutil.rmtree(run / "model", ignore_errors=True)
    if (runs[chosen] / "model").is_dir() and runs[chosen] != out:
        shutil.rmtree(out / "model", ignore_errors=True)
        (runs[chosen] / "model").rename(out / "model")
