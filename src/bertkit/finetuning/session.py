"""One process's work on a run: steps, evaluations, checkpoints, and the folder at the end."""

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any

from torch import nn

from bertkit.checkpoint.save_load import Checkpoint, save_checkpoint
from bertkit.errors import RequestError
from bertkit.finetuning.batches import EpochPlan, within_budget
from bertkit.finetuning.collapse import describe_collapse
from bertkit.finetuning.distill import Pupil, Teacher
from bertkit.finetuning.evaluate import Outputs, run_model
from bertkit.finetuning.fit_decision import judge_decision
from bertkit.finetuning.learner import (
    TASK,
    Learner,
    compute_twice,
    lowest_free,
    pack,
    rate_scales,
    set_free,
    start_at_prior,
)
from bertkit.finetuning.prepare import Prepared, loss_settings
from bertkit.finetuning.result import FineTuned
from bertkit.finetuning.run_state import (
    RESULT,
    Best,
    SavedState,
    best_so_far,
    load_state,
    read_state,
    snapshot,
    write_json,
)
from bertkit.finetuning.settings import FineTuneSettings
from bertkit.progress import Meter
from bertkit.tasks.decision import Decision, Fitted
from bertkit.tasks.fixed import can_fix, fixed_batch
from bertkit.tasks.folder import task_json
from bertkit.tasks.task import LossSettings, Window
from bertkit.train.distributed import Ranks
from bertkit.train.half import HalfPrecision
from bertkit.train.loop import LoopSettings, Micro, StepReport, train
from bertkit.train.optimizer import Optimizers, OptimizerSettings, build_optimizer
from bertkit.train.prefetch import prefetching
from bertkit.train.replay import Replay
from bertkit.train.runs import Progress, Run, read_optimizer, read_progress
from bertkit.train.schedule import Budget, Schedule


def open_session(
    run: Run,
    prepared: Prepared,
    start: Checkpoint,
    settings: FineTuneSettings,
    place: Ranks,
    teacher: Teacher | None = None,
) -> tuple["Session", Progress, Best]:
    """A session where the run's folder stands: at its latest checkpoint, or at the beginning."""
    latest = run.latest()
    model = start.model
    if latest:
        load_state(model, read_state(latest / "model"))
    model.to(place.device).train()
    if settings.run.checkpointing:
        compute_twice(model)
    weights = loss_settings(prepared.task, prepared.train, settings)
    prior = None if latest else prepared.task.prior(prepared.train, weights)
    if prior is not None:
        start_at_prior(model, prepared.task, prior)
    learner = Pupil(model, prepared.task, weights, teacher) if teacher else Learner(model, prepared.task, weights)
    set_free(model, lowest_free(settings, len(model.encoder.layers), 1.0))
    scales = {f"model.{name}": scale for name, scale in rate_scales(model, settings.learning.layer_decay).items()}
    # Devlin's numbers but for the second moment's, where AdamW's usual 0.999 forgets slowly enough for small batches.
    wanted = OptimizerSettings(beta2=0.999, weight_decay=settings.learning.weight_decay, fused=True)
    optimizers = build_optimizer(learner, wanted, scales)
    progress = read_progress(latest) if latest else Progress()
    optimizers.load_state_tensors(read_optimizer(latest) if latest else {})
    run.truncate_metrics(progress.step)
    plan = EpochPlan(prepared.train.lengths, settings.learning.batch, settings.learning.seed)
    session = Session(run, prepared, start, learner, optimizers, settings, plan, place)
    return session, progress, best_so_far(run, latest, session.metric) if latest else Best()


@dataclass(frozen=True)
class Session:
    """One process's work on a run, from its first step to its last."""

    run: Run
    prepared: Prepared
    start: Checkpoint
    learner: Learner
    optimizers: Optimizers
    settings: FineTuneSettings
    plan: EpochPlan
    place: Ranks

    @property
    def metric(self) -> str:
        """The one that is watched."""
        return self.settings.run.metric or self.prepared.task.main

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return self.settings.learning.total_steps(self.plan.steps)

    def train(self, start: Progress, best: Best, meter: Meter, stop: Callable[[], bool]) -> FineTuned:
        """Step until all epochs are done, nothing gets better, or somebody asks to stop."""
        progress, saved = start, time.monotonic()
        if not self._hopeless(best):
            for report in self.steps(start):
                progress = report.progress
                best = self._after(report, best, meter)
                asked = stop() and progress.step < self.total
                if asked or time.monotonic() - saved >= 60 * self.settings.run.save_minutes:
                    self._save(progress, best)
                    saved = time.monotonic()
                if asked:
                    meter.stop()
                    return self._end(progress, best, finished=False)
                if self._hopeless(best):
                    break
        return self._end(progress, best, finished=True)

    def steps(self, start: Progress) -> Iterator[StepReport]:
        """Every step from `start` on; on CUDA the next one is made, and graphs are replayed, beside the computing."""
        module, settings = self._wrapped(), self._loop_settings()
        ahead = prefetching(self.micros, start.step, self.place.device) if self._on_cuda else nullcontext(self.micros)
        with ahead as micros:

            def freed(step: int) -> Sequence[Micro]:
                self._set_free(step)
                return micros(step)

            take = Replay(self.place.device) if self._replays else None
            yield from train(module, {TASK: 1.0}, freed, self.optimizers, settings, self.place, start, take)

    def micros(self, step: int) -> Sequence[Micro]:
        """A step's examples as tensors, in parts that the machine can hold."""
        chosen = self.plan.step(step)
        lengths = [self.plan.lengths[number] for number in chosen]
        parts = list(within_budget(lengths, self.settings.run.tokens))
        whole = len(parts) == 1 and self._replays
        return [self._micro([chosen[i] for i in part], step, number, whole) for number, part in enumerate(parts)]

    def evaluate(self) -> dict[str, float]:
        """All metrics on dev, and the loss, as the model stands."""
        outputs = self._outputs(half=self._on_cuda)
        return self._scores(outputs, Decision()) | ({} if outputs.loss is None else {"loss": outputs.loss})

    def _micro(self, numbers: Sequence[int], step: int, part: int, whole: bool) -> Micro:
        windows = [window for number in numbers for window in self.prepared.train.windows[number]]
        seed = (self.settings.learning.seed * 1_000_003 + step) * 1_009 + part
        counts = {TASK: self.prepared.task.targets(windows)}
        tokens = sum(len(window.ids) for window in windows)
        return Micro(self._inputs(windows, whole), counts, tokens, seed)

    def _inputs(self, windows: Sequence[Window], whole: bool) -> tuple[Any, ...]:
        """On the device, laid out, so that nothing is copied in the middle of a step; a whole step in a fixed form."""
        config, task = self.learner.model.config, self.prepared.task
        if whole and (fixed := fixed_batch(task, windows, config, self._weights, self.settings.learning.batch)):
            return (fixed.pinned() if self._on_cuda else fixed,)
        return pack(windows, config).to(self.place.device).laid_out(), windows

    def _set_free(self, step: int) -> None:
        """Layers are set free when it is time."""
        model = self.learner.model
        if self.settings.learning.unfreeze:
            set_free(model, lowest_free(self.settings, len(model.encoder.layers), step / self.total))

    @property
    def _weights(self) -> LossSettings:
        return self.learner.loss_settings

    @cached_property
    def _replays(self) -> bool:
        """Whether steps of a form that was seen are replayed: where what a step does never changes."""
        settings, model = self.settings, self.learner.model
        if not self._on_cuda or not settings.run.replay or settings.run.checkpointing or settings.learning.unfreeze:
            return False
        return not isinstance(self.learner, Pupil) and can_fix(self.prepared.task, self._weights, model.config)

    def _after(self, report: StepReport, best: Best, meter: Meter) -> Best:
        """Log, and evaluate when it is time to."""
        step = report.progress.step
        if step % self.settings.run.log_every == 0 or report.bad or step == self.total:
            self._log(report)
            facts = {"loss": f"{report.losses[TASK]:.3f}"} | ({self.metric: f"{best.score:.4f}"} if best.state else {})
            meter.update(step, facts)  # not oftener: a GPU would be waited for
        if not evaluation_due(step, self.plan.steps, self.settings.run.evaluations):
            return best
        scores = self.evaluate()
        if self.metric not in scores:
            raise RequestError(f"unknown metric '{self.metric}'; choose from: {', '.join(scores)}")
        self._write({"step": step, "evaluation": {name: _finite(value) for name, value in scores.items()}})
        loss = scores.get("loss", math.nan)
        return best.after(step, self.metric, scores[self.metric], loss, partial(snapshot, self.learner.model))

    def _hopeless(self, best: Best) -> bool:
        patience = self.settings.run.patience
        return patience is not None and best.since >= patience

    def _wrapped(self) -> nn.Module:
        # Layers that are computed twice would find other weights the second time.
        return HalfPrecision(self.learner) if self._on_cuda and not self.settings.run.checkpointing else self.learner

    def _loop_settings(self) -> LoopSettings:
        learning = self.settings.learning
        warmup = round(learning.warmup * self.total)
        return LoopSettings(
            budget=Budget(steps=self.total),
            schedule=Schedule(peak=learning.learning_rate, warmup=warmup, decay=learning.decay),
            clip=learning.clip,
            autocast=self._on_cuda and self.settings.run.checkpointing,
        )

    @property
    def _on_cuda(self) -> bool:
        return self.place.device.type == "cuda"

    def _outputs(self, *, half: bool = False) -> Outputs:
        return run_model(self.learner.model, self.prepared.task, self.prepared.dev.flat, half=half)

    def _scores(self, outputs: Outputs, decision: Decision) -> dict[str, float]:
        task, dev = self.prepared.task, self.prepared.dev
        return task.score(dev.examples, task.decode(dev.examples, dev.flat, outputs.rows, decision))

    def _log(self, report: StepReport) -> None:
        progress = report.progress
        speed = progress.tokens / max(progress.seconds, 1e-9)
        line: dict[str, Any] = {"step": progress.step, "seconds": round(progress.seconds, 3), "tokens": progress.tokens}
        line |= {"loss": {TASK: _finite(report.losses[TASK])}, "rate": report.rate, "norm": _finite(report.norm)}
        line |= {"tokens_per_second": round(speed), "skipped": progress.skipped}
        self._write(line | ({"bad": report.bad} if report.bad else {}))

    def _write(self, line: Mapping[str, Any]) -> None:
        self.run.append(line)

    def _save(self, progress: Progress, best: Best) -> None:
        parts = {"model": SavedState(snapshot(self.learner.model))}
        if best.state is not None:
            parts["best"] = SavedState(best.state)
        self.run.save(progress, parts, self.optimizers.state_tensors(), keep=1)

    def _end(self, progress: Progress, best: Best, *, finished: bool) -> FineTuned:
        """Take the best weights, fit the decision layer, and write the folder."""
        if best.state is not None and self.settings.run.keep == "best":
            load_state(self.learner.model, best.state)
        outputs, task, dev = self._outputs(), self.prepared.task, self.prepared.dev
        fitted = task.fit_decision(dev, outputs.rows, self.settings.run.abstain)
        judged = judge_decision(task, dev, outputs.rows, fitted.decision)
        plain = task.decode(dev.examples, dev.flat, outputs.rows, Decision())
        learning = replace(self.settings.learning, epochs=self.total // self.plan.steps)
        collapsed, notes = describe_collapse(task, dev, outputs, plain, fitted.decision, learning)
        result = FineTuned(
            task=task.name,
            metric=self.metric,
            scores={**judged.scores, "loss": outputs.loss or 0.0},
            plain=task.score(dev.examples, plain),
            calibration=judged.calibration,
            best_step=best.step if best.state is not None and self.settings.run.keep == "best" else progress.step,
            steps=progress.step,
            finished=finished,
            said=(*self.prepared.said, *fitted.said, *judged.said, *notes),
            collapsed=collapsed,
        )
        self._write_model(fitted, result)
        write_json(self.run.folder / RESULT, asdict(result))
        if finished:  # nothing will go on from them
            shutil.rmtree(self.run.folder / "checkpoints", ignore_errors=True)
        return result

    def _write_model(self, fitted: Fitted, result: FineTuned) -> None:
        record = {"scores": dict(result.scores), "best_step": result.best_step, "settings": self.settings.flat()}
        task = self.prepared.task
        kept = {"problem_type": task.row.problem_type} if task.row.problem_type else {}
        checkpoint = replace(
            self.start,
            model=self.learner.model,
            labels=task.labels,
            embed=None,
            settings={**self.start.settings, **kept},
            task=task_json(task, fitted.decision, record),
        )
        target = self.run.folder / "model"
        if target.exists():  # of a session that was stopped
            shutil.rmtree(target)
        save_checkpoint(checkpoint, target)


def evaluation_due(step: int, per_epoch: int, evaluations: int) -> bool:
    """Whether one of an epoch's evaluations comes after `step` steps; the last one ends the epoch."""
    within = (step - 1) % per_epoch + 1
    return any(within == math.ceil(per_epoch * k / evaluations) for k in range(1, evaluations + 1))


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
