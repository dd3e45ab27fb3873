"""A training session that keeps the weights of its best evaluation and writes a model folder and result.json."""

import math
import shutil
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from bertkit.checkpoint.save_load import Checkpoint, save_checkpoint
from bertkit.errors import RequestError
from bertkit.finetuning.batches import EpochPlan
from bertkit.finetuning.learner import TASK
from bertkit.finetuning.result import FineTuned
from bertkit.finetuning.run_state import (
    RESULT,
    Best,
    SavedState,
    State,
    best_so_far,
    copied_to_host,
    read_state,
    write_json,
)
from bertkit.train.loop import MicroBatch, StepReport
from bertkit.train.runs import Progress, read_progress
from bertkit.train.session import Session, finite_values


@dataclass(kw_only=True, eq=False)
class BestSession(Session[FineTuned]):
    """Base of the sessions that fine-tune for a task or tune embeddings."""

    start: Checkpoint
    plan: EpochPlan  # which examples make up a step
    metric: str  # that chooses the best model
    best: Best = field(default_factory=Best)

    def restore_latest(self) -> Progress:
        """Load the latest checkpoint of the run's folder, if there is one, and return its progress."""
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
        """The chosen examples as tensors: forward pass `part` of a step; `whole`: the only one."""

    def micro_batches(self, step: int) -> Sequence[MicroBatch]:
        """The forward passes of a step."""
        parts = self.plan.parts(step)
        return [self.micro(part, step, number, whole=len(parts) == 1) for number, part in enumerate(parts)]

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """All metrics on dev with the current weights."""

    def snapshot(self) -> State:
        """A copy of the trained parameters in host memory."""
        named = self.module.named_parameters()
        return {name: copied_to_host(tensor) for name, tensor in named if tensor.requires_grad}

    def load_state(self, state: State) -> None:
        """Restore the parameters of a `snapshot`."""
        parameters = dict(self.module.named_parameters())
        with torch.no_grad():
            for name, tensor in state.items():
                parameters[name].copy_(tensor)

    def evaluate_and_record(self, step: int) -> None:
        """Evaluate, write the scores to metrics.jsonl, and update the best evaluation."""
        scores = self.evaluate()
        if self.metric not in scores:
            raise RequestError(f"unknown metric '{self.metric}'; choose from: {', '.join(scores)}")
        self.write({"step": step, "evaluation": finite_values(scores)})
        loss = scores.get("loss", math.nan)
        self.best = self.best.after(step, self.metric, scores[self.metric], loss)
        if self.best.state is None:  # the copy before it is gone by now: memory never holds two
            self.best = replace(self.best, state=self.snapshot())

    def shown(self, report: StepReport) -> dict[str, str]:
        """The loss and the best score so far, for the progress bar."""
        best = {self.metric: f"{self.best.score:.4f}"} if self.best.state else {}
        return {"loss": f"{report.losses[TASK]:.3f}"} | best

    def checkpoint_parts(self) -> Mapping[str, Any]:
        """The current weights and the best ones."""
        parts = {"model": SavedState(self.snapshot())}
        return parts if self.best.state is None else {**parts, "best": SavedState(self.best.state)}

    def leave(self, result: FineTuned, checkpoint: Checkpoint) -> FineTuned:
        """Write the model folder and result.json; the checkpoints of a finished run are removed."""
        self._write_model(checkpoint)
        write_json(self.run.folder / RESULT, result.to_json())
        if result.finished:
            shutil.rmtree(self.run.folder / "checkpoints", ignore_errors=True)
        return result

    def _write_model(self, checkpoint: Checkpoint) -> None:
        target = self.run.folder / "model"
        if target.exists():  # from an interrupted session
            shutil.rmtree(target)
        self.save_model(checkpoint, target)

    def save_model(self, checkpoint: Checkpoint, folder: Path) -> None:
        """Write the model's folder."""
        save_checkpoint(checkpoint, folder)
