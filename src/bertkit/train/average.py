"""The mean of the weights over many steps: often a little better than the last of them, and never noisier."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bertkit.errors import RequestError
from bertkit.train.distributed import full_tensor, sharded_like

Kind = Literal["none", "ema", "tail"]
COUNT = "count"


@dataclass(frozen=True, kw_only=True)
class AverageSettings:
    """Which steps count, and how much."""

    kind: Kind = "none"
    every: int = 10  # steps between two looks
    decay: float = 0.99  # "ema": what a look leaves of the mean before it
    tail: float = 0.2  # "tail": the last share of the budget, every look counting the same

    def counts(self, step: int, spent: float) -> bool:
        """Whether the weights after `step` steps, at `spent` of the budget, are looked at."""
        begun = self.kind == "ema" or (self.kind == "tail" and spent > 1 - self.tail)
        return begun and (step % self.every == 0 or spent >= 1)

    def weight(self, looks: int) -> float:
        """How much look number `looks` (from 1) counts: as all before it, until "ema" forgets the oldest."""
        return max(1 / looks, 1 - self.decay) if self.kind == "ema" else 1 / looks


class Average:
    """A running mean of a module's learned tensors, each where the tensor itself is."""

    def __init__(self, module: nn.Module, settings: AverageSettings) -> None:
        self.module = module
        self.settings = settings
        self.names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        self.parameters = [parameter for _, parameter in module.named_parameters() if parameter.requires_grad]
        self.means: list[Tensor] = []
        self.looks = 0

    @torch.no_grad()
    def update(self, step: int, spent: float) -> None:
        """Look at the weights, if it is time to."""
        if not self.settings.counts(step, spent):
            return
        self.looks += 1
        if not self.means:
            self.means = [parameter.detach().clone() for parameter in self.parameters]
        torch._foreach_lerp_(_local(self.means), _local(self.parameters), self.settings.weight(self.looks))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """For a while the module has the mean as its weights; without a look so far, its own."""
        kept = [parameter.detach().clone() for parameter in self.parameters] if self.means else []
        self._put(self.means)
        try:
            yield
        finally:
            self._put(kept)

    def state_tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint needs, each tensor whole: every rank must ask."""
        named = zip(self.names, self.means, strict=True) if self.means else ()
        tensors = {name: full_tensor(mean).detach().contiguous() for name, mean in named}
        return tensors | {COUNT: torch.tensor(self.looks)}

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what was saved; every tensor must be there in its shape."""
        self.looks = int(tensors.get(COUNT, torch.tensor(0)))
        self.means = [self._found(tensors, *pair) for pair in self._named()] if self.looks else []

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        return zip(self.names, self.parameters, strict=True)

    def _found(self, tensors: Mapping[str, Tensor], name: str, parameter: Tensor) -> Tensor:
        found = tensors.get(name)
        if found is None or found.shape != parameter.shape:
            raise RequestError(f"the mean of {name} is missing or of another shape")
        return sharded_like(found.to(parameter.device), parameter)

    @torch.no_grad()
    def _put(self, tensors: Sequence[Tensor]) -> None:
        if not tensors:
            return
        for part in self.module.modules():
            if reshard := getattr(part, "reshard", None):
                reshard()  # FSDP keeps some tensors whole after a forward: they would be out of date
        torch._foreach_copy_(_local(self.parameters), _local(tensors))


def _local(tensors: Sequence[Tensor]) -> list[Tensor]:
    """What of each tensor is here: a mean needs no other rank."""
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor.data for tensor in tensors]
