"""One process's work on a run: steps, evaluations, checkpoints, and the folder at the end."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import nn

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.finetuning.batches import EpochPlan, within_budget
from bertkit.finetuning.best_session import BestSession
from bertkit.finetuning.collapse import describe_collapse
from bertkit.finetuning.distill import Student, Teacher
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
    Best,
    State,
    best_so_far,
    load_state,
    read_state,
    snapshot,
)
from bertkit.finetuning.settings import FineTuneSettings
from bertkit.tasks.decision import Decision, Fitted
from bertkit.tasks.fixed import can_fix, fixed_batch
from bertkit.tasks.folder import task_json
from bertkit.tasks.task import LossSettings, Window
from bertkit.train.distributed import Ranks
from bertkit.train.loop import LoopSettings, Micro, StepReport
from bertkit.train.optimizer import OptimizerSettings, build_optimizer
from bertkit.train.runs import Progress, Run, read_optimizer, read_progress
from bertkit.train.schedule import Budget, Schedule
from bertkit.train.session import SessionSettings


def open_session(
    run: Run,
    prepared: Prepared,
    start: Checkpoint,
    settings: FineTuneSettings,
    ranks: Ranks,
    teacher: Teacher | None = None,
) -> tuple["FineTuneSession", Progress]:
    """A session where the run's folder stands: at its latest checkpoint, or at the beginning."""
    latest = run.latest()
    model = start.model
    if latest:
        load_state(model, read_state(latest / "model"))
    model.to(ranks.device).train()
    if settings.run.checkpointing:
        compute_twice(model)
    weights = loss_settings(prepared.task, prepared.train, settings)
    prior = None if latest else prepared.task.prior(prepared.train, weights)
    if prior is not None:
        start_at_prior(model, prepared.task, prior)
    learner = Student(model, prepared.task, weights, teacher) if teacher else Learner(model, prepared.task, weights)
    set_free(model, lowest_free(settings, len(model.encoder.layers), 1.0))
    scales = {f"model.{name}": scale for name, scale in rate_scales(model, settings.learning.layer_decay).items()}
    # Devlin's numbers but for the second moment's, where AdamW's usual 0.999 forgets slowly enough for small batches.
    name, weight_decay = settings.learning.optimizer, settings.learning.weight_decay
    wanted = OptimizerSettings(name=name, beta2=0.999, weight_decay=weight_decay, fused=True)
    optimizers = build_optimizer(learner, wanted, scales)
    progress = read_progress(latest) if latest else Progress()
    optimizers.load_state_tensors(read_optimizer(latest) if latest else {})
    run.truncate_metrics(progress.step)
    plan = EpochPlan(prepared.train.lengths, settings.learning.batch, settings.learning.seed)
    metric = settings.run.metric or prepared.task.main
    best = best_so_far(run, latest, metric) if latest else Best()
    session = FineTuneSession(
        run=run,
        optimizers=optimizers,
        ranks=ranks,
        metric=metric,
        best=best,
        prepared=prepared,
        start=start,
        learner=learner,
        settings=settings,
        plan=plan,
    )
    return session, progress


@dataclass(kw_only=True, eq=False)
class FineTuneSession(BestSession):
    """A task's windows in, the best model with its decision layer out."""

    prepared: Prepared
    start: Checkpoint
    learner: Learner
    settings: FineTuneSettings
    plan: EpochPlan

    @property
    def module(self) -> Learner:
        """The model with the task's loss."""
        return self.learner

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return self.settings.learning.total_steps(self.plan.steps)

    def done(self, progress: Progress) -> float:
        """The progress bar counts steps."""
        return progress.step

    def enough(self) -> bool:
        """Whether nothing has become better for too long."""
        patience = self.settings.run.patience
        return patience is not None and self.best.since >= patience

    def before_step(self, step: int) -> None:
        """Layers are unfrozen when it is time."""
        model = self.learner.model
        if self.settings.learning.unfreeze:
            set_free(model, lowest_free(self.settings, len(model.encoder.layers), step / self.total))

    def evaluation_due(self, step: int, *, last: bool) -> bool:
        """So many times in each epoch."""
        return evaluation_due(step, self.plan.steps, self.settings.run.evaluations)

    def snapshot(self) -> State:
        """All of the model's tensors."""
        return snapshot(self.learner.model)

    def wrap(self) -> nn.Module:
        """In half precision; layers that are computed twice would find other weights the second time."""
        return self.learner if self.settings.run.checkpointing else super().wrap()

    def micros(self, step: int) -> Sequence[Micro]:
        """A step's examples as tensors, in parts that the machine can hold."""
        chosen = self.plan.step(step)
        lengths = [self.plan.lengths[number] for number in chosen]
        parts = list(within_budget(lengths, self.settings.run.tokens))
        whole = len(parts) == 1 and self._replays
        return [self._micro([chosen[i] for i in part], step, number, whole) for number, part in enumerate(parts)]

    def evaluate(self) -> dict[str, float]:
        """All metrics on dev, and the loss, as the model stands."""
        outputs = self._outputs(half=self.on_cuda)
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
            return (fixed.pinned() if self.on_cuda else fixed,)
        return pack(windows, config).to(self.ranks.device).laid_out(), windows

    def end(self, progress: Progress, report: StepReport | None, *, finished: bool) -> FineTuned:
        """Take the best weights, fit the decision layer, and write the folder."""
        best = self.best if self.settings.run.keep == "best" else Best()
        if best.state is not None:
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
            best_step=best.step if best.state is not None else progress.step,
            steps=progress.step,
            finished=finished,
            said=(*self.prepared.said, *fitted.said, *judged.said, *notes),
            collapsed=collapsed,
        )
        return self.leave(result, self._checkpoint(fitted, result))

    def _checkpoint(self, fitted: Fitted, result: FineTuned) -> Checkpoint:
        record = {"scores": dict(result.scores), "best_step": result.best_step, "settings": self.settings.flat()}
        task = self.prepared.task
        kept = {"problem_type": task.row.problem_type} if task.row.problem_type else {}
        return replace(
            self.start,
            model=self.learner.model,
            labels=task.labels,
            embed=None,
            settings={**self.start.settings, **kept},
            task=task_json(task, fitted.decision, record),
        )

    @property
    def _weights(self) -> LossSettings:
        return self.learner.loss_settings

    @cached_property
    def _replays(self) -> bool:
        """Whether steps of a form that was seen are replayed: where what a step does never changes."""
        settings, model = self.settings, self.learner.model
        if not self.on_cuda or not settings.run.replay or settings.run.checkpointing or settings.learning.unfreeze:
            return False
        return not isinstance(self.learner, Student) and can_fix(self.prepared.task, self._weights, model.config)

    @cached_property
    def options(self) -> SessionSettings:
        """As the settings say."""
        learning, run = self.settings.learning, self.settings.run
        loop = LoopSettings(
            budget=Budget(steps=self.total),
            schedule=Schedule(
                peak=learning.learning_rate, warmup=round(learning.warmup * self.total), decay=learning.decay
            ),
            clip=learning.clip,
            autocast=self.on_cuda and run.checkpointing,
        )
        # On the CPU a thread that makes the next step would take time from this one.
        return SessionSettings(
            loop=loop,
            log_every=run.log_every,
            save_minutes=run.save_minutes,
            prefetch=self.on_cuda,
            replay=self._replays,
        )

    def _outputs(self, *, half: bool = False) -> Outputs:
        return run_model(self.learner.model, self.prepared.task, self.prepared.dev.flat, half=half)

    def _scores(self, outputs: Outputs, decision: Decision) -> dict[str, float]:
        task, dev = self.prepared.task, self.prepared.dev
        return task.score(dev.examples, task.decode(dev.examples, dev.flat, outputs.rows, decision))


def evaluation_due(step: int, per_epoch: int, evaluations: int) -> bool:
    """Whether one of an epoch's evaluations comes after `step` steps; the last one ends the epoch."""
    within = (step - 1) % per_epoch + 1
    return any(within == math.ceil(per_epoch * k / evaluations) for k in range(1, evaluations + 1))
