"""A pre-training run: a recipe and shards in, a model folder out, killed and resumed as often as you like."""

import json
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.errors import RequestError
from bertkit.files import whole_file
from bertkit.pretrain.batches import Examples, ExampleSource
from bertkit.pretrain.checks import SETTINGS, check_disk, check_folder, fitted
from bertkit.pretrain.examples import to_inputs
from bertkit.pretrain.gauge import Gauge
from bertkit.pretrain.learner import Learner, SavedModel, build_learner, load_start, parameter_bytes, whole_model
from bertkit.pretrain.recipe import Recipe, recipe_toml
from bertkit.pretrain.samples import fill_samples
from bertkit.progress import Meter, ShowProgress, silent
from bertkit.text.shards import ShardSet, open_shards
from bertkit.text.tokenizer import Tokenizer
from bertkit.train.distributed import Ranks, ranks
from bertkit.train.half import HalfPrecision
from bertkit.train.loop import LoopSettings, Micro, StepReport, train
from bertkit.train.optimizer import Optimizers, OptimizerSettings, build_optimizer
from bertkit.train.records import mirror, write_code_version
from bertkit.train.report import write_report
from bertkit.train.runs import Progress, Run, read_optimizer, read_progress
from bertkit.train.schedule import Budget, Schedule

EVALUATION_BLOCKS = 16


def pretrain(
    recipe: Recipe,
    out: Path,
    *,
    start: Path | None = None,
    resume: bool = False,
    device: str | None = None,
    show: ShowProgress = silent,
) -> StepReport | None:
    """Train as the recipe says; the model is in `out/model` at the end. The last step's report, if one was made.

    SIGTERM and Ctrl-C save a checkpoint and stop: then there is no `out/model` yet.
    """
    shards = open_shards(recipe.shards)
    beginning = load_start(start, recipe) if start else None
    recipe = fitted(recipe, shards, beginning)
    check_folder(out, recipe, resume=resume)
    with ranks(device) as place, _asked_to_stop(place) as stop:
        learner = build_learner(recipe, beginning)
        check_disk(out, parameter_bytes(learner.module), recipe.train.keep)
        session, progress = _open(recipe, Run(out), learner, shards, place, resume)
        with (show if place.first else silent)("pre-training", 1.0) as meter:
            return session.train(progress, meter, stop)


def _open(
    recipe: Recipe, run: Run, learner: Learner, shards: ShardSet, place: Ranks, resume: bool
) -> tuple["Session", Progress]:
    """A session where the run stands; nothing is written before all that can be refused has been looked at."""
    source, heldout = ExampleSource(shards, recipe.data), _heldout(recipe, shards)
    place.share(range(recipe.train.batch // recipe.data.block))
    latest = run.latest() if resume else None
    with _damage_named(latest):
        if latest:
            _load_models(latest, learner)
        memory = read_optimizer(latest) if latest else {}
        progress = read_progress(latest) if latest else Progress()
    learner.module.to(place.device).train()
    if recipe.train.sharding == "fsdp" and place.size > 1:
        learner.shard(place)
    optimizers = build_optimizer(learner.module, _optimizer_settings(recipe))
    with _damage_named(latest):
        optimizers.load_state_tensors(memory)
    place.wait()  # all have seen the folder as it was
    if place.first:
        _begin_folder(run, recipe, progress)
    return Session(
        recipe, run, learner, optimizers, source, place, shards.tokenizer, heldout, Gauge.of(recipe, place)
    ), progress


def _begin_folder(run: Run, recipe: Recipe, progress: Progress) -> None:
    run.folder.mkdir(parents=True, exist_ok=True)
    run.sweep()
    with whole_file(run.folder / SETTINGS) as draft:
        draft.write_text(recipe_toml(recipe), encoding="utf-8")
    run.truncate_metrics(progress.step)
    write_code_version(run.folder)


@dataclass(frozen=True)
class Session:
    """One process's part in a run, from its first step to its last."""

    recipe: Recipe
    run: Run
    learner: Learner
    optimizers: Optimizers
    source: ExampleSource
    place: Ranks
    tokenizer: Tokenizer
    heldout: ExampleSource | None = None
    gauge: Gauge | None = None

    def train(self, start: Progress, meter: Meter, stop: Callable[[], bool]) -> StepReport | None:
        """Step until the budget is spent or somebody asks to stop; save either way."""
        report = None
        with self._prefetching(start.step) as micros:
            weights, settings = self.learner.module.weights, self._loop_settings()
            for report in train(self._wrapped(), weights, micros, self.optimizers, settings, self.place, start):
                if self._after(report, meter) and stop():
                    self._save(report.progress)
                    self._tell()
                    return report
        self._finish(report.progress if report else start)
        return report

    def _after(self, report: StepReport, meter: Meter) -> bool:
        """Log, look and save when it is time to; whether the run is to go on."""
        settings, progress = self.recipe.train, report.progress
        last = self._budget.progress(progress.step, progress.seconds) >= 1
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
            self._write({"step": step, "evaluation": self.evaluate()})
        if "causal" not in self.recipe.data.objective:
            model = whole_model(self.learner.models.get("generator", self.learner.models["model"]))
            self._write({"step": step, "filled": fill_samples(model, self.tokenizer)} if self.place.first else {})

    def _tell(self) -> None:
        if self.place.first:
            write_report(self.run.folder)
            mirror(self.run.folder)

    def micros(self, step: int) -> list[Micro]:
        """The blocks of a step that are this rank's, as tensors."""
        per_step = self.recipe.train.batch // self.recipe.data.block
        return [self._micro(number) for number in self.place.share(range(step * per_step, (step + 1) * per_step))]

    def evaluate(self) -> dict[str, float]:
        """Means over held-out text with masks that never change, or {} without any; every rank gets the same."""
        if self.heldout is None:
            return {}
        module = self.learner.module.eval()
        totals: dict[str, torch.Tensor] = {}
        with torch.no_grad(), torch.autocast(self.place.device.type, torch.bfloat16, enabled=self._on_cuda):
            for number in range(EVALUATION_BLOCKS):
                torch.manual_seed(number)
                sums = module(*self._tensors(self.heldout.block(number)))
                for name, values in sums.items():
                    totals[name] = totals.get(name, 0) + torch.stack([v.double() for v in values]).cpu()
        module.train()
        return _means(totals)

    def _micro(self, number: int) -> Micro:
        examples = self.source.block(number)
        sequences, tokens = len(examples.lengths), int(examples.lengths.sum())
        counts = {"mlm": len(examples.chosen), "causal": tokens - sequences, "pair": sequences, "rtd": tokens}
        seed = self.recipe.train.seed * 1_000_003 + number
        return Micro(self._tensors(examples), counts, tokens, seed=seed)

    def _tensors(self, examples: Examples) -> tuple[Any, ...]:
        causal = "causal" in self.recipe.data.objective
        fixed = self.recipe.data.length if self._on_cuda else None
        rate, pad_id = self.recipe.data.rate, self.recipe.model.pad_id
        return to_inputs(examples, self.place.device, causal=causal, fixed_length=fixed, rate=rate, pad_id=pad_id)

    def _wrapped(self) -> nn.Module:
        module: nn.Module = self.learner.module
        if self._on_cuda and self.recipe.train.sharding == "ddp":
            module = HalfPrecision(module)
        if self.place.size > 1 and self.recipe.train.sharding == "ddp":
            module = DistributedDataParallel(module)
        # ELECTRA's pair of models is compiled anew at every step by torch 2.11 (docs/LOG.md): there it stays as it is.
        if self.recipe.train.compile and self._on_cuda and "rtd" not in self.recipe.data.objective:
            module.compile()
        return module

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
            autocast=self._on_cuda and train.sharding == "fsdp",  # HalfPrecision does it where weights are whole
        )

    @contextmanager
    def _prefetching(self, first: int) -> Iterator[Callable[[int], Sequence[Micro]]]:
        """The next step is made while this one is computed; its errors come when it is asked for."""
        with ThreadPoolExecutor(1) as pool:
            ahead: dict[int, Future[list[Micro]]] = {first: pool.submit(self.micros, first)}

            def get(step: int) -> list[Micro]:
                now = ahead.pop(step, None) or pool.submit(self.micros, step)
                ahead[step + 1] = pool.submit(self.micros, step + 1)
                return now.result()

            yield get

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
        meter.update(min(share, 1.0), {**losses, "tokens/s": f"{speed:,.0f}"})

    def _write(self, line: dict[str, Any]) -> None:
        if self.place.first:
            with self.run.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _save(self, progress: Progress) -> None:
        """Every rank gathers, the first one writes."""
        models = {name: whole_model(model) for name, model in self.learner.models.items()}
        memory = self.optimizers.state_tensors()
        if self.place.first:
            parts = {name: SavedModel(model, self.tokenizer) for name, model in models.items()}
            self.run.save(progress, parts, memory, self.recipe.train.keep)
        self.place.wait()

    def _finish(self, progress: Progress) -> None:
        self._save(progress)
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


def _load_models(checkpoint: Path, learner: Learner) -> None:
    """Weights are copied into the tensors that are there: what two models share stays shared."""
    for name, model in learner.models.items():
        heads = {head: None for head in model.heads}
        model.load_state_dict(load_checkpoint(checkpoint / name, heads=heads).model.state_dict())


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


def _optimizer_settings(recipe: Recipe) -> OptimizerSettings:
    name: Any = recipe.train.optimizer
    return OptimizerSettings(name=name, weight_decay=recipe.train.weight_decay)


def _means(totals: dict[str, torch.Tensor]) -> dict[str, float]:
    means = {}
    for name, (loss, count, right) in ((name, total.tolist()) for name, total in totals.items()):
        means[f"{name}_loss"] = loss / max(count, 1)
        means[f"{name}_right"] = right / max(count, 1)
    return means


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


@contextmanager
def _asked_to_stop(place: Ranks) -> Iterator[Callable[[], bool]]:
    """Whether SIGTERM or Ctrl-C has come to any rank: the step in hand is finished and saved first."""
    asked: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():  # elsewhere Python hears no signals
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, lambda number, _: asked.append(number))
    try:
        yield lambda: place.any(bool(asked))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
