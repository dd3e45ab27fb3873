"""One process's work on a run: steps, evaluations, checkpoints, and the folder at the end."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import nn

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.finetuning.batches import EpochPlan
from bertkit.finetuning.best_session import BestSession
from bertkit.finetuning.distill import Student, Teacher
from bertkit.finetuning.evaluate import Outputs, run_model
from bertkit.finetuning.judge import describe_collapse, judge_decision
from bertkit.finetuning.learner import (
    TASK,
    Learner,
    freeze_below,
    lowest_trainable,
    pack,
    rate_scales,
    start_at_prior,
    use_gradient_checkpointing,
)
from bertkit.finetuning.prepare import Prepared, loss_settings
from bertkit.finetuning.result import FineTuned
from bertkit.finetuning.run_state import (
    Best,
    State,
    copied_to_host,
)
from bertkit.finetuning.settings import FineTuneSettings
from bertkit.tasks.decision import Decision, Fitted
from bertkit.tasks.fixed import can_fix, fixed_batch
from bertkit.tasks.folder import task_json
from bertkit.tasks.task import LossSettings, Window
from bertkit.train.distributed import Ranks
from bertkit.train.loop import LoopSettings, MicroBatch, StepReport
from bertkit.train.optimizer import Optimizers, build_optimizer
from bertkit.train.optimizer_rows import OptimizerSettings
from bertkit.train.runs import Progress, Run
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
    model, task = start.model.to(ranks.device).train(), prepared.task
    if settings.run.checkpointing:
        use_gradient_checkpointing(model)
    weights = loss_settings(task, prepared.train, settings)
    prior = task.prior(prepared.train, weights)
    if prior is not None:
        start_at_prior(model, task, prior)
    learner = Student(model, task, weights, teacher) if teacher else Learner(model, task, weights)
    freeze_below(model, lowest_trainable(settings, len(model.encoder.layers), 1.0))
    learning, metric = settings.learning, settings.run.metric or task.main
    plan = EpochPlan(prepared.train.lengths, learning.batch, learning.seed, settings.run.tokens)
    session = FineTuneSession(
        run=run,
        ranks=ranks,
        module=learner,
        start=start,
        plan=plan,
        metric=metric,
        prepared=prepared,
        settings=settings,
    )
    return session, session.restore_latest()


@dataclass(kw_only=True, eq=False)
class FineTuneSession(BestSession):
    """A task's windows in, the best model with its decision layer out."""

    module: Learner
    prepared: Prepared
    settings: FineTuneSettings

    def new_optimizers(self) -> Optimizers:
        """Devlin's settings, but AdamW's usual beta2 of 0.999: slow enough for small batches."""
        learning = self.settings.learning
        settings = OptimizerSettings(
            name=learning.optimizer, beta2=0.999, weight_decay=learning.weight_decay, fused=True
        )
        scales = rate_scales(self.module.model, learning.layer_decay)
        return build_optimizer(self.module, settings, {f"model.{name}": scale for name, scale in scales.items()})

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return self.settings.learning.total_steps(self.plan.steps)

    def progress_value(self, progress: Progress) -> float:
        """The progress bar counts steps."""
        return progress.step

    def should_end_early(self) -> bool:
        """Whether nothing has become better for too long."""
        patience = self.settings.run.patience
        return patience is not None and self.best.since >= patience

    def before_step(self, step: int) -> None:
        """Layers are unfrozen when it is time."""
        model = self.module.model
        if self.settings.learning.unfreeze:
            freeze_below(model, lowest_trainable(self.settings, len(model.encoder.layers), step / self.total))

    def evaluation_due(self, step: int, *, last: bool) -> bool:
        """So many times in each epoch."""
        return evaluation_due(step, self.plan.steps, self.settings.run.evaluations)

    def snapshot(self) -> State:
        """All of the model's tensors."""
        return {name: copied_to_host(tensor) for name, tensor in self.module.model.state_dict().items()}

    def load_state(self, state: State) -> None:
        """All of the model's tensors."""
        self.module.model.load_state_dict(dict(state))

    def wrap(self) -> nn.Module:
        """In half precision; layers that are computed twice would find other weights the second time."""
        return self.module if self.settings.run.checkpointing else super().wrap()

    def evaluate(self) -> dict[str, float]:
        """All metrics on dev, and the loss, as the model stands."""
        outputs = self._outputs(half=self.on_cuda)
        return self._scores(outputs, Decision()) | ({} if outputs.loss is None else {"loss": outputs.loss})

    def micro(self, chosen: Sequence[int], step: int, part: int, *, whole: bool) -> MicroBatch:
        """The windows of the chosen examples; those of a whole step in a fixed form where steps are replayed."""
        windows = [window for number in chosen for window in self.prepared.train.windows[number]]
        seed = (self.settings.learning.seed * 1_000_003 + step) * 1_009 + part
        counts = {TASK: self.prepared.task.targets(windows)}
        tokens = sum(len(window.ids) for window in windows)
        return MicroBatch(self._inputs(windows, whole and self._replays), counts, tokens, seed)

    def _inputs(self, windows: Sequence[Window], whole: bool) -> tuple[Any, ...]:
        """On the device, laid out, so that nothing is copied in the middle of a step; a whole step in a fixed form."""
        config, task = self.module.model.config, self.prepared.task
        if whole and (fixed := fixed_batch(task, windows, config, self._weights, self.settings.learning.batch)):
            return (fixed.pinned() if self.on_cuda else fixed,)
        return pack(windows, config).to(self.ranks.device).laid_out(), windows

    def end(self, progress: Progress, report: StepReport | None, *, finished: bool) -> FineTuned:
        """Take the best weights, fit the decision layer, and write the folder."""
        best = self.best if self.settings.run.keep == "best" else Best()
        if best.state is not None:
            self.load_state(best.state)
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
            said=(*self.prepared.said, *fitted.notes, *judged.said, *notes),
            collapsed=collapsed,
        )
        return self.leave(result, self._checkpoint(fitted, result))

    def _checkpoint(self, fitted: Fitted, result: FineTuned) -> Checkpoint:
        record = {"scores": dict(result.scores), "best_step": result.best_step, "settings": self.settings.flat()}
        task = self.prepared.task
        kept = {"problem_type": task.row.problem_type} if task.row.problem_type else {}
        return replace(
            self.start,
            model=self.module.model,
            labels=task.labels,
            embed=None,
            settings={**self.start.settings, **kept},
            task=task_json(task, fitted.decision, record),
        )

    @property
    def _weights(self) -> LossSettings:
        return self.module.loss_settings

    @cached_property
    def _replays(self) -> bool:
        """Whether steps of a form that was seen are replayed: where what a step does never changes."""
        settings, model = self.settings, self.module.model
        if not self.on_cuda or not settings.run.replay or settings.run.checkpointing or settings.learning.unfreeze:
            return False
        return not isinstance(self.module, Student) and can_fix(self.prepared.task, self._weights, model.config)

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
        return run_model(self.module.model, self.prepared.task, self.prepared.dev.flat, half=half)

    def _scores(self, outputs: Outputs, decision: Decision) -> dict[str, float]:
        task, dev = self.prepared.task, self.prepared.dev
        return task.score(dev.examples, task.decode(dev.examples, dev.flat, outputs.rows, decision))


def evaluation_due(step: int, per_epoch: int, evaluations: int) -> bool:
    """Whether one of an epoch's evaluations comes after `step` steps; the last one ends the epoch."""
    within = (step - 1) % per_epoch + 1
    return any(within == math.ceil(per_epoch * k / evaluations) for k in range(1, evaluations + 1))
