"""Steps of a form that was seen before are replayed as one CUDA graph instead of launched kernel by kernel.

A step of 32 short texts is some six hundred kernels of a few microseconds: launching them takes the host several times
as long as computing them takes the device. A graph holds forward, backward, clipping and update, and is one launch.
A pre-training step of a small model is two thousand kernels, which a slow host cannot launch as fast as they run.
"""

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor, nn

from bertkit.engine.cuda_graph import CudaRecorder, Recorder
from bertkit.errors import BertkitWarning
from bertkit.train.loop import Micro, Setup, take_step

MAX_GRAPHS = 64  # a graph keeps memory for its activations


class Refillable(Protocol):
    """An input of a fixed form: other examples of the same form are other numbers in the same tensors."""

    @property
    def form(self) -> Hashable:
        """All that is not in the tensors' values; None for what has no fixed form."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What differs from step to step."""

    def refilled(self, tensors: Sequence[Tensor]) -> "Refillable":
        """The same form around other tensors."""


@dataclass(frozen=True)
class Recorded:
    """A step of one form: fill its inputs, call `replay`, read its output."""

    inputs: tuple[Tensor, ...]
    replay: Callable[[], Any]
    output: Callable[[], Tensor]


class Replay:
    """`take_step` that knows forms: the first step of a form is taken as usual, the second is recorded and replayed.

    `record` turns a function without arguments into (replay, output); it is a parameter for the sake of tests.
    """

    def __init__(self, device: torch.device, record: Recorder | None = None) -> None:
        self.record = record or CudaRecorder()
        self.recorded: dict[Hashable, Recorded] = {}
        self.seen: set[Hashable] = set()
        self.broken = False
        self.rate = torch.zeros((), device=device)
        self.shares: dict[str, Tensor] = {}  # of each loss: 1 / how many targets the step has

    def __call__(self, setup: Setup, parts: Sequence[Micro], rate: float) -> tuple[dict[str, Tensor], Tensor, int]:
        """One step; what it cannot replay is taken as usual."""
        known = self._recorded(setup, parts)
        if known is None:
            return take_step(setup, parts, rate)
        [part] = parts
        for buffer, value in zip(known.inputs, _tensors(part.inputs), strict=True):
            buffer.copy_(value, non_blocking=True)
        self.rate.fill_(rate)
        for name, share in self.shares.items():
            share.fill_(1 / max(part.counts[name], 1))
        torch.manual_seed(part.seed)  # a graph draws from where the generator stands
        known.replay()
        numbers = known.output().clone()  # the next replay writes over it
        return dict(zip(setup.weights, numbers[:-1].view(-1, 3), strict=True)), numbers[-1], part.tokens

    def _recorded(self, setup: Setup, parts: Sequence[Micro]) -> Recorded | None:
        """The recording for these parts, if there is one or it is time to make one."""
        if self.broken or len(parts) != 1 or not _is_refillable(parts[0].inputs):
            return None
        examples = parts[0].inputs
        form = tuple(example.form for example in examples)
        if form in self.recorded:
            return self.recorded[form]
        if form not in self.seen or len(self.recorded) >= MAX_GRAPHS:
            self.seen.add(form)
            return None
        inputs = tuple(value.to(self.rate.device, copy=True) for value in _tensors(examples))
        for name in setup.weights:
            self.shares.setdefault(name, torch.zeros_like(self.rate))
        try:
            with setup.optimizers.capturing():
                replay, output = self.record(lambda: self._step(setup, _refilled(examples, inputs)))
        except RuntimeError as error:  # a kernel that no graph can hold
            self.broken = True
            setup.module.zero_grad(set_to_none=True)
            first = str(error).strip().splitlines()[0]
            warnings.warn(f"steps are launched one kernel at a time, which is slower ({first})", BertkitWarning)
            return None
        self.recorded[form] = Recorded(inputs, replay, output)
        return self.recorded[form]

    def _step(self, setup: Setup, inputs: Sequence[Refillable]) -> Tensor:
        """`take_step` without a host: (sum, count, right) of each loss and the norm, end to end."""
        with torch.autocast(self.rate.device.type, torch.bfloat16, enabled=setup.settings.autocast):
            sums = setup.module(*inputs)
            losses = [weight * sums[name][0] * self.shares[name] for name, weight in setup.weights.items()]
            torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(setup.module.parameters(), setup.settings.clip).detach()
        setup.optimizers.step(self.rate, norm)
        numbers = [number for name in setup.weights for number in sums[name]]
        return torch.stack([number.detach().double() for number in (*numbers, norm)])


def _is_refillable(inputs: tuple[Any, ...]) -> TypeGuard[tuple[Refillable, ...]]:
    return all(hasattr(each, "refilled") and each.form is not None for each in inputs)


def _tensors(inputs: Sequence[Refillable]) -> list[Tensor]:
    return [tensor for each in inputs for tensor in each.tensors]


def _refilled(inputs: Sequence[Refillable], tensors: Sequence[Tensor]) -> list[Refillable]:
    """The inputs in their order, around tensors that stand in one row."""
    left = iter(tensors)
    return [each.refilled([next(left) for _ in each.tensors]) for each in inputs]
