"""The training session of a fine-tuning run: steps, evaluations, checkpoints, and the model folder at the end."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from bertkit.checkpoint.adapters import STORED
from bertkit.checkpoint.save_load import Checkpoint, save_adapter
from bertkit.finetuning.batches import EpochPlan
from bertkit.finetuning.best_session import BestSession
from bertkit.finetuning.distill import Student, Teacher
from bertkit.finetuning.evaluate import Outputs, run_model
from bertkit.finetuning.judge import cross_validate_decision, describe_collapse, still_improving
from bertkit.finetuning.learner import (
    TASK,
    Learner,
    freeze_below,
    low_rank,
    lowest_trainable,
    pack,
    start_at_prior,
    trained_scales,
    use_gradient_checkpointing,
)
from bertkit.finetuning.prepare import Prepared, loss_settings
from bertkit.finetuning.result import DecidedDev, FineTuned
from bertkit.finetuning.run_state import Best, SavedState, State, copied_to_host, read_state
from bertkit.finetuning.settings import FineTuneSettings
from bertkit.tasks.folder import task_checkpoint
from bertkit.tasks.shared.decision import Decision, FittedDecision
from bertkit.tasks.shared.fixed_batch import fixed_batch, supports_fixed_batches
from bertkit.tasks.task import LossSettings, Window
from bertkit.train.average import Average, AverageSettings
from bertkit.train.distributed import Ranks
from bertkit.train.loop import LoopSettings, MicroBatch, StepReport
from bertkit.train.low_rank import LowRank, trained_model
from bertkit.train.optimizer import Optimizers, build_optimizer
from bertkit.train.optimizer_rows import OptimizerSettings
from bertkit.train.records import read_records
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
    """A session with the progress of the run's folder: that of its latest checkpoint, or the start."""
    model, task = start.model.to(ranks.device).train(), prepared.task
    if settings.run.checkpointing:
        use_gradient_checkpointing(model)
    weights = loss_settings(task, prepared.train, settings)
    bias = task.prior_bias(prepared.train, weights)
    if bias is not None:
        start_at_prior(model, task, bias)
    learner = Student(model, task, weights, teacher) if teacher else Learner(model, task, weights)
    if settings.adapter.rank:
        module: Learner | LowRank = low_rank(learner, settings)
    else:
        freeze_below(model, lowest_trainable(settings, len(model.encoder.layers), 1.0))
        module = learner
    learning, metric = settings.learning, settings.run.metric or task.main_metric
    plan = EpochPlan(prepared.train.lengths, learning.batch, learning.seed, settings.run.tokens)
    session = FineTuneSession(
        run=run,
        ranks=ranks,
        module=module,
        start=start,
        plan=plan,
        metric=metric,
        prepared=prepared,
        settings=settings,
    )
    return session, session.restore_latest()


@dataclass(kw_only=True, eq=False)
class FineTuneSession(BestSession):
    """Fine-tunes a model for a task and saves the best weights with a decision layer."""

    ending = "scoring the best weights on dev and saving the model"
    module: Learner | LowRank
    prepared: Prepared
    settings: FineTuneSettings

    @property
    def learner(self) -> Learner:
        """The model with its loss, without the updates of a low rank."""
        learner = self.module.module if isinstance(self.module, LowRank) else self.module
        assert isinstance(learner, Learner)
        return learner

    def new_optimizers(self) -> Optimizers:
        """As in Devlin et al. 2018, unless the settings say otherwise."""
        learning = self.settings.learning
        settings = OptimizerSettings(
            name=learning.optimizer,
            beta1=learning.beta1,
            beta2=learning.beta2,
            weight_decay=learning.weight_decay,
            fused=True,
        )
        return build_optimizer(
            self.module, settings, trained_scales(self.module, self.learner.model, learning.layer_decay)
        )

    @property
    def total(self) -> int:
        """The number of steps of the run."""
        return self.settings.learning.total_steps(self.plan.steps)

    def progress_value(self, progress: Progress) -> float:
        """The progress bar counts steps, or as much of them as time allows."""
        return self.spent(progress) * self.total

    def progress_facts(self, report: StepReport) -> dict[str, str]:
        """The loss of the task is called loss."""
        facts = super().progress_facts(report)
        return {"loss" if name == TASK else name: value for name, value in facts.items()}

    def should_end_early(self) -> bool:
        """Whether `patience` evaluations have not improved the score."""
        patience = self.settings.run.patience
        return patience is not None and self.best.since >= patience

    def before_step(self, step: int) -> None:
        """Unfreeze layers by the setting `unfreeze`."""
        model = self.learner.model
        if self.settings.learning.unfreeze:
            freeze_below(model, lowest_trainable(self.settings, len(model.encoder.layers), step / self.total))

    @cached_property
    def average(self) -> Average:
        """The average of the weights over the last steps, by the setting `average`."""
        tail = self.settings.run.average
        return Average(self.module, AverageSettings(kind="tail" if tail else "none", tail=tail))

    def after_step(self, progress: Progress) -> None:
        """Add the weights to the average, where due."""
        self.average.update(progress.step, self.spent(progress))

    def evaluate_and_record(self, step: int) -> None:
        """Evaluate the average, if there is one."""
        with self.average.applied():
            super().evaluate_and_record(step)

    def checkpoint_parts(self) -> Mapping[str, Any]:
        """Also the average."""
        parts = super().checkpoint_parts()
        return {**parts, "average": SavedState(self.average.state_tensors())} if self.average.means else parts

    def restore(self, checkpoint: Path) -> None:
        """Also load the average."""
        super().restore(checkpoint)
        if (checkpoint / "average").is_dir():
            self.average.load_state_tensors(read_state(checkpoint / "average"))

    def evaluation_due(self, step: int, *, last: bool) -> bool:
        """By the setting `evaluations`, a number per epoch."""
        return evaluation_due(step, self.plan.steps, self.settings.run.evaluations)

    def snapshot(self) -> State:
        """A copy of all tensors of the model; with a low rank, of what is trained."""
        if isinstance(self.module, LowRank):
            return super().snapshot()
        return {name: copied_to_host(tensor) for name, tensor in self.module.model.state_dict().items()}

    def load_state(self, state: State) -> None:
        """Load a snapshot."""
        if isinstance(self.module, LowRank):
            return super().load_state(state)
        self.module.model.load_state_dict(dict(state))

    def wrap(self) -> nn.Module:
        """In half precision, but not with gradient checkpointing, whose second forward pass would use other weights."""
        return self.module if self.settings.run.checkpointing else super().wrap()

    def evaluate(self) -> dict[str, float]:
        """All metrics and the loss on dev with the current weights."""
        outputs = self._outputs(half=self.on_cuda)
        return self._scores(outputs, Decision()) | ({} if outputs.loss is None else {"loss": outputs.loss})

    def micro(self, chosen: Sequence[int], step: int, part: int, *, whole: bool) -> MicroBatch:
        """The windows of the chosen examples, as a fixed batch if steps are replayed and this is a whole step."""
        windows = [window for number in chosen for window in self.prepared.train.windows[number]]
        seed = (self.settings.learning.seed * 1_000_003 + step) * 1_009 + part
        counts = {TASK: self.prepared.task.count_targets(windows)}
        tokens = sum(len(window.ids) for window in windows)
        return MicroBatch(self._inputs(windows, whole and self._replays), counts, tokens, seed)

    def _inputs(self, windows: Sequence[Window], whole: bool) -> tuple[Any, ...]:
        """Inputs of `Learner.forward`: a batch on the device, so that a step has no copies; or a fixed batch."""
        config, task = self.learner.model.config, self.prepared.task
        if whole and (fixed := fixed_batch(task, windows, config, self._weights, self.settings.learning.batch)):
            return (fixed.pinned() if self.on_cuda else fixed,)
        return task.pack(pack(windows, config), windows).to(self.ranks.device).laid_out(), windows

    def end(self, progress: Progress, report: StepReport | None, *, finished: bool) -> FineTuned:
        """Load the best weights, or the average or last ones, fit the decision layer, and write the model folder."""
        best = self.best if self.settings.run.keep == "best" else Best()
        if best.state is not None:
            self.load_state(best.state)
        else:
            self.average.keep()
        if isinstance(self.module, LowRank):
            self.module.round_to(STORED)
        outputs, task, dev = self._outputs(), self.prepared.task, self.prepared.dev
        fitted = task.fit_decision(dev, outputs.rows, self.settings.run.abstain)
        decided = cross_validate_decision(task, dev, outputs.rows, fitted.decision)
        plain = task.decode(dev.examples, dev.flat, outputs.rows, Decision())
        learning = replace(self.settings.learning, epochs=self.total // self.plan.steps)
        collapsed, notes = describe_collapse(task, dev, outputs, plain, fitted.decision, learning)
        result = FineTuned(
            task=task.name,
            metric=self.metric,
            scores={**decided.scores, "loss": outputs.loss or 0.0},
            plain=task.score(dev.examples, plain),
            calibration=decided.calibration,
            best_step=best.step if best.state is not None else progress.step,
            steps=progress.step,
            finished=finished,
            notes=(*self.prepared.notes, *fitted.notes, *decided.notes, *notes, *self._longer_note(finished)),
            collapsed=collapsed if finished else None,
            examples=len(dev.examples),
            chosen_on_dev=best.state is not None,
            decided=DecidedDev(outputs.rows, fitted.decision),
        )
        return self.leave(result, self._checkpoint(fitted, result))

    def _checkpoint(self, fitted: FittedDecision, result: FineTuned) -> Checkpoint:
        record = {"scores": dict(result.scores), "best_step": result.best_step, "settings": self.settings.flat()}
        record |= {"sha256": dict(self.prepared.checksums), "columns": dict(self.prepared.columns)}
        task = self.prepared.task
        return task_checkpoint(self.start, self.learner.model, task, fitted.decision, record)

    def save_model(self, checkpoint: Checkpoint, folder: Path) -> None:
        """Write the model's folder; with a low rank, an adapter's."""
        if not isinstance(self.module, LowRank):
            return super().save_model(checkpoint, folder)
        assert self.start.folder is not None  # `refuse_rank` has looked
        save_adapter(checkpoint, folder, self.start.folder, self.settings.adapter.scaling, self.module.updates())

    def _longer_note(self, finished: bool) -> tuple[str, ...]:
        """A note if longer training would probably help."""
        evaluations = [line["evaluation"] for line in read_records(self.run.metrics).evaluations]
        ended_early = not finished or self.should_end_early()
        if ended_early or not still_improving(evaluations, self.metric):
            return ()
        learning, epochs = self.settings.learning, self.total // self.plan.steps
        longer = f"minutes={2 * learning.minutes:g}" if learning.minutes else f"epochs={2 * epochs}"
        return (f"the model was still improving on dev at the last step: try {longer}",)

    @property
    def _weights(self) -> LossSettings:
        return self.learner.loss_settings

    @cached_property
    def _replays(self) -> bool:
        """Whether steps can be replayed: only if all steps of a shape do the same."""
        settings, model = self.settings, self.learner.model
        if (
            isinstance(self.module, LowRank)
            or not self.on_cuda
            or not settings.run.replay
            or settings.run.checkpointing
            or settings.learning.unfreeze
        ):
            return False
        if model.config.recurrent:  # whose rectangles would contain the empty sequences of a fixed batch
            return False
        return not isinstance(self.module, Student) and supports_fixed_batches(
            self.prepared.task, self._weights, model.config
        )

    @cached_property
    def options(self) -> SessionSettings:
        """The options of the training loop from the settings."""
        learning, run = self.settings.learning, self.settings.run
        loop = LoopSettings(
            budget=Budget(steps=self.total, minutes=learning.minutes),
            schedule=Schedule(
                peak=learning.learning_rate,
                warmup=learning.warmup_steps or round(learning.warmup * self.total),
                decay=learning.decay,
            ),
            clip=learning.clip,
            autocast=self.on_cuda and run.checkpointing,
        )
        # No prefetch on the CPU: its thread would take time from the step that is computed.
        return SessionSettings(
            loop=loop,
            log_every=run.log_every,
            save_minutes=run.save_minutes,
            prefetch=self.on_cuda,
            replay=self._replays,
        )

    def _outputs(self, *, half: bool = False) -> Outputs:
        return run_model(trained_model(self.module), self.prepared.task, self.prepared.dev.flat, half=half)

    def _scores(self, outputs: Outputs, decision: Decision) -> dict[str, float]:
        task, dev = self.prepared.task, self.prepared.dev
        return task.score(dev.examples, task.decode(dev.examples, dev.flat, outputs.rows, decision))


def evaluation_due(step: int, per_epoch: int, evaluations: float) -> bool:
    """Whether one of the `evaluations` per epoch, at equal distances and at its end, is due after `step` steps."""
    share = Fraction(evaluations).limit_denominator(10**6) / per_epoch  # of an evaluation, with each step
    return math.floor(step * share) > math.floor((step - 1) * share)
