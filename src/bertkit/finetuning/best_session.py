"""A session that keeps the weights of its best evaluation, and leaves a model folder and result.json."""

import math
import shutil
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bertkit.checkpoint.save_load import Checkpoint, save_checkpoint
from bertkit.errors import RequestError
from bertkit.finetuning.batches import EpochPlan
from bertkit.finetuning.learner import TASK
from bertkit.finetuning.result import FineTuned
from bertkit.finetuning.run_state import RESULT, Best, SavedState, State, best_so_far, read_state, write_json
from bertkit.train.loop import MicroBatch, StepReport
from bertkit.train.runs import Progress, read_progress
from bertkit.train.session import Session, finite_values


@dataclass(kw_only=True, eq=False)
class BestSession(Session[FineTuned]):
    """What fine-tuning of a task and of embeddings share."""

    start: Checkpoint
    plan: EpochPlan  # which examples make up a step
    metric: str  # the one that is watched
    best: Best = field(default_factory=Best)

    def restore_latest(self) -> Progress:
        """Go on from the folder's latest checkpoint, if it has one; where the run stands then."""
        latest = self.run.latest()
        progress = read_progress(latest)
        self.run.truncate_metrics(progress.step)
        if latest:
            self.load_state(read_state(latest / "model"))
            self.restore(latest)
            self.best = best_so_far(self.run, latest, self.metric)
        return progress

    @abstractmethod
    def micro(self, chosen: Sequence[int], step: int, part: int, *, whole: bool) -> MicroBatch:
        """The chosen examples as tensors: part number `part` of a step, or the `whole` step."""

    @abstractmethod
    def load_state(self, state: State) -> None:
        """Put back what `snapshot` copied."""

    def micro_batches(self, step: int) -> Sequence[MicroBatch]:
        """A step's examples as tensors, in parts that the device can hold."""
        parts = self.plan.parts(step)
        return [self.micro(part, step, number, whole=len(parts) == 1) for number, part in enumerate(parts)]

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """All metrics on dev, as the model stands."""

    @abstractmethod
    def snapshot(self) -> State:
        """A copy of what is trained, in host memory."""

    def evaluate_and_record(self, step: int) -> None:
        """Note whether this is the best evaluation so far."""
        scores = self.evaluate()
        if self.metric not in scores:
            raise RequestError(f"unknown metric '{self.metric}'; choose from: {', '.join(scores)}")
        self.write({"step": step, "evaluation": finite_values(scores)})
        loss = scores.get("loss", math.nan)
        self.best = self.best.after(step, self.metric, scores[self.metric], loss, self.snapshot)

    def shown(self, report: StepReport) -> dict[str, str]:
        """The loss, and the best score so far."""
        best = {self.metric: f"{self.best.score:.4f}"} if self.best.state else {}
        return {"loss": f"{report.losses[TASK]:.3f}"} | best

    def checkpoint_parts(self) -> Mapping[str, Any]:
        """The weights as they stand, and the best."""
        parts = {"model": SavedState(self.snapshot())}
        return parts if self.best.state is None else {**parts, "best": SavedState(self.best.state)}

    def leave(self, result: FineTuned, checkpoint: Checkpoint) -> FineTuned:
        """Write the model folder and result.json; a finished run needs its checkpoints no more."""
        self._write_model(checkpoint)
        write_json(self.run.folder / RESULT, asdict(result))
        if result.finished:
            shutil.rmtree(self.run.folder / "checkpoints", ignore_errors=True)
        return result

    def _write_model(self, checkpoint: Checkpoint) -> None:
        target = self.run.folder / "model"
        if target.exists():  # of a session that was stopped
            shutil.rmtree(target)
        save_checkpoint(checkpoint, target)
