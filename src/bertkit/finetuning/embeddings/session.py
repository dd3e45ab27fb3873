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
from bertkit.finetuning.batches import within_budget
from bertkit.finetuning.best_session import BestSession
from bertkit.finetuning.embeddings.data import NO_TEXT, Numbers, TextRows
from bertkit.finetuning.embeddings.gradient_cache import GradientCache, NoLoss, VectorPart
from bertkit.finetuning.embeddings.kinds import VECTORS
from bertkit.finetuning.embeddings.losses import LOSSES, VectorLearner, VectorLoss, VectorTargets
from bertkit.finetuning.embeddings.settings import VectorTuning
from bertkit.finetuning.learner import TASK
from bertkit.finetuning.result import FineTuned
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.model.pooling import EmbedSettings
from bertkit.tasks.metrics.correlation import spearman
from bertkit.train.loop import LoopSettings, MicroBatch, StepFunction, StepReport
from bertkit.train.low_rank import LowRank, trained_model
from bertkit.train.optimizer import Optimizers, build_optimizer
from bertkit.train.optimizer_rows import OptimizerSettings
from bertkit.train.records import read_records
from bertkit.train.runs import Progress
from bertkit.train.schedule import Budget, Schedule
from bertkit.train.session import SessionSettings

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
    shift: int = 0  # where `encoded` has the second texts and negatives, if they have another prompt

    def places(self, texts: Numbers, rows: int) -> Numbers:
        """Where `encoded` has texts, of which the first `rows` are first ones of a row."""
        places: Numbers = np.where(np.arange(len(texts)) < rows, texts, texts + self.shift)
        return places


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
        checkpoint = replace(self.start, model=self.model(), embed=self.embed)
        return {SPEARMAN: pair_spearman(checkpoint, self.data.dev)}

    @property
    def embed(self) -> EmbedSettings:
        """How vectors are made: with the prompts of the folder that the run starts from."""
        prompts = self.start.embed_settings()
        return replace(VECTORS, prefix=prompts.prefix, prompts=prompts.prompts)

    @property
    def learner(self) -> VectorLearner:
        """The model with its loss, without low-rank updates."""
        learner = self.module.module if isinstance(self.module, LowRank) else self.module
        assert isinstance(learner, VectorLearner)
        return learner

    def model(self) -> BertModel:
        """The model with the current weights; with low-rank updates, a copy that contains them."""
        return trained_model(self.module)

    def evaluation_due(self, step: int, *, last: bool) -> bool:
        """By the setting `evaluations`, a number per run, if there are dev pairs."""
        due = step % max(1, self.total // self.settings.evaluations) == 0
        return self.data.dev is not None and (due or last)

    def extra_metrics(self, report: StepReport) -> dict[str, Any]:
        """The number of correct pairs, for contrastive objectives."""
        return {"right": dict(report.accuracies)} if self.row.counts else {}

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
        model = self.model()
        embed = replace(self.embed, trained_dimensions=self.settings.prefixes(model.config.width))
        saved: dict[str, Any] = {"embed": embed, "retrieval": None, **self.learner.kind.saved()}
        return self.leave(result, replace(self.start, model=model, **saved, labels=(), task={}))

    @property
    def row(self) -> VectorLoss:
        """The loss."""
        return LOSSES[self.data.objective]

    def step_function(self) -> StepFunction | None:
        """GradCache for losses that compare the rows of a step; others may be split."""
        return GradientCache(self.learner.loss) if self.row.compares else None

    def micro_batches(self, step: int) -> Sequence[MicroBatch]:
        """The texts of a step: as one batch if it is within `tokens`, else in parts of about equal lengths."""
        if not self.row.compares:
            return super().micro_batches(step)
        chosen = self.plan.step(step)
        texts = self._texts(chosen)
        encoded = self.data.places(texts, len(chosen))
        order = np.argsort(-self.data.encoded.lengths[encoded], kind="stable")
        parts = list(within_budget(self.data.encoded.lengths[encoded[order]].tolist(), self.plan.tokens))
        if len(parts) == 1:
            return [self.micro(chosen, step, 0, whole=True)]
        targets = self._targets(chosen, texts)
        return [self._part(targets, encoded, order[part], step, number) for number, part in enumerate(parts)]

    def _part(self, targets: VectorTargets, encoded: Numbers, places: Numbers, step: int, part: int) -> VectorPart:
        """The texts at these places among those of a step, which are given by their places in `data.encoded`."""
        device = self.ranks.device
        batch = self.data.encoded.batch(encoded[places].tolist()).to(device).laid_out()
        count = 0 if part else targets.rows  # a row has texts in several parts
        where = torch.from_numpy(places).to(device)
        inputs, seed = (batch, NoLoss()), self._dropout_seed(step, part)
        return VectorPart(inputs, {TASK: count}, len(batch.ids), seed, where, targets)

    def micro(self, chosen: Sequence[int], step: int, part: int, *, whole: bool) -> MicroBatch:
        """The texts of the chosen rows and their targets."""
        texts = self._texts(chosen)
        encoded = self.data.places(texts, len(chosen))
        batch = self.data.encoded.batch(encoded.tolist()).to(self.ranks.device).laid_out()
        inputs = (batch, self._targets(chosen, texts))
        return MicroBatch(inputs, {TASK: len(chosen)}, len(batch.ids), self._dropout_seed(step, part))

    def _dropout_seed(self, step: int, part: int) -> int:
        return (self.settings.seed * 1_000_003 + step) * 1_009 + part

    def _texts(self, chosen: Sequence[int]) -> Numbers:
        """The first texts of the chosen rows, then the second ones, then the negatives."""
        rows = self.data.train.rows[np.array(chosen)]
        texts: Numbers = (np.repeat(rows, 2, axis=1) if self.data.objective == "twins" else rows).T.reshape(-1)
        present: Numbers = texts[texts != NO_TEXT]
        return present

    def _targets(self, chosen: Sequence[int], texts: Numbers) -> VectorTargets:
        names = torch.from_numpy(texts.copy()).to(self.ranks.device)
        return VectorTargets(len(chosen), names, self._target_values(np.array(chosen), texts))

    def _target_values(self, chosen: NDArray[np.int64], texts: NDArray[np.int64]) -> Tensor | None:
        """The teacher's vectors of the texts, else the scores of the chosen rows, if there are some."""
        if self.data.teacher is not None:
            return torch.from_numpy(self.data.teacher[texts]).to(self.ranks.device)
        if self.data.train.scores is not None:
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
