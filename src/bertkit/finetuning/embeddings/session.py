"""One process's work on a run that tunes vectors: steps, evaluations, checkpoints, and the folder at the end."""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.checkpoint.text_vectors import text_vectors
from bertkit.finetuning.best_session import BestSession
from bertkit.finetuning.embeddings.contrast import Asked
from bertkit.finetuning.embeddings.data import TextRows
from bertkit.finetuning.embeddings.low_rank import LowRank
from bertkit.finetuning.embeddings.settings import VectorTuning
from bertkit.finetuning.learner import TASK
from bertkit.finetuning.result import FineTuned
from bertkit.finetuning.run_state import State, copied_to_host
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.model.pooling import EmbedSettings
from bertkit.tasks.metrics.correlation import spearman
from bertkit.train.loop import LoopSettings, MicroBatch, StepReport
from bertkit.train.optimizer import Optimizers, build_optimizer
from bertkit.train.optimizer_rows import OptimizerSettings
from bertkit.train.records import read_records
from bertkit.train.runs import Progress
from bertkit.train.schedule import Budget, Schedule
from bertkit.train.session import SessionSettings

VECTORS = EmbedSettings(pooling="mean", normalize=True)  # what is trained, and what the folder says
SPEARMAN = "spearman"


@dataclass(frozen=True)
class Encoded:
    """All texts as tokens, end to end."""

    ids: NDArray[np.int32]
    segments: NDArray[np.uint8]
    starts: NDArray[np.int64]  # one more than texts

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text."""
        return np.diff(self.starts)

    def batch(self, numbers: Sequence[int]) -> Batch:
        """These texts, packed."""
        spans = [slice(self.starts[number], self.starts[number + 1]) for number in numbers]
        ids, segments = (np.concatenate([each[span] for span in spans]) for each in (self.ids, self.segments))
        lengths = tuple(int(span.stop - span.start) for span in spans)
        return Batch(torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(segments.astype(np.int64)), lengths)


@dataclass(frozen=True)
class VectorData:
    """What a run learns from and is measured by."""

    objective: str  # one of contrast.LOSSES
    train: TextRows
    encoded: Encoded
    dev: TextRows | None = None
    teacher: NDArray[np.float16] | None = None  # a vector for each text of `train`


@dataclass(kw_only=True, eq=False)
class VectorSession(BestSession):
    """Texts and pairs in, the model whose vectors agree best with dev's scores out."""

    data: VectorData
    settings: VectorTuning

    def new_optimizers(self) -> Optimizers:
        """AdamW."""
        return build_optimizer(self.module, OptimizerSettings(fused=True))

    @property
    def total(self) -> int:
        """Steps of the whole run, unless its minutes end before."""
        return self.plan.steps * self.settings.epochs

    def evaluate(self) -> dict[str, float]:
        """The rank correlation of cosines with scores on the dev pairs, or nothing without any."""
        if self.data.dev is None:
            return {}
        checkpoint = replace(self.start, model=self.model(), embed=VECTORS)
        return {SPEARMAN: pair_spearman(checkpoint, self.data.dev)}

    def model(self) -> BertModel:
        """The model as it stands; a copy where its matrices move in few directions."""
        if not isinstance(self.module, LowRank):
            return _of(self.module)
        model = deepcopy(_of(self.module.module))
        with torch.no_grad():
            own = dict(model.named_parameters())
            for name, matrix in self.module.moved().items():
                own[name.removeprefix("model.")].copy_(matrix)
        return model

    def evaluation_due(self, step: int, *, last: bool) -> bool:
        """So many times in the run, where there are scored pairs."""
        due = step % max(1, self.total // self.settings.evaluations) == 0
        return self.data.dev is not None and (due or last)

    def snapshot(self) -> State:
        """What learns."""
        named = self.module.named_parameters()
        return {name: copied_to_host(tensor) for name, tensor in named if tensor.requires_grad}

    def load_state(self, state: State) -> None:
        """What learns."""
        own = dict(self.module.named_parameters())
        with torch.no_grad():
            for name, tensor in state.items():
                own[name].copy_(tensor)

    def extra_metrics(self, report: StepReport) -> dict[str, Any]:
        """How many texts found their own pair, where that is asked."""
        return {"right": dict(report.accuracies)} if self.data.objective in ("twins", "pairs") else {}

    def end(self, progress: Progress, report: StepReport | None, *, finished: bool) -> FineTuned:
        """Take the best weights, or the last where nothing was measured, and write the folder."""
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
            said=(self.data.train.said, *([self.data.dev.said] if self.data.dev else [])),
        )
        return self.leave(result, replace(self.start, model=self.model(), embed=VECTORS, labels=(), task={}))

    def micro(self, chosen: Sequence[int], step: int, part: int, *, whole: bool) -> MicroBatch:
        """The texts of the chosen rows, and what is asked about them."""
        asked_rows = np.array(chosen)
        rows = self.data.train.rows[asked_rows]
        twice = self.data.objective == "twins"
        numbers = (np.repeat(rows, 2, axis=1) if twice else rows).T.reshape(-1)  # firsts, then seconds
        device = self.ranks.device
        batch = self.data.encoded.batch(numbers.tolist()).to(device).laid_out()
        asked = Asked(len(chosen), torch.from_numpy(numbers.copy()).to(device), self._wanted(asked_rows, numbers))
        seed = (self.settings.seed * 1_000_003 + step) * 1_009 + part
        return MicroBatch((batch, asked), {TASK: len(chosen)}, len(batch.ids), seed)

    def _wanted(self, chosen: NDArray[np.int64], numbers: NDArray[np.int64]) -> Tensor | None:
        if self.data.objective == "teacher":
            assert self.data.teacher is not None
            return torch.from_numpy(self.data.teacher[numbers]).to(self.ranks.device)
        if self.data.objective == "scores":
            assert self.data.train.scores is not None
            return torch.from_numpy(self.data.train.scores[chosen]).to(self.ranks.device)
        return None

    @cached_property
    def options(self) -> SessionSettings:
        """As the settings say."""
        settings = self.settings
        schedule = Schedule(peak=settings.learning_rate, warmup=round(settings.warmup * self.total))
        loop = LoopSettings(budget=Budget(steps=self.total, minutes=settings.minutes), schedule=schedule)
        return SessionSettings(loop=loop, log_every=settings.log_every, save_minutes=settings.save_minutes)

    def _logged_loss(self) -> float:
        """Loss of the last logged step, for a run that was killed after its last step."""
        points = read_records(self.run.metrics).curves("loss").get(TASK)
        return points[-1][1] if points else math.nan


def pair_spearman(checkpoint: Checkpoint, pairs: TextRows) -> float:
    """How far the cosines of a model's vectors and the scores of pairs agree in order, from -1 to 1."""
    assert pairs.scores is not None
    vectors = text_vectors(replace(checkpoint, embed=replace(checkpoint.embed or VECTORS, normalize=True)), pairs.texts)
    first, second = vectors[pairs.rows[:, 0]], vectors[pairs.rows[:, 1]]
    return spearman(pairs.scores, (first * second).sum(axis=1))


def _of(learner: nn.Module) -> BertModel:
    model = learner.model
    assert isinstance(model, BertModel)
    return model
