"""The training session of a run that tunes embeddings: steps, evaluations, checkpoints, the model folder at the end."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.checkpoint.text_vectors import text_vectors
from bertkit.finetuning.best_session import BestSession
from bertkit.finetuning.embeddings.data import TextRows
from bertkit.finetuning.embeddings.losses import VectorTargets
from bertkit.finetuning.embeddings.settings import VectorTuning
from bertkit.finetuning.learner import TASK
from bertkit.finetuning.result import FineTuned
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.model.pooling import EmbedSettings
from bertkit.tasks.metrics.correlation import spearman
from bertkit.train.loop import LoopSettings, MicroBatch, StepReport
from bertkit.train.low_rank import trained_model
from bertkit.train.optimizer import Optimizers, build_optimizer
from bertkit.train.optimizer_rows import OptimizerSettings
from bertkit.train.records import read_records
from bertkit.train.runs import Progress
from bertkit.train.schedule import Budget, Schedule
from bertkit.train.session import SessionSettings

VECTORS = EmbedSettings(pooling="mean", normalize=True)  # in training, and in the saved folder
SPEARMAN = "spearman"


@dataclass(frozen=True)
class Encoded:
    """The token ids of all texts, end to end."""

    ids: NDArray[np.int32]
    segments: NDArray[np.uint8]
    starts: NDArray[np.int64]  # texts + 1: where each text starts and the last one ends

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each text."""
        return np.diff(self.starts)

    def batch(self, indices: Sequence[int]) -> Batch:
        """The texts with these indices as a packed batch."""
        spans = [slice(self.starts[index], self.starts[index + 1]) for index in indices]
        ids, segments = (np.concatenate([values[span] for span in spans]) for values in (self.ids, self.segments))
        lengths = tuple(int(span.stop - span.start) for span in spans)
        return Batch(torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(segments.astype(np.int64)), lengths)


@dataclass(frozen=True)
class VectorData:
    """The training and dev data of a run."""

    objective: str  # a key of losses.LOSSES
    train: TextRows
    encoded: Encoded
    dev: TextRows | None = None
    teacher: NDArray[np.float16] | None = None  # a vector for each text of `train`


@dataclass(kw_only=True, eq=False)
class VectorSession(BestSession):
    """Tunes embeddings and saves the model with the highest correlation with the scores of the dev pairs."""

    data: VectorData
    settings: VectorTuning

    def new_optimizers(self) -> Optimizers:
        """AdamW."""
        return build_optimizer(self.module, OptimizerSettings(fused=True))

    @property
    def total(self) -> int:
        """The number of steps of the run without a time limit."""
        return self.plan.steps * self.settings.epochs

    def evaluate(self) -> dict[str, float]:
        """Spearman's correlation of cosines and scores of the dev pairs; empty without dev pairs."""
        if self.data.dev is None:
            return {}
        checkpoint = replace(self.start, model=self.model(), embed=VECTORS)
        return {SPEARMAN: pair_spearman(checkpoint, self.data.dev)}

    def model(self) -> BertModel:
        """The model with the current weights; with low-rank updates, a copy that contains them."""
        return trained_model(self.module)

    def evaluation_due(self, step: int, *, last: bool) -> bool:
        """By the setting `evaluations`, a number per run, if there are dev pairs."""
        due = step % max(1, self.total // self.settings.evaluations) == 0
        return self.data.dev is not None and (due or last)

    def extra_metrics(self, report: StepReport) -> dict[str, Any]:
        """The number of correct pairs, for contrastive objectives."""
        return {"right": dict(report.accuracies)} if self.data.objective in ("twins", "pairs") else {}

    def end(self, progress: Progress, report: StepReport | None, *, finished: bool) -> FineTuned:
        """Load the best weights (the last ones without evaluations) and write the model folder."""
        best, steps = self.best, progress.step
        scores = {"loss": report.losses[TASK] if report else self._logged_loss()}
        if best.state is not None:
            self.load_state(best.state)
            scores = {SPEARMAN: best.score} | scores
        result = FineTuned(
            task="vectors",
            metric=SPEARMAN if best.state is not None else "loss",
            scores=scores,
            plain=scores,
            calibration={},
            best_step=best.step if best.state is not None else steps,
            steps=steps,
            finished=finished,
            notes=(self.data.train.summary, *([self.data.dev.summary] if self.data.dev else [])),
            examples=len(self.data.dev.rows) if self.data.dev else 0,
            chosen_on_dev=best.state is not None,
        )
        return self.leave(result, replace(self.start, model=self.model(), embed=VECTORS, labels=(), task={}))

    def micro(self, chosen: Sequence[int], step: int, part: int, *, whole: bool) -> MicroBatch:
        """The texts of the chosen rows and their targets."""
        indices = np.array(chosen)
        rows = self.data.train.rows[indices]
        twice = self.data.objective == "twins"
        texts = (np.repeat(rows, 2, axis=1) if twice else rows).T.reshape(-1)  # the first texts, then the second ones
        device = self.ranks.device
        batch = self.data.encoded.batch(texts.tolist()).to(device).laid_out()
        names = torch.from_numpy(texts.copy()).to(device)
        targets = VectorTargets(len(chosen), names, self._target_values(indices, texts))
        seed = (self.settings.seed * 1_000_003 + step) * 1_009 + part
        return MicroBatch((batch, targets), {TASK: len(chosen)}, len(batch.ids), seed)

    def _target_values(self, chosen: NDArray[np.int64], texts: NDArray[np.int64]) -> Tensor | None:
        """The teacher's vectors of the texts, the scores of the chosen rows, or None, by objective."""
        if self.data.objective == "teacher":
            assert self.data.teacher is not None
            return torch.from_numpy(self.data.teacher[texts]).to(self.ranks.device)
        if self.data.objective == "scores":
            assert self.data.train.scores is not None
            return torch.from_numpy(self.data.train.scores[chosen]).to(self.ranks.device)
        return None

    @cached_property
    def options(self) -> SessionSettings:
        """The options of the training loop from the settings."""
        settings = self.settings
        schedule = Schedule(peak=settings.learning_rate, warmup=round(settings.warmup * self.total))
        loop = LoopSettings(budget=Budget(steps=self.total, minutes=settings.minutes), schedule=schedule)
        return SessionSettings(loop=loop, log_every=settings.log_every, save_minutes=settings.save_minutes)

    def _logged_loss(self) -> float:
        """Loss of the last logged step, for a run that was killed after its last step."""
        points = read_records(self.run.metrics).curves("loss").get(TASK)
        return points[-1][1] if points else math.nan


def pair_spearman(checkpoint: Checkpoint, pairs: TextRows) -> float:
    """Spearman's correlation of the cosines of a model's vectors and the scores of pairs."""
    assert pairs.scores is not None
    vectors = text_vectors(replace(checkpoint, embed=replace(checkpoint.embed or VECTORS, normalize=True)), pairs.texts)
    first, second = vectors[pairs.rows[:, 0]], vectors[pairs.rows[:, 1]]
    return spearman(pairs.scores, (first * second).sum(axis=1))
