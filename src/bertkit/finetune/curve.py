"""What pre-training is worth: the score by number of training examples, from the model and from random weights."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.finetune.data import Prepared
from bertkit.finetune.fine_tuning import begin_part, run_prepared
from bertkit.finetune.learner import load_start, random_start
from bertkit.finetune.result import FineTuned
from bertkit.finetune.run_state import write_json
from bertkit.finetune.search import subset
from bertkit.finetune.settings import FineTuneSettings
from bertkit.folder_lock import claimed
from bertkit.progress import ShowProgress, silent
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
    with claimed(out):
        for size in sorted(set(sizes)):
            part, folder = subset(prepared, size, settings.learning.seed), out / "curve"
            start = load_start(begin, part.task, settings)
            pretrained = _taught(Run(folder / f"{size}-pretrained"), part, start, settings, model, show)
            start = random_start(load_start(begin, part.task, settings), part.task, settings)
            random = _taught(Run(folder / f"{size}-random"), part, start, all_layers, model, show)
            points.append(CurvePoint(size, pretrained.score, random.score))
            told = {"metric": pretrained.metric, "points": [vars(point) for point in points]}
            write_json(out / "curve.json", told)
    return points


def _taught(
    run: Run, part: Prepared, start: Checkpoint, settings: FineTuneSettings, model: Path | None, show: ShowProgress
) -> FineTuned:
    """One run, of which only the scores are kept; Ctrl-C ends the curve."""
    begin_part(run, part, settings, model)
    result = run_prepared(run, part, start, settings, show=show)
    if not result.finished:
        raise KeyboardInterrupt
    shutil.rmtree(run.folder / "model")
    return result


def curve_table(points: Sequence[CurvePoint], metric: str) -> str:
    """The points as lines of text."""
    lines = [f"{'examples':>8}  pre-trained  random start   ({metric} on dev)"]
    lines += [f"{point.examples:>8,}  {point.pretrained:>11.4f}  {point.random:>12.4f}" for point in points]
    return "\n".join(lines)
