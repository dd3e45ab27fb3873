"""A pre-training run: a recipe and shards in, a model folder out, killed and resumed as often as you like."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.errors import RequestError
from bertkit.files import whole_file
from bertkit.folder_lock import claimed
from bertkit.model.model import BertModel
from bertkit.pretraining.batches import Examples, ExampleSource
from bertkit.pretraining.begun import begun_with, read_begun, refuse_other_vocabulary
from bertkit.pretraining.checks import SETTINGS, check_disk, check_folder, fitted, optimizer_settings
from bertkit.pretraining.evaluation import evaluate, in_words
from bertkit.pretraining.examples import to_inputs
from bertkit.pretraining.extend import extended
from bertkit.pretraining.learner import Learner, SavedModel, build_learner, load_start, parameter_bytes, whole_model
from bertkit.pretraining.objectives import LEFT
from bertkit.pretraining.planning.gauge import Gauge
from bertkit.pretraining.planning.memory import check_device_memory, check_host_memory, one_pass
from bertkit.pretraining.recipe import Recipe, recipe_toml, with_whole_paths
from bertkit.pretraining.samples import fill_samples
from bertkit.pretraining.stages import Stages, largest, read_stages
from bertkit.progress import Meter, ShowProgress, silent
from bertkit.text.shards.reader import ShardSet, open_shards
from bertkit.text.tokenizer import Tokenizer
from bertkit.train.average import Average, AverageSettings
from bertkit.train.distributed import Ranks, ranks
from bertkit.train.half import HalfPrecision
from bertkit.train.loop import LoopSettings, Micro, StepReport, train
from bertkit.train.optimizer import Optimizers, build_optimizer
from bertkit.train.prefetch import prefetching
from bertkit.train.records import mirror, write_code_version
from bertkit.train.replay import Replay
from bertkit.train.report import write_report
from bertkit.train.runs import Progress, Run, SavedTensors, read_optimizer, read_part, read_progress
from bertkit.train.schedule import Budget, Schedule
from bertkit.train.stop import asked_to_stop

AVERAGE = "average.safetensors"  # in a checkpoint


def pretrain(
    recipe: Recipe,
    out: Path | str,
    *,
    start: Path | str | None = None,
    resume: bool = False,
    device: str | None = None,
    show: ShowProgress = silent,
) -> StepReport | None:
    """Train as the recipe says; the model is in `out/model` at the end. The last step's report, if one was made.

    SIGTERM and Ctrl-C save a checkpoint and stop: then there is no `out/model` yet.
    """
    out, shards = Path(out), open_shards(recipe.shards)
    beginning = extended(load_start(Path(start), recipe), shards) if start else None
    recipe = fitted(recipe, shards, beginning)
    begun = begun_with(recipe, shards, beginning)
    check_folder(out, recipe, begun, resume=resume)
    with ranks(device) as place, asked_to_stop(place) as stop, claimed(out) if place.first else nullcontext():
        check_folder(out, recipe, begun, resume=resume)  # again: another process may have been there just now
        learner = build_learner(recipe, beginning)
        check_disk(out, parameter_bytes(learner.module), recipe.train.keep)
        session, progress = _open(recipe, Run(out), learner, shards, place, begun, resume)
        with (show if place.first else silent)("pre-training", 1.0) as meter:
            return session.train(progress, meter, stop)


def _open(
    recipe: Recipe,
    run: Run,
    learner: Learner,
    shards: ShardSet,
    place: Ranks,
    begun: dict[str, str],
    resume: bool,
) -> tuple["Session", Progress]:
    """A session where the run stands; nothing is written before all that can be refused has been looked at."""
    planned, heldout = read_stages(recipe.train.stages, recipe.train.batch, recipe.data), _heldout(recipe, shards)
    for stage in planned:
        place.share(range(stage.batch // stage.data.block))
    if place.device.type == "cpu":
        check_host_memory(recipe, largest(planned), parameter_bytes(learner.module))
    latest = run.latest() if resume else None
    with _damage_named(latest):
        tokenizer = _load_models(latest, learner) if latest else None
        memory = read_optimizer(latest) if latest else {}
        progress = read_progress(latest) if latest else Progress()
    if latest:
        refuse_other_vocabulary(latest, tokenizer, shards)
        begun = {name: text for name, text in begun.items() if name != "start"}  # nobody can say it any more
    stages = Stages(shards, planned, progress.begun)
    learner.module.to(place.device).train()
    if recipe.train.sharding == "fsdp" and place.size > 1:
        learner.shard(place)
    optimizers = build_optimizer(learner.module, optimizer_settings(recipe.train))
    average = Average(learner.module, _average_settings(recipe))
    with _damage_named(latest):
        optimizers.load_state_tensors(memory)
        if latest and average.settings.kind != "none":
            average.load_state_tensors(read_part(latest / AVERAGE))
    gauge = Gauge.of(recipe, place, progress)
    session = Session(recipe, run, learner, optimizers, average, stages, place, shards.tokenizer, heldout, gauge)
    if place.device.type == "cuda":
        session.rehearse()
    place.wait()  # all have seen the folder as it was
    if place.first:
        _begin_folder(run, recipe, progress, begun)
    return session, progress


def _begin_folder(run: Run, recipe: Recipe, progress: Progress, begun: dict[str, str]) -> None:
    run.folder.mkdir(parents=True, exist_ok=True)  # where another process made it, failed and took it away
    run.sweep()
    text = recipe_toml(with_whole_paths(recipe), begun | read_begun(run.folder / SETTINGS))
    with whole_file(run.folder / SETTINGS) as draft:
        draft.write_text(text, encoding="utf-8")
    run.truncate_metrics(progress.step)
    write_code_version(run.folder)


@dataclass(frozen=True)
class Session:
    """One process's part in a run, from its first step to its last."""

    recipe: Recipe
    run: Run
    learner: Learner
    optimizers: Optimizers
    average: Average
    stages: Stages
    place: Ranks
    tokenizer: Tokenizer
    heldout: ExampleSource | None = None
    gauge: Gauge | None = None
    shown: dict[str, str] = field(default_factory=dict)  # of the last evaluation, on the progress bar

    def train(self, start: Progress, meter: Meter, stop: Callable[[], bool]) -> StepReport | None:
        """Step until the budget is spent or somebody asks to stop; save either way."""
        report = None
        with prefetching(self.micros, start.step, self.place.device) as micros:
            weights, settings = self.learner.module.weights, self._loop_settings()
            take = Replay(self.place.device) if self._replays else None
            for report in train(self._module, weights, micros, self.optimizers, settings, self.place, start, take):
                if self._after(report, meter) and stop():
                    meter.stop()
                    self._save(report.progress)
                    self._tell()
                    return report
        self._finish(report.progress if report else start)
        return report

    def rehearse(self) -> None:
        """Compute the largest block once, to see whether it fits; nothing is learned, and nothing written."""
        stage = largest(self.stages.stages)

        def attempt(block: int, compiled: bool) -> None:
            source = self.stages.with_block(stage, block)
            stance = torch.compiler.set_stance("default" if compiled else "force_eager")
            half = torch.autocast(self.place.device.type, torch.bfloat16, enabled=self._loop_settings().autocast)
            with stance, half:
                one_pass(self._module, self.learner.module.weights, self._micro(source, 0).inputs)

        check_device_memory(attempt, stage, alone=self.place.size == 1)

    @cached_property
    def _module(self) -> nn.Module:
        return self._wrapped()

    def _after(self, report: StepReport, meter: Meter) -> bool:
        """Log, look and save when it is time to; whether the run is to go on."""
        settings, progress = self.recipe.train, report.progress
        spent = self._budget.progress(progress.step, progress.seconds)
        last = spent >= 1
        self.stages.move_on(progress.step, spent)
        self.average.update(progress.step, spent)
        if progress.step % settings.log_every == 0 or report.bad or last:
            self._log(report, meter)
        if progress.step % settings.evaluate_every == 0 or last:
            self._look(progress.step)
        if progress.step % settings.save_every == 0:
            self._save(progress)
        return not last

    def _look(self, step: int) -> None:
        """How it stands on held-out text, and what it would fill into a few blanks."""
        if self.heldout:
            numbers = self.evaluate()
            self.shown.update(in_words(numbers))
            line = {"step": step, "evaluation": _finite(numbers)}
            if self.average.means:
                with self.average.in_place():
                    line["averaged"] = _finite(self.evaluate())
            self._write(line)
        if "causal" not in self.recipe.data.objective:
            model = whole_model(self._filler)
            self._write({"step": step, "filled": fill_samples(model, self.tokenizer)} if self.place.first else {})

    @property
    def _filler(self) -> BertModel:
        """The model that fills blanks: the one that is trained, or else ELECTRA's generator."""
        model = self.learner.models["model"]
        return model if "masked_word" in model.heads else self.learner.models["generator"]

    def _tell(self) -> None:
        if self.place.first:
            write_report(self.run.folder)
            mirror(self.run.folder)

    def micros(self, step: int) -> list[Micro]:
        """The blocks of a step that are this rank's, as tensors."""
        source, numbers = self.stages.blocks(step)
        return [self._micro(source, number) for number in self.place.share(numbers)]

    def evaluate(self) -> dict[str, float]:
        """Means over held-out text with masks that never change, or {} without any; every rank gets the same."""
        if self.heldout is None:
            return {}
        return evaluate(self.learner.module, self.heldout, self._tensors, self.place)

    def _micro(self, source: ExampleSource, number: int) -> Micro:
        examples = source.block(number)
        sequences, tokens = len(examples.lengths), int(examples.lengths.sum())
        counts = {"mlm": len(examples.chosen), "causal": tokens - sequences, "pair": sequences, "rtd": tokens}
        counts["fill"] = len(examples.chosen[::LEFT])
        seed = (source.settings.seed * 1_000_003 + number) % 2**63
        return Micro(self._tensors(examples, source.settings.length), counts, tokens, seed=seed)

    def _tensors(self, examples: Examples, length: int | None = None) -> tuple[Any, ...]:
        causal = "causal" in self.recipe.data.objective
        fixed = (length or self.recipe.data.length) if self._on_cuda else None
        rate, pad_id = self.recipe.data.rate, self.recipe.model.pad_id
        return to_inputs(examples, self.place.device, causal=causal, fixed_length=fixed, rate=rate, pad_id=pad_id)

    def _wrapped(self) -> nn.Module:
        module: nn.Module = self.learner.module
        if self._on_cuda and self.recipe.train.sharding == "ddp":
            module = HalfPrecision(module)
        if self.place.size > 1 and self.recipe.train.sharding == "ddp":
            module = DistributedDataParallel(module)
        if self.recipe.train.compile and self._on_cuda:
            module.compile()
        return module

    @property
    def _replays(self) -> bool:
        return self._on_cuda and self.recipe.train.replay and self.place.size == 1

    @property
    def _on_cuda(self) -> bool:
        return self.place.device.type == "cuda"

    @property
    def _budget(self) -> Budget:
        return Budget(steps=self.recipe.train.steps, minutes=self.recipe.train.minutes)

    def _loop_settings(self) -> LoopSettings:
        train = self.recipe.train
        return LoopSettings(
            budget=self._budget,
            schedule=Schedule(peak=train.learning_rate, warmup=train.warmup, decay=train.decay),
            clip=train.clip,
            most_skipped=train.most_skipped,
            autocast=self._on_cuda and train.sharding == "fsdp",  # HalfPrecision does it where weights are whole
        )

    def _log(self, report: StepReport, meter: Meter) -> None:
        progress = report.progress
        speed = progress.tokens / max(progress.seconds, 1e-9)
        line: dict[str, Any] = {"step": progress.step, "seconds": round(progress.seconds, 3), "tokens": progress.tokens}
        line |= {"loss": _finite(report.losses), "right": dict(report.right), "rate": report.rate}
        line |= _finite({"norm": report.norm}) | {"tokens_per_second": round(speed), "skipped": progress.skipped}
        line |= self.gauge.read(progress) if self.gauge else {}
        self._write(line | ({"bad": report.bad} if report.bad else {}))
        losses = {name: f"{value:.3f}" for name, value in report.losses.items()}
        share = self._budget.progress(progress.step, progress.seconds)
        meter.update(min(share, 1.0), {**losses, **self.shown, "tokens/s": f"{speed:,.0f}"})

    def _write(self, line: dict[str, Any]) -> None:
        if self.place.first:
            self.run.append(line)

    def _save(self, progress: Progress) -> None:
        """Every rank gathers, the first one writes."""
        models = {name: whole_model(model) for name, model in self.learner.models.items()}
        memory, mean = self.optimizers.state_tensors(), self.average.state_tensors()
        if self.place.first:
            parts: dict[str, Any] = {name: SavedModel(model, self.tokenizer) for name, model in models.items()}
            parts |= {AVERAGE: SavedTensors(mean)} if self.average.settings.kind != "none" else {}
            progress = replace(progress, begun=tuple(self.stages.begun[1:]))
            self.run.save(progress, parts, memory, self.recipe.train.keep)
        self.place.wait()

    def _finish(self, progress: Progress) -> None:
        self._save(progress)
        with self.average.in_place():
            target, model = self.run.folder / "model", whole_model(self.learner.models["model"])
            if self.place.first and not target.exists():
                SavedModel(model, self.tokenizer).save(target)
        self._tell()
        self.place.wait()


def _heldout(recipe: Recipe, shards: ShardSet) -> ExampleSource | None:
    """Held-out text, its masks the same in every evaluation."""
    if recipe.heldout is None:
        return None
    held = open_shards(recipe.heldout)
    held.require_tokenizer(shards.tokenizer)
    return ExampleSource(held, replace(recipe.data, static=True, seed=1))


def _load_models(checkpoint: Path, learner: Learner) -> Tokenizer | None:
    """Weights are copied into the tensors that are there: what two models share stays shared. Gives their tokenizer."""
    tokenizer = None
    for name, model in learner.models.items():
        saved = load_checkpoint(checkpoint / name, heads={head: None for head in model.heads})
        model.load_state_dict(saved.model.state_dict())
        tokenizer = saved.tokenizer
    return tokenizer


@contextmanager
def _damage_named(checkpoint: Path | None) -> Iterator[None]:
    try:
        yield
    except (RequestError, RuntimeError) as error:  # torch's own, if shapes do not fit
        if checkpoint is None:
            raise
        first = str(error).strip().splitlines()[0]
        raise RequestError(
            f"{checkpoint} is damaged ({first}); remove that folder to go on from the checkpoint before it"
        ) from error


def _average_settings(recipe: Recipe) -> AverageSettings:
    train = recipe.train
    return AverageSettings(
        kind=train.average, every=train.average_every, decay=train.average_decay, tail=train.average_tail
    )


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
