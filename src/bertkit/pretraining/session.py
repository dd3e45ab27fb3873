"""The part of one process in a pre-training run: examples, evaluation, checkpoints and the final model."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bertkit.pretraining.evaluation import evaluate, format_evaluation
from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.examples.batches import DataSettings, ExampleSource
from bertkit.pretraining.examples.inputs import to_inputs
from bertkit.pretraining.learner import SavedModel, whole_model
from bertkit.pretraining.objectives.table import LOSSES
from bertkit.pretraining.objectives.targets import PretrainingModule
from bertkit.pretraining.planning.gauge import Gauge
from bertkit.pretraining.planning.memory import check_device_memory, one_pass
from bertkit.pretraining.recipe import Recipe
from bertkit.pretraining.samples import fill_samples
from bertkit.pretraining.stages import Stages, largest
from bertkit.text.tokenizer import Tokenizer
from bertkit.train.average import Average, AverageSettings
from bertkit.train.distributed import full_tensor
from bertkit.train.half import HalfPrecision
from bertkit.train.loop import LoopSettings, MicroBatch, StepReport
from bertkit.train.optimizer import Optimizers, build_optimizer
from bertkit.train.records import write_tensorboard
from bertkit.train.report import write_report
from bertkit.train.runs import Progress, SavedTensors, read_tensor_file
from bertkit.train.schedule import Budget, Schedule
from bertkit.train.session import Session, SessionSettings, finite_values

AVERAGE_FILE = "average.safetensors"  # in a checkpoint
LOSS_PARAMETERS_FILE = "objective.safetensors"  # parameters that only a loss has


@dataclass(kw_only=True, eq=False)
class PretrainingSession(Session[StepReport | None]):
    """A pre-training run: stages of examples, averaged weights and held-out text."""

    module: PretrainingModule
    recipe: Recipe
    stages: Stages
    heldout: ExampleSource | None = None
    gauge: Gauge | None = None
    last_evaluation: dict[str, str] = field(default_factory=dict)  # beside the progress bar

    def new_optimizers(self) -> Optimizers:
        """The optimizers of the recipe."""
        return build_optimizer(self.module, self.recipe.train.optimizer_settings())

    @cached_property
    def average(self) -> Average:
        """The average of the weights over many steps, if the recipe has one."""
        train = self.recipe.train
        settings = AverageSettings(
            kind=train.average, every=train.average_every, decay=train.average_decay, tail=train.average_tail
        )
        return Average(self.module, settings)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the shards."""
        return self.stages.shards.tokenizer

    @cached_property
    def options(self) -> SessionSettings:
        """The settings of the recipe."""
        train = self.recipe.train
        loop = LoopSettings(
            budget=Budget(steps=train.steps, minutes=train.minutes),
            schedule=Schedule(peak=train.learning_rate, warmup=train.warmup, decay=train.decay),
            clip=train.clip,
            most_skipped=train.most_skipped,
            autocast=self.on_cuda and train.sharding == "fsdp",  # without FSDP, HalfPrecision casts
        )
        replay = self.on_cuda and train.replay and self.ranks.size == 1 and not self.recipe.model.recurrent
        log_every, save_every = train.log_every, train.save_every
        return SessionSettings(loop=loop, log_every=log_every, save_every=save_every, keep=train.keep, replay=replay)

    def check_memory(self) -> None:
        """Run the largest block once, to see whether it fits into the GPU's memory; no weight changes."""
        stage = largest(self.stages.stages)

        def attempt(block: int, compiled: bool) -> None:
            source = self.stages.with_block(stage, block)
            stance = torch.compiler.set_stance("default" if compiled else "force_eager")
            bfloat16 = torch.autocast(self.ranks.device.type, torch.bfloat16, enabled=self.options.loop.autocast)
            with stance, bfloat16:
                one_pass(self.wrapped, self.module.weights, self._micro_batch(source, 0).inputs)

        check_device_memory(attempt, stage, alone=self.ranks.size == 1)

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """The blocks of a step for this rank, as tensors."""
        source, numbers = self.stages.blocks(step)
        return [self._micro_batch(source, number) for number in self.ranks.share(numbers)]

    def after_step(self, progress: Progress) -> None:
        """Start the next stage and update the average, where due."""
        spent = self.spent(progress)
        self.stages.move_on(progress.step, spent)
        self.average.update(progress.step, spent)

    def evaluation_due(self, step: int, *, last: bool) -> bool:
        """Every `evaluate_every` steps, and at the end."""
        return last or step % self.recipe.train.evaluate_every == 0

    def evaluate_and_record(self, step: int) -> None:
        """Record the metrics on held-out text, and the predicted words of a few sentences."""
        if self.heldout:
            metrics = self.evaluate()
            self.last_evaluation.update(format_evaluation(metrics))
            line: dict[str, Any] = {"step": step, "evaluation": finite_values(metrics)}
            if self.average.means:
                with self.average.applied():
                    line["averaged"] = finite_values(self.evaluate())
            self.write(line)
        if filler := next((model for model in self.module.models.values() if model.fills), None):
            model = whole_model(filler)
            self.write({"step": step, "filled": fill_samples(model, self.tokenizer)} if self.ranks.first else {})

    def evaluate(self) -> dict[str, float]:
        """The metrics on held-out text with fixed masks, or {} without any; every rank gets the same."""
        if self.heldout is None:
            return {}
        return evaluate(self.module, self.heldout, self._tensors, self.ranks)

    def extra_metrics(self, report: StepReport) -> dict[str, Any]:
        """Accuracy on the training examples, and utilization of the device."""
        return {"right": dict(report.accuracies)} | (self.gauge.read(report.progress) if self.gauge else {})

    def progress_facts(self, report: StepReport) -> dict[str, str]:
        """Losses, the last evaluation, speed."""
        speed = report.progress.tokens / max(report.progress.seconds, 1e-9)
        return {**super().progress_facts(report), **self.last_evaluation, "tokens/s": f"{speed:,.0f}"}

    def wrap(self) -> nn.Module:
        """The module in bfloat16, with DDP, compiled: as the recipe and the device require."""
        train = self.recipe.train
        module: nn.Module = self.module
        if self.on_cuda and train.sharding == "ddp":
            module = HalfPrecision(module)
        if self.ranks.size > 1 and train.sharding == "ddp":
            module = DistributedDataParallel(module)
        if train.compile and self.on_cuda and not self.recipe.model.recurrent:
            module.compile()
        return module

    def restore(self, checkpoint: Path) -> None:
        """Also load the average; the weights themselves are loaded earlier, before they are sharded."""
        super().restore(checkpoint)
        if self.average.settings.kind != "none":
            self.average.load_state_tensors(read_tensor_file(checkpoint / AVERAGE_FILE))

    def checkpoint_parts(self) -> Mapping[str, Any]:
        """Every model as a folder, the average, and the parameters that only a loss has."""
        models = {name: whole_model(model) for name, model in self.module.models.items()}
        parts: dict[str, Any] = {name: SavedModel(model, self.tokenizer) for name, model in models.items()}
        if self.average.settings.kind != "none":
            parts[AVERAGE_FILE] = SavedTensors(self.average.state_tensors())
        if tensors := self.module.own_tensors():
            full = {name: full_tensor(tensor).detach().contiguous() for name, tensor in tensors.items()}
            parts[LOSS_PARAMETERS_FILE] = SavedTensors(full)
        return parts

    def saved_progress(self, progress: Progress) -> Progress:
        """The progress with the first steps of the stages so far."""
        return replace(progress, begun=tuple(self.stages.begun[1:]))

    def end(self, progress: Progress, report: StepReport | None, *, finished: bool) -> StepReport | None:
        """Write the report and, for a finished run, the last checkpoint and the model."""
        if finished:
            self.save(progress)
            with self.average.applied():
                target, model = self.run.folder / "model", whole_model(self.module.models["model"])
                if self.ranks.first and not target.exists():
                    SavedModel(model, self.tokenizer).save(target)
        if self.ranks.first:
            write_report(self.run.folder, LOSSES.values())
            write_tensorboard(self.run.folder)
        self.ranks.wait()
        return report

    def _micro_batch(self, source: ExampleSource, number: int) -> MicroBatch:
        examples = source.block(number)
        counts = {name: count for row in source.settings.rows for name, count in row.counts(examples).items()}
        seed = (source.settings.seed * 1_000_003 + number) % 2**63
        tensors = self._tensors(examples, source.settings)
        return MicroBatch(tensors, counts, int(examples.lengths.sum()), seed=seed)

    def _tensors(self, examples: Examples, data: DataSettings | None = None) -> tuple[Any, ...]:
        data, pad_id = data or self.recipe.data, self.recipe.model.pad_id
        # Recurrent layers compute rectangles, so that the empty sequences of a fixed layout would take time.
        fixed = data.length if self.on_cuda and not self.recipe.model.recurrent else None
        names, device = data.objective, self.ranks.device
        return to_inputs(examples, device, objective=names, fixed_length=fixed, rate=data.rate, pad_id=pad_id)
