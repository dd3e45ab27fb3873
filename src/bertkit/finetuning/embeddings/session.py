"""One process's work on a run that tunes vectors: steps, evaluations, checkpoints, and the folder at the end."""

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertkit.checkpoint.save_load import Checkpoint, save_checkpoint
from bertkit.checkpoint.text_vectors import text_vectors
from bertkit.finetuning.batches import EpochPlan, within_budget
from bertkit.finetuning.embeddings.contrast import Asked
from bertkit.finetuning.embeddings.data import TextRows
from bertkit.finetuning.embeddings.low_rank import LowRank
from bertkit.finetuning.embeddings.settings import VectorTuning
from bertkit.finetuning.learner import TASK
from bertkit.finetuning.result import FineTuned
from bertkit.finetuning.run_state import RESULT, Best, SavedState, State, write_json
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.model.pooling import EmbedSettings
from bertkit.progress import Meter
from bertkit.tasks.metrics.correlation import spearman
from bertkit.train.distributed import Ranks
from bertkit.train.half import HalfPrecision
from bertkit.train.loop import LoopSettings, Micro, StepReport, train
from bertkit.train.optimizer import Optimizers
from bertkit.train.prefetch import prefetching
from bertkit.train.records import read_records
from bertkit.train.runs import Progress, Run
from bertkit.train.schedule import Budget, Schedule

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


@dataclass(frozen=True)
class VectorSession:
    """One process's work on a run, from its first step to its last."""

    run: Run
    data: VectorData
    start: Checkpoint
    learner: nn.Module  # a VectorLearner, or a LowRank around one
    optimizers: Optimizers
    settings: VectorTuning
    plan: EpochPlan
    place: Ranks

    @property
    def total(self) -> int:
        """Steps of the whole run, unless its minutes end before."""
        return self.plan.steps * self.settings.epochs

    def train(self, start: Progress, best: Best, meter: Meter, stop: Callable[[], bool]) -> FineTuned:
        """Step until all is done or somebody asks to stop."""
        report, saved = None, time.monotonic()
        module = HalfPrecision(self.learner) if self._on_cuda else self.learner
        with prefetching(self.micros, start.step, self.place.device) as micros:
            for report in train(module, {TASK: 1.0}, micros, self.optimizers, self._loop_settings(), self.place, start):
                best = self._after(report, best, meter)
                asked = stop() and not self._last(report.progress)
                if asked or time.monotonic() - saved >= 60 * self.settings.save_minutes:
                    self._save(report.progress, best)
                    saved = time.monotonic()
                if asked:
                    meter.stop()
                    break
        progress, loss = (report.progress, report.losses[TASK]) if report else (start, self._logged_loss())
        return self._end(progress.step, loss, best, finished=self._last(progress))

    def micros(self, step: int) -> list[Micro]:
        """A step's rows as tensors; one over `tokens` falls into parts, each compared within itself."""
        chosen = self.plan.step(step)
        parts = within_budget([self.plan.lengths[number] for number in chosen], self.settings.tokens)
        return [self._micro(np.array([chosen[i] for i in part]), step, number) for number, part in enumerate(parts)]

    def evaluate(self) -> dict[str, float]:
        """The rank correlation of cosines with scores on the dev pairs, or nothing without any."""
        if self.data.dev is None:
            return {}
        checkpoint = replace(self.start, model=self.model(), embed=VECTORS)
        return {SPEARMAN: pair_spearman(checkpoint, self.data.dev)}

    def model(self) -> BertModel:
        """The model as it stands; a copy where its matrices move in few directions."""
        if not isinstance(self.learner, LowRank):
            return _of(self.learner)
        model = deepcopy(_of(self.learner.module))
        with torch.no_grad():
            own = dict(model.named_parameters())
            for name, matrix in self.learner.moved().items():
                own[name.removeprefix("model.")].copy_(matrix)
        return model

    def _micro(self, chosen: NDArray[np.int64], step: int, part: int) -> Micro:
        rows = self.data.train.rows[chosen]
        twice = self.data.objective == "twins"
        numbers = (np.repeat(rows, 2, axis=1) if twice else rows).T.reshape(-1)  # firsts, then seconds
        device = self.place.device
        batch = self.data.encoded.batch(numbers.tolist()).to(device).laid_out()
        asked = Asked(len(chosen), torch.from_numpy(numbers.copy()).to(device), self._wanted(chosen, numbers))
        seed = (self.settings.seed * 1_000_003 + step) * 1_009 + part
        return Micro((batch, asked), {TASK: len(chosen)}, len(batch.ids), seed)

    def _wanted(self, chosen: NDArray[np.int64], numbers: NDArray[np.int64]) -> Tensor | None:
        if self.data.objective == "teacher":
            assert self.data.teacher is not None
            return torch.from_numpy(self.data.teacher[numbers]).to(self.place.device)
        if self.data.objective == "scores":
            assert self.data.train.scores is not None
            return torch.from_numpy(self.data.train.scores[chosen]).to(self.place.device)
        return None

    def _after(self, report: StepReport, best: Best, meter: Meter) -> Best:
        """Log, and evaluate when it is time to."""
        step, last = report.progress.step, self._last(report.progress)
        if step % self.settings.log_every == 0 or report.bad or last:
            self._log(report)
            facts = {"loss": f"{report.losses[TASK]:.3f}"}
            meter.update(self._spent(report.progress), facts | ({SPEARMAN: f"{best.score:.4f}"} if best.state else {}))
        due = step % max(1, self.total // self.settings.evaluations) == 0
        if self.data.dev is None or not (due or last):
            return best
        scores = self.evaluate()
        self._write({"step": step, "evaluation": scores})
        return best.after(step, SPEARMAN, scores[SPEARMAN], math.nan, lambda: moving(self.learner))

    def _last(self, progress: Progress) -> bool:
        return self._spent(progress) >= 1

    def _spent(self, progress: Progress) -> float:
        return self._budget.progress(progress.step, progress.seconds)

    @property
    def _budget(self) -> Budget:
        return Budget(steps=self.total, minutes=self.settings.minutes)

    @property
    def _on_cuda(self) -> bool:
        return self.place.device.type == "cuda"

    def _loop_settings(self) -> LoopSettings:
        warmup = round(self.settings.warmup * self.total)
        return LoopSettings(budget=self._budget, schedule=Schedule(peak=self.settings.learning_rate, warmup=warmup))

    def _log(self, report: StepReport) -> None:
        progress = report.progress
        line: dict[str, Any] = {"step": progress.step, "seconds": round(progress.seconds, 3), "tokens": progress.tokens}
        line |= {"loss": {TASK: _finite(report.losses[TASK])}, "rate": report.rate}
        line |= {"right": dict(report.right)} if self.data.objective in ("twins", "pairs") else {}
        line |= {
            "norm": _finite(report.norm),
            "tokens_per_second": round(progress.tokens / max(progress.seconds, 1e-9)),
        }
        self._write(line | {"skipped": progress.skipped} | ({"bad": report.bad} if report.bad else {}))

    def _write(self, line: Mapping[str, Any]) -> None:
        self.run.append(line)

    def _save(self, progress: Progress, best: Best) -> None:
        parts = {"model": SavedState(moving(self.learner))}
        if best.state is not None:
            parts["best"] = SavedState(best.state)
        self.run.save(progress, parts, self.optimizers.state_tensors(), keep=1)

    def _logged_loss(self) -> float:
        """Loss of the last logged step, for a run that was killed after its last step."""
        points = read_records(self.run.metrics).curves("loss").get(TASK)
        return points[-1][1] if points else math.nan

    def _end(self, steps: int, loss: float, best: Best, *, finished: bool) -> FineTuned:
        """Take the best weights, or the last where nothing was measured, and write the folder."""
        scores = {"loss": loss}
        if best.state is not None:
            move(self.learner, best.state)
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
        self._write_model()
        write_json(self.run.folder / RESULT, asdict(result))
        if finished:  # nothing will go on from them
            shutil.rmtree(self.run.folder / "checkpoints", ignore_errors=True)
        return result

    def _write_model(self) -> None:
        target = self.run.folder / "model"
        if target.exists():  # of a session that was stopped
            shutil.rmtree(target)
        save_checkpoint(replace(self.start, model=self.model(), embed=VECTORS, labels=(), task={}), target)


def pair_spearman(checkpoint: Checkpoint, pairs: TextRows) -> float:
    """How far the cosines of a model's vectors and the scores of pairs agree in order, from -1 to 1."""
    assert pairs.scores is not None
    vectors = text_vectors(replace(checkpoint, embed=replace(checkpoint.embed or VECTORS, normalize=True)), pairs.texts)
    first, second = vectors[pairs.rows[:, 0]], vectors[pairs.rows[:, 1]]
    return spearman(pairs.scores, (first * second).sum(axis=1))


def moving(module: nn.Module) -> State:
    """A copy of what learns, in ordinary memory."""
    named = module.named_parameters()
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in named if tensor.requires_grad}


def move(module: nn.Module, state: State) -> None:
    """Put back what `moving` copied."""
    own = dict(module.named_parameters())
    with torch.no_grad():
        for name, tensor in state.items():
            own[name].copy_(tensor)


def _of(learner: nn.Module) -> BertModel:
    model = learner.model
    assert isinstance(model, BertModel)
    return model


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
