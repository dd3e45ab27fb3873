"""One process's part in a training run: steps, log, evaluations, checkpoints, stopping.

Each kind of training is a subclass: it says what a step's examples are, what is evaluated, what a checkpoint holds and
what the run leaves.
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
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from bertkit.progress import Meter
from bertkit.train.distributed import Ranks
from bertkit.train.half import HalfPrecision
from bertkit.train.loop import LoopSettings, LossModule, Micro, StepReport, train
from bertkit.train.optimizer import Optimizers
from bertkit.train.replay import Replay
from bertkit.train.runs import OPTIMIZER, Progress, Run, read_part

Result = TypeVar("Result")
Make = Callable[[int], Sequence[Micro]]


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """How often to log and save, and how steps run."""

    loop: LoopSettings
    log_every: int = 10
    save_every: int | None = None  # steps between checkpoints ...
    save_minutes: float | None = None  # ... or minutes
    keep: int = 1  # checkpoints
    prefetch: bool = True  # the next step's examples are made while this one is computed
    replay: bool = False  # on CUDA: a step of a known shape is one launch


@dataclass(kw_only=True, eq=False)
class Session(ABC, Generic[Result]):
    """A run from where it stands to its end, or to a request to stop."""

    run: Run
    ranks: Ranks
    module: LossModule  # what is trained
    _saved_at: float = field(default_factory=time.monotonic, init=False)

    def restore(self, checkpoint: Path) -> None:
        """Load the optimizers' state of a checkpoint, and what else a kind of training has saved in it."""
        self.optimizers.load_state_tensors(read_part(checkpoint / OPTIMIZER))

    def train(self, start: Progress, meter: Meter, stop: Callable[[], bool]) -> Result:
        """Step until the budget is spent, it is `enough`, or somebody asks to stop."""
        report, asked, self._saved_at = None, False, time.monotonic()
        with closing(self.steps(start)) as steps:
            for report in steps:
                asked = self._after(report, meter) and stop()
                if asked:
                    break
        progress = report.progress if report else start
        if asked:
            meter.stop()
            self.save(progress)
        return self.end(progress, report, finished=not asked)

    def steps(self, start: Progress) -> Generator[StepReport, None, None]:
        """Every step from `start` on, until it is enough."""
        if self.enough():
            return
        ahead = prefetching(self.micros, start.step, self.ranks.device) if self.options.prefetch else None
        take = Replay(self.ranks.device) if self.options.replay else None
        with ahead or nullcontext(self.micros) as micros:

            def prepared(step: int) -> Sequence[Micro]:
                self.before_step(step)
                return micros(step)

            given = (self.module.weights, prepared, self.optimizers, self.options.loop, self.ranks, start, take)
            for report in train(self.wrapped, *given):
                yield report
                if self.enough():
                    return

    # What a kind of training must say.

    @property
    @abstractmethod
    def options(self) -> SessionSettings:
        """How often, how long, how."""

    @abstractmethod
    def new_optimizers(self) -> Optimizers:
        """The optimizers of the module's trainable parameters, without any state."""

    @abstractmethod
    def micros(self, step: int) -> Sequence[Micro]:
        """Examples of a step for this rank as tensors, in parts that the device can hold."""

    @abstractmethod
    def evaluation_due(self, step: int, *, last: bool) -> bool:
        """Whether to evaluate after this step."""

    @abstractmethod
    def evaluate_and_record(self, step: int) -> None:
        """Evaluate, and write the line of metrics.jsonl."""

    @abstractmethod
    def checkpoint_parts(self) -> Mapping[str, Any]:
        """What a checkpoint holds besides progress and optimizer: name -> something with `save(path)`."""

    @abstractmethod
    def end(self, progress: Progress, report: StepReport | None, *, finished: bool) -> Result:
        """Write what the run leaves; `report` is that of the last step, None where no step was taken."""

    # What it may say.

    def before_step(self, step: int) -> None:
        """Change the module before a step."""

    def after_step(self, progress: Progress) -> None:
        """Note that a step is done, before anything is logged or saved."""

    def enough(self) -> bool:
        """Whether to end before the budget is spent."""
        return False

    def readings(self, report: StepReport) -> dict[str, Any]:
        """More for a step's line of metrics.jsonl."""
        return {}

    def shown(self, report: StepReport) -> dict[str, str]:
        """Beside the progress bar."""
        return {name: f"{value:.3f}" for name, value in report.losses.items()}

    def done(self, progress: Progress) -> float:
        """For the progress bar: the share of the budget that is spent."""
        return min(self.spent(progress), 1.0)

    def saved_progress(self, progress: Progress) -> Progress:
        """What a checkpoint says of where the run stands."""
        return progress

    def wrap(self) -> nn.Module:
        """The module as it is called in a step."""
        return HalfPrecision(self.module) if self.on_cuda else self.module

    # What all share.

    @cached_property
    def wrapped(self) -> nn.Module:
        """The module as it is called in a step, made once."""
        return self.wrap()

    @cached_property
    def optimizers(self) -> Optimizers:
        """Made once, from the module as it is at the first step or at `restore`."""
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
        """Write a checkpoint: every rank gathers, the first one writes."""
        parts, memory = self.checkpoint_parts(), self.optimizers.state_tensors()
        if self.ranks.first:
            self.run.save(self.saved_progress(progress), parts, memory, self.options.keep)
        self.ranks.wait()
        self._saved_at = time.monotonic()

    def _after(self, report: StepReport, meter: Meter) -> bool:
        """Log, evaluate and save when it is time to; whether there is budget left."""
        progress = report.progress
        last = self.spent(progress) >= 1
        self.after_step(progress)
        if progress.step % self.options.log_every == 0 or report.bad or last:
            self._log(report, meter)
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
        """A line of metrics.jsonl, and the progress bar: not for every step, because a GPU is waited for."""
        progress = report.progress
        speed = progress.tokens / max(progress.seconds, 1e-9)
        line: dict[str, Any] = {"step": progress.step, "seconds": round(progress.seconds, 3), "tokens": progress.tokens}
        line |= {"loss": finite_values(report.losses), "rate": report.rate} | finite_values({"norm": report.norm})
        line |= {"tokens_per_second": round(speed), "skipped": progress.skipped} | self.readings(report)
        self.write(line | ({"bad": report.bad} if report.bad else {}))
        meter.update(self.done(progress), self.shown(report))


def finite_values(values: Mapping[str, float]) -> dict[str, float | None]:
    """For JSON, which has no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


@contextmanager
def prefetching(make: Make, first: int, device: torch.device) -> Iterator[Make]:
    """`make`, one step ahead from `first` on, in a thread of its own; its errors come when a step is asked for."""
    make = beside(make) if device.type == "cuda" else make
    with ThreadPoolExecutor(1) as pool:
        ahead: dict[int, Future[Sequence[Micro]]] = {first: pool.submit(make, first)}

        def get(step: int) -> Sequence[Micro]:
            now = ahead.pop(step, None) or pool.submit(make, step)
            ahead[step + 1] = pool.submit(make, step + 1)
            return now.result()

        yield get


def beside(make: Make) -> Make:
    """The same on a CUDA stream of its own: copies do not queue behind the step that is being computed.

    The loop holds a step's tensors until the step is done, so that their memory is not taken again too early.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def made(step: int) -> Sequence[Micro]:
        with torch.cuda.stream(stream):
            micros = make(step)
        stream.synchronize()
        return micros

    return made
