"""Learning curves: the score by number of training examples, from the pre-trained model and from random weights."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.finetuning.explore.search import training_subset
from bertkit.finetuning.fine_tuning import run_or_resume
from bertkit.finetuning.learner import load_start, random_start
from bertkit.finetuning.prepare import Prepared
from bertkit.finetuning.run_state import locked_folder, write_json
from bertkit.finetuning.settings import FineTuneSettings
from bertkit.progress import ShowProgress, silent
from bertkit.tasks.task import Task
from bertkit.train.runs import Run


@dataclass(frozen=True)
class CurvePoint:
    """The score on dev after training on `examples` examples."""

    examples: int
    pretrained: float
    random: float


def learning_curve(
    prepared: Prepared,
    base: Checkpoint,
    settings: FineTuneSettings,
    sizes: Sequence[int],
    out: Path,
    *,
    model: Path | None = None,
    show: ShowProgress = silent,
) -> list[CurvePoint]:
    """A point for each size, also in curve.json; smaller training sets are subsets of larger ones. No model is kept."""
    points: list[CurvePoint] = []
    # With random weights, lower layers need the same learning rate as the others.
    all_layers = replace(settings, learning=replace(settings.learning, layer_decay=1.0))
    with locked_folder(out):
        for size in sorted(set(sizes)):
            part = training_subset(prepared, size, settings.learning.seed)
            scores = []
            for name, initialize, changed in (
                ("pretrained", load_start, settings),
                ("random", _random_start, all_layers),
            ):
                folder, start = out / "curve" / f"{size}-{name}", partial(initialize, base, part.task, changed)
                result = run_or_resume(Run(folder), part, start, changed, model=model, show=show)
                scores.append(result.score)
                shutil.rmtree(folder / "model", ignore_errors=True)  # missing if the run had finished before
            points.append(CurvePoint(size, *scores))
            write_json(out / "curve.json", {"metric": result.metric, "points": [vars(point) for point in points]})
    return points


def _random_start(base: Checkpoint, task: Task, settings: FineTuneSettings) -> Checkpoint:
    return random_start(load_start(base, task, settings), task, settings)


def curve_table(points: Sequence[CurvePoint], metric: str) -> str:
    """The points as a text table."""
    lines = [f"{'examples':>8}  pre-trained  random start   ({metric} on dev)"]
    lines += [f"{point.examples:>8,}  {point.pretrained:>11.4f}  {point.random:>12.4f}" for point in points]
    return "\n".join(lines)
