"""The part of one process in a training run: steps, logging, evaluation, checkpoints, stopping.

Each kind of training is a subclass that defines the examples of a step, the evaluation, the content of a checkpoint and
the outputs of the run.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import nn

from bertkit.progress import Meter
from bertkit.train.distributed import Ranks
from bertkit.train.half import HalfPrecision
from bertkit.train.loop import LoopSettings, LossModule, MicroBatch, StepFunction, StepReport, train
from bertkit.train.optimizer import Optimizers
from bertkit.train.replay import Replay
from bertkit.train.runs import OPTIMIZER_FILE, Progress, Run, read_tensor_file

Result = TypeVar("Result")
MakeBatches = Callable[[int], Sequence[MicroBatch]]  # step -> this rank's part of it


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """How often to log and save, and how steps are run."""

    loop: LoopSettings
    log_every: int = 10
    save_every: int | None = None  # steps between checkpoints ...
    save_minutes: float | None = None  # ... or minutes
    keep: int = 1  # number of checkpoints
    prefetch: bool = True  # make the examples of the next step while this one is computed
    replay: bool = False  # on CUDA: replay steps of known shapes as CUDA graphs


@dataclass(kw_only=True, eq=False)
class Session(ABC, Generic[Result]):
    """A run from its current progress to its end, or until it is told to stop."""

    ending: ClassVar[str] = "saving the model"  # what `end` does, for the progress bar
    run: Run
    ranks: Ranks
    module: LossModule  # what is trained
    _saved_at: float = field(default_factory=time.monotonic, init=False)

    def restore(self, checkpoint: Path) -> None:
        """Load the optimizers' state of a checkpoint, and what else a subclass has saved in it."""
        self.optimizers.load_state_tensors(read_tensor_file(checkpoint / OPTIMIZER_FILE))

    def train(self, start: Progress, meter: Meter, stop: Callable[[], bool]) -> Result:
        """Train until the budget is spent, the run `should_end_early`, or `stop()` is true."""
        report, stopped, self._saved_at = None, False, time.monotonic()
        self._facts: Mapping[str, object] = {}  # of the last step that was logged
        with closing(self.steps(start)) as steps:
            for report in steps:
                stopped = self._finish_step(report, meter) and stop()
                if stopped:
                    break
        progress = report.progress if report else start
        if stopped:
            meter.stop()
            meter.say("saving a checkpoint")
            self.save(progress)
        meter.say(self.ending)
        return self.end(progress, report, finished=not stopped)

    def steps(self, start: Progress) -> Generator[StepReport, None, None]:
        """Run the steps from `start` on, and yield the report of each."""
        if self.should_end_early():
            return
        ahead = prefetching(self.micro_batches, start.step, self.ranks.device) if self.options.prefetch else None
        take = self.step_function()
        with ahead or nullcontext(self.micro_batches) as micro_batches:

            def prepared(step: int) -> Sequence[MicroBatch]:
                self.before_step(step)
                return micro_batches(step)

            arguments = (self.module.weights, prepared, self.optimizers, self.options.loop, self.ranks, start, take)
            for report in train(self.wrapped, *arguments):
                yield report
                if self.should_end_early():
                    return

    # What a subclass must define.

    @property
    @abstractmethod
    def options(self) -> SessionSettings:
        """The settings of this session."""

    @abstractmethod
    def new_optimizers(self) -> Optimizers:
        """The optimizers of the module's trainable parameters, without any state."""

    @abstractmethod
    def micro_batches(self, step: int) -> Sequence[MicroBatch]:
        """The examples of a step for this rank as tensors, in parts that fit the device."""

    @abstractmethod
    def evaluation_due(self, step: int, *, last: bool) -> bool:
        """Whether to evaluate after this step."""

    @abstractmethod
    def evaluate_and_record(self, step: int) -> None:
        """Evaluate, and write a line to metrics.jsonl."""

    @abstractmethod
    def checkpoint_parts(self) -> Mapping[str, Any]:
        """What a checkpoint contains besides progress and optimizer: name -> object with `save(path)`."""

    @abstractmethod
    def end(self, progress: Progress, report: StepReport | None, *, finished: bool) -> Result:
        """Write the outputs of the run; `report` is that of the last step, None if no step was taken."""

    # What a subclass may override.

    def before_step(self, step: int) -> None:
        """Called before each step; may change the module."""

    def after_step(self, progress: Progress) -> None:
        """Called after each step, before anything is logged or saved."""

    def should_end_early(self) -> bool:
        """Whether to end the run before the budget is spent."""
        return False

    def extra_metrics(self, report: StepReport) -> dict[str, Any]:
        """Further entries for a step's line of metrics.jsonl."""
        return {}

    def progress_facts(self, report: StepReport) -> dict[str, str]:
        """What is shown beside the progress bar."""
        return {name: f"{value:.3f}" for name, value in report.losses.items()}

    def progress_value(self, progress: Progress) -> float:
        """The value of the progress bar: the share of the budget that is spent."""
        return min(self.spent(progress), 1.0)

    def saved_progress(self, progress: Progress) -> Progress:
        """The progress to store in a checkpoint."""
        return progress

    def wrap(self) -> nn.Module:
        """The module as it is called in a step."""
        return HalfPrecision(self.module) if self.on_cuda else self.module

    def step_function(self) -> StepFunction | None:
        """How a step is computed; None is `take_step`."""
        return Replay(self.ranks.device) if self.options.replay else None

    # What all subclasses share.

    @cached_property
    def wrapped(self) -> nn.Module:
        """The result of `wrap`, made once."""
        return self.wrap()

    @cached_property
    def optimizers(self) -> Optimizers:
        """The optimizers, made once, at the first step or at `restore`."""
        return self.new_optimizers()

    @property
    def on_cuda(self) -> bool:
        """Whether steps run on a GPU."""
        return self.ranks.device.type == "cuda"

    def spent(self, progress: Progress) -> float:
        """The share of the budget that is spent."""
        return self.options.loop.budget.progress(progress.step, progress.seconds)

    def write(self, line: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl, on the first rank."""
        if self.ranks.first:
            self.run.append(line)

    def save(self, progress: Progress) -> None:
        """Write a checkpoint: all ranks gather its tensors, rank 0 writes."""
        parts, state = self.checkpoint_parts(), self.optimizers.state_tensors()
        if self.ranks.first:
            self.run.save(self.saved_progress(progress), parts, state, self.options.keep)
        self.ranks.wait()
        self._saved_at = time.monotonic()

    def _finish_step(self, report: StepReport, meter: Meter) -> bool:
        """Log, evaluate and save where due; return whether there is budget left."""
        progress = report.progress
        last = self.spent(progress) >= 1
        self.after_step(progress)
        if progress.step % self.options.log_every == 0 or report.nonfinite or last:
            self._log(report, meter)
        else:
            meter.update(self.progress_value(progress), self._facts)
        if self.evaluation_due(progress.step, last=last):
            self.evaluate_and_record(progress.step)
        if self._save_due(progress):
            self.save(progress)
        return not last

    def _save_due(self, progress: Progress) -> bool:
        every, minutes = self.options.save_every, self.options.save_minutes
        if minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes:
            return True
        return every is not None and progress.step % every == 0

    def _log(self, report: StepReport, meter: Meter) -> None:
        """Write a line to metrics.jsonl and update the progress bar; not for every step, because the host waits."""
        progress = report.progress
        speed = progress.tokens / max(progress.seconds, 1e-9)
        line: dict[str, Any] = {"step": progress.step, "seconds": round(progress.seconds, 3), "tokens": progress.tokens}
        line |= {"loss": finite_values(report.losses), "rate": report.rate} | finite_values({"norm": report.norm})
        line |= {"tokens_per_second": round(speed), "skipped": progress.skipped} | self.extra_metrics(report)
        self.write(line | ({"bad": report.nonfinite} if report.nonfinite else {}))
        self._facts = self.progress_facts(report)
        meter.update(self.progress_value(progress), self._facts)


def finite_values(values: Mapping[str, float]) -> dict[str, float | None]:
    """The values for JSON, with None for NaN and infinity."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


@contextmanager
def prefetching(make: MakeBatches, first: int, device: torch.device) -> Iterator[MakeBatches]:
    """`make` one step ahead, from step `first` on, in another thread; its errors are raised when the step is used."""
    make = on_side_stream(make) if device.type == "cuda" else make
    with ThreadPoolExecutor(1) as pool:
        ahead: dict[int, Future[Sequence[MicroBatch]]] = {first: pool.submit(make, first)}

        def get(step: int) -> Sequence[MicroBatch]:
            current = ahead.pop(step, None) or pool.submit(make, step)
            ahead[step + 1] = pool.submit(make, step + 1)
            return current.result()

        yield get


def on_side_stream(make: MakeBatches) -> MakeBatches:
    """`make` on a CUDA stream of its own, so that copies do not wait for the step that is being computed.

    The loop holds the tensors of a step until it is done, so that their memory is not reused too early.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def make_on_stream(step: int) -> Sequence[MicroBatch]:
        with torch.cuda.stream(stream):
            micro_batches = make(step)
        stream.synchronize()
        return micro_batches

    return make_on_stream
