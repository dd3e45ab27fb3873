"""Averages of the weights over many steps: often slightly better than the last weights, and less noisy."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bertkit.errors import RequestError
from bertkit.train.distributed import full_tensor, sharded_like

Kind = Literal["none", "ema", "tail"]
COUNT_KEY = "count"  # in a checkpoint


@dataclass(frozen=True, kw_only=True)
class AverageSettings:
    """Which steps are averaged, and with which weight."""

    kind: Kind = "none"
    every: int = 10  # steps between two samples of the weights
    decay: float = 0.99  # "ema": weight of the old mean at each sample
    tail: float = 0.2  # "tail": the last share of the budget, all samples with equal weight

    def is_due(self, step: int, spent: float) -> bool:
        """Whether the weights after `step` steps, at share `spent` of the budget, are a sample."""
        started = self.kind == "ema" or (self.kind == "tail" and spent > 1 - self.tail)
        return started and (step % self.every == 0 or spent >= 1)

    def weight(self, count: int) -> float:
        """The weight of sample number `count` (from 1) in the mean: 1 / count, for "ema" at least 1 - decay."""
        return max(1 / count, 1 - self.decay) if self.kind == "ema" else 1 / count


class Average:
    """A running mean of a module's trainable tensors, each on the device of its tensor."""

    def __init__(self, module: nn.Module, settings: AverageSettings) -> None:
        self.module = module
        self.settings = settings
        self.names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        self.parameters = [parameter for _, parameter in module.named_parameters() if parameter.requires_grad]
        self.means: list[Tensor] = []
        self.count = 0  # samples so far

    @torch.no_grad()
    def update(self, step: int, spent: float) -> None:
        """Add the current weights to the mean, if a sample is due."""
        if not self.settings.is_due(step, spent):
            return
        self.count += 1
        if not self.means:
            self.means = [parameter.detach().clone() for parameter in self.parameters]
        torch._foreach_lerp_(_local(self.means), _local(self.parameters), self.settings.weight(self.count))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside the context, the module's weights are the mean; without any sample so far, its own weights."""
        original = [parameter.detach().clone() for parameter in self.parameters] if self.means else []
        self._copy_into_module(self.means)
        try:
            yield
        finally:
            self._copy_into_module(original)

    def keep(self) -> None:
        """Replace the module's weights by the mean, if there is one."""
        self._copy_into_module(self.means)

    def state_tensors(self) -> dict[str, Tensor]:
        """The state for a checkpoint, each tensor gathered from all ranks: every rank must call this."""
        named = zip(self.names, self.means, strict=True) if self.means else ()
        tensors = {name: full_tensor(mean).detach().contiguous() for name, mean in named}
        return tensors | {COUNT_KEY: torch.tensor(self.count)}

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from a saved state; every tensor must be there with its shape."""
        self.count, self.means = int(tensors.get(COUNT_KEY, torch.tensor(0))), []
        for name, parameter in zip(self.names, self.parameters, strict=True) if self.count else ():
            mean = tensors.get(name)
            if mean is None or mean.shape != parameter.shape:
                raise RequestError(f"the mean of {name} is missing or of another shape")
            self.means.append(sharded_like(mean.to(parameter.device), parameter))

    @torch.no_grad()
    def _copy_into_module(self, tensors: Sequence[Tensor]) -> None:
        if not tensors:
            return
        for part in self.module.modules():
            if reshard := getattr(part, "reshard", None):
                reshard()  # FSDP keeps some gathered tensors after a forward; they would be stale
        torch._foreach_copy_(_local(self.parameters), _local(tensors))


def _local(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The local shard of each tensor: a mean needs no other rank."""
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor.data for tensor in tensors]
