"""Replay training steps as CUDA graphs: a step of known shapes is one launch instead of hundreds of kernels.

A step of 32 short texts is about six hundred kernels of a few microseconds: launching them takes the host several times
as long as computing them takes the device. A graph contains forward, backward, clipping and update. A pre-training step
of a small model is two thousand kernels, which a slow host cannot launch as fast as they run.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor, nn

from bertkit.engine.cuda_graph import CudaRecorder, Recorder
from bertkit.errors import warn
from bertkit.train.loop import MicroBatch, StepContext, take_step

MAX_GRAPHS = 64  # each graph holds memory for its activations


class Refillable(Protocol):
    """An input whose tensors can be replaced by others of the same shapes."""

    @property
    def form(self) -> Hashable:
        """Everything that must be equal to replay a recorded step, such as shapes; None if the shapes vary."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that differ from step to step."""

    def refilled(self, tensors: Sequence[Tensor]) -> "Refillable":
        """The same input with other tensors."""


@dataclass(frozen=True)
class RecordedStep:
    """A recorded step: fill its inputs, call `replay`, read its output."""

    inputs: tuple[Tensor, ...]
    replay: Callable[[], Any]
    output: Callable[[], Tensor]


class Replay:
    """A replacement of `take_step`: the first step of each form runs as usual, the second is recorded and replayed.

    `record` turns a function without arguments into (replay, output); it is a parameter for tests.
    """

    def __init__(self, device: torch.device, record: Recorder | None = None) -> None:
        self.record = record or CudaRecorder()
        self.recorded: dict[Hashable, RecordedStep] = {}
        self.seen: set[Hashable] = set()
        self.disabled = False  # after a recording has failed
        self.rate = torch.zeros((), device=device)
        self.shares: dict[str, Tensor] = {}  # of each loss: 1 / number of targets in the step

    def __call__(
        self, context: StepContext, parts: Sequence[MicroBatch], rate: float
    ) -> tuple[dict[str, Tensor], Tensor, int]:
        """Take one step; a step that cannot be replayed runs as usual."""
        recorded = self._recorded_step(context, parts)
        if recorded is None:
            return take_step(context, parts, rate)
        [part] = parts
        for buffer, value in zip(recorded.inputs, _tensors(part.inputs), strict=True):
            buffer.copy_(value, non_blocking=True)
        self.rate.fill_(rate)
        for name, share in self.shares.items():
            share.fill_(1 / max(part.counts[name], 1))
        context.ranks.seed(part.seed)  # a graph draws from the current state of the generator
        recorded.replay()
        numbers = recorded.output().clone()  # the next replay overwrites it
        return dict(zip(context.weights, numbers[:-1].view(-1, 3), strict=True)), numbers[-1], part.tokens

    def _recorded_step(self, context: StepContext, parts: Sequence[MicroBatch]) -> RecordedStep | None:
        """The recording for these parts, made at the second step of their form; None: run the step as usual."""
        if self.disabled or len(parts) != 1 or not _is_refillable(parts[0].inputs):
            return None
        examples = parts[0].inputs
        form = tuple(example.form for example in examples)
        if form in self.recorded:
            return self.recorded[form]
        if form not in self.seen or len(self.recorded) >= MAX_GRAPHS:
            self.seen.add(form)
            return None
        inputs = tuple(value.to(self.rate.device, copy=True) for value in _tensors(examples))
        for name in context.weights:
            self.shares.setdefault(name, torch.zeros_like(self.rate))
        try:
            with context.optimizers.capturing():
                replay, output = self.record(lambda: self._step(context, _refilled(examples, inputs)))
        except RuntimeError as error:  # a kernel that cannot be captured
            self.disabled = True
            context.module.zero_grad(set_to_none=True)
            first = str(error).strip().splitlines()[0]
            warn(f"steps are launched one kernel at a time, which is slower ({first})")
            return None
        self.recorded[form] = RecordedStep(inputs, replay, output)
        return self.recorded[form]

    def _step(self, context: StepContext, inputs: Sequence[Refillable]) -> Tensor:
        """`take_step` without host synchronization: (sum, count, correct) of each loss, then the norm."""
        with torch.autocast(self.rate.device.type, torch.bfloat16, enabled=context.settings.autocast):
            sums = context.module(*inputs)
            losses = [weight * sums[name][0] * self.shares[name] for name, weight in context.weights.items()]
            torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(context.module.parameters(), context.settings.clip).detach()
        context.optimizers.step(self.rate, norm)
        numbers = [number for name in context.weights for number in sums[name]]
        return torch.stack([number.detach().double() for number in (*numbers, norm)])


def _is_refillable(inputs: tuple[Any, ...]) -> TypeGuard[tuple[Refillable, ...]]:
    return all(hasattr(example, "refilled") and example.form is not None for example in inputs)


def _tensors(inputs: Sequence[Refillable]) -> list[Tensor]:
    return [tensor for example in inputs for tensor in example.tensors]


def _refilled(inputs: Sequence[Refillable], tensors: Sequence[Tensor]) -> list[Refillable]:
    """The inputs with other tensors, which are given as one flat sequence."""
    remaining = iter(tensors)
    return [example.refilled([next(remaining) for _ in example.tensors]) for example in inputs]
