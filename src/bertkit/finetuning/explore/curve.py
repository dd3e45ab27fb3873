"""What pre-training is worth: the score by number of training examples, from the model and from random weights."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.finetuning.explore.search import subset
from bertkit.finetuning.fine_tuning import run_part
from bertkit.finetuning.learner import load_start, random_start
from bertkit.finetuning.prepare import Prepared
from bertkit.finetuning.run_state import locked_folder, write_json
from bertkit.finetuning.settings import FineTuneSettings
from bertkit.progress import ShowProgress, silent
from bertkit.tasks.task import Task
from bertkit.train.runs import Run


@dataclass(frozen=True)
class CurvePoint:
    """The watched metric on dev after learning from so many examples."""

    examples: int
    pretrained: float
    random: float


def learning_curve(
    prepared: Prepared,
    begin: Checkpoint,
    settings: FineTuneSettings,
    sizes: Sequence[int],
    out: Path,
    *,
    model: Path | None = None,
    show: ShowProgress = silent,
) -> list[CurvePoint]:
    """A point for each size; smaller sets are parts of larger ones. No model is kept; the numbers are in curve.json."""
    points: list[CurvePoint] = []
    # From random weights the lower layers have as much to learn as the others.
    all_layers = replace(settings, learning=replace(settings.learning, layer_decay=1.0))
    with locked_folder(out):
        for size in sorted(set(sizes)):
            part = subset(prepared, size, settings.learning.seed)
            scores = []
            for name, made, own in (("pretrained", load_start, settings), ("random", _random, all_layers)):
                folder, start = out / "curve" / f"{size}-{name}", partial(made, begin, part.task, own)
                result = run_part(Run(folder), part, start, own, model=model, show=show)
                scores.append(result.score)
                shutil.rmtree(folder / "model", ignore_errors=True)  # there is none if it was finished before
            points.append(CurvePoint(size, *scores))
            write_json(out / "curve.json", {"metric": result.metric, "points": [vars(point) for point in points]})
    return points


def _random(begin: Checkpoint, task: Task, settings: FineTuneSettings) -> Checkpoint:
    return random_start(load_start(begin, task, settings), task, settings)


def curve_table(points: Sequence[CurvePoint], metric: str) -> str:
    """The points as lines of text."""
    lines = [f"{'examples':>8}  pre-trained  random start   ({metric} on dev)"]
    lines += [f"{point.examples:>8,}  {point.pretrained:>11.4f}  {point.random:>12.4f}" for point in points]
    return "\n".join(lines)
