"""A model fine-tuned on five GLUE tasks, several seeds each: medians at the last step, and at the best epoch on dev.

    python benchmarks/glue_scores.py --model MODEL --tasks DIR --out RESULT.json [--seeds 5] [--jobs 12]
        [--finetune KEY=VALUE ... CoLA:KEY=VALUE ...]

The last step's score chooses nothing on dev. The best epoch's is what many published tables show, and is higher by
construction. Settings that are not given are the defaults of `bertkit finetune`.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from many_runs import results_of

from bertkit.checkpoint.bundled import bundled_folder
from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.files import whole_file
from bertkit.finetuning.explore.glue import GlueFiles, find_tasks
from bertkit.finetuning.explore.search import training_subset
from bertkit.finetuning.fine_tuning import run_prepared
from bertkit.finetuning.learner import load_start
from bertkit.finetuning.prepare import DataFiles, Prepared, prepare
from bertkit.finetuning.settings import read_settings
from bertkit.settings import pick
from bertkit.train.records import number, read_records
from bertkit.train.runs import Run

FIVE = {"CoLA": "matthews", "SST-2": "accuracy", "MRPC": "accuracy", "STS-B": "spearman", "RTE": "accuracy"}
METRICS = {**FIVE, "CoNLL-2003": "f1"}
FIXED = ("max_length=128", "keep=last")


class Stopped(Exception):
    """Somebody asked to stop: what is done is saved, and the same command goes on."""


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How a model is scored, whatever the model is."""

    tasks: Path | None
    seeds: int = 1
    finetune: tuple[str, ...] = ()
    rows: int = 10**9  # of training data, at most, in each task
    jobs: int = 1
    names: tuple[str, ...] = tuple(FIVE)  # of METRICS

    def check(self) -> None:
        """A wrong key or task is reported before the first minute is spent."""
        for pair in self.finetune:
            if ":" in pair.split("=", 1)[0]:
                pick(dict.fromkeys(self.names), pair.split(":", 1)[0], "task")
        for name in self.names:
            read_settings(*self.settings_of(name))

    def settings_of(self, name: str) -> list[str]:
        """For all tasks, then for the one of this name: `CoLA:learning_rate=3e-5`."""
        own = [pair for pair in self.finetune if ":" not in pair.split("=", 1)[0]]
        own += [pair.removeprefix(f"{name}:") for pair in self.finetune if pair.startswith(f"{name}:")]
        return [*FIXED, *own, f"metric={METRICS[name]}"]

    def found(self) -> list[GlueFiles]:
        """Those of the tasks that the folder holds."""
        return [data for data in find_tasks(self.tasks) if data.task.name in self.names] if self.tasks else []


def score_tasks(
    wanted: Sequence[GlueFiles], model: Path, scoring: Scoring
) -> Iterator[tuple[GlueFiles, dict[str, Any]]]:
    """Each task's metric times 100 for each seed, the medians, and the settings, as soon as they are known."""
    began, found = time.perf_counter(), {data: dict[int, dict[str, Any]]() for data in wanted}
    calls = [(data, model, scoring, seed) for data in wanted for seed in range(scoring.seeds)]
    for data, seed, row in results_of(fine_tune_once, calls, scoring.jobs):
        found[data][seed] = row
        if len(found[data]) < scoring.seeds:
            continue
        rows = [found[data][seed] for seed in range(scoring.seeds)]
        last, best = [row["last"] for row in rows], [row["best"] for row in rows]
        scores: dict[str, Any] = {"median": round(statistics.median_low(last), 2), "seeds": last}
        scores |= {"best_epoch": {"median": round(statistics.median_low(best), 2), "seeds": best}}
        scores |= {"metric": METRICS[data.task.name], "rows": rows[0]["rows"], "steps": rows[0]["steps"]}
        # The last of two values for one key counts.
        scores |= {"settings": dict(pair.split("=", 1) for pair in scoring.settings_of(data.task.name))}
        yield data, scores | {"seconds_since_the_first_began": round(time.perf_counter() - began, 1)}


@cache
def prepared_once(data: GlueFiles, model: Path, scoring: Scoring) -> Prepared:
    """A task's windows, once in each process; at most `rows` to learn from, the same ones for every model."""
    files = DataFiles(train=data.train, dev=data.dev)
    settings = read_settings(*scoring.settings_of(data.task.name))
    prepared = prepare(data.task.task, load_checkpoint(model), files, settings)
    return training_subset(prepared, min(scoring.rows, len(prepared.train.examples)), seed=0)


def fine_tune_once(data: GlueFiles, model: Path, scoring: Scoring, seed: int) -> tuple[GlueFiles, int, dict[str, Any]]:
    """One run, of which only the scores are kept: at its last step, and of its best epoch on dev."""
    if scoring.jobs > 1:
        torch.set_num_threads(1)
    settings = read_settings(*scoring.settings_of(data.task.name), f"seed={seed}")
    prepared, metric = prepared_once(data, model, scoring), METRICS[data.task.name]
    start = load_start(load_checkpoint(model), prepared.task, settings)
    with tempfile.TemporaryDirectory() as folder:
        result = run_prepared(Run(Path(folder)), prepared, start, settings)
        lines = read_records(Path(folder) / "metrics.jsonl").evaluations
    if not result.finished:
        raise Stopped
    last = 100 * result.plain[metric]
    best = max(last, *(100 * number(line["evaluation"][metric]) for line in lines))
    row = {"last": round(last, 2), "best": round(best, 2), "steps": result.steps}
    return data, seed, row | {"rows": len(prepared.train.examples)}


def mean_of(scores: dict[str, dict[str, Any]]) -> dict[str, float]:
    """The mean of the tasks' medians."""
    last = statistics.fmean(each["median"] for each in scores.values())
    best = statistics.fmean(each["best_epoch"]["median"] for each in scores.values())
    return {"mean": round(last, 2), "mean_of_best_epochs": round(best, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=bundled_folder())
    parser.add_argument("--tasks", type=Path, required=True, help="folders glue-cola, glue-sst2, ...")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--finetune", nargs="*", default=[], metavar="KEY=VALUE", help="for all, or CoLA:KEY=VALUE")
    parser.add_argument("--rows", type=int, default=10**9, help="to learn from, at most, in each task")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once: one of them leaves a GPU idle")
    options = parser.parse_args()
    own = {name: value for name, value in vars(options).items() if name not in ("model", "out")}
    scoring = Scoring(**{**own, "finetune": tuple(options.finetune)})
    scoring.check()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    content: dict[str, Any] = {"device": device, "torch": torch.__version__, "model": options.model.name, "scores": {}}
    # The largest first: the others fill the places that it leaves.
    for data, scores in score_tasks(
        sorted(scoring.found(), key=lambda d: d.task.name != "SST-2"), options.model, scoring
    ):
        content["scores"][data.task.name] = scores
        content |= mean_of(content["scores"])
        with whole_file(options.out) as draft:
            draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(f"{data.task.name:6} last step {scores['median']:.2f}  best epoch {scores['best_epoch']['median']:.2f}")
    print(f"mean of medians: last step {content['mean']:.2f}, best epoch {content['mean_of_best_epochs']:.2f}")


if __name__ == "__main__":
    main()
