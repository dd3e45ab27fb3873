"""AdamW with decay off norms and biases, and Muon for the matrices where it measures better."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.errors import RequestError
from bertkit.settings import pick
from bertkit.train.distributed import spread_like, whole


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """The optimizer's settings; the learning rate comes from the schedule, step by step."""

    name: str = "adamw"  # a row of OPTIMIZERS
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    muon_scale: float = 10.0  # Muon's learning rate is this many times AdamW's
    fused: bool = False  # on the CPU too: one pass over memory, 8 x as fast for 22 M parameters, other last digits

    def __post_init__(self) -> None:
        pick(OPTIMIZERS, self.name, "optimizer")
        if not 0 <= self.weight_decay < math.inf:
            raise RequestError(f"weight_decay={self.weight_decay} must be 0 or more, and finite")
        if not 0 < self.muon_scale < math.inf:
            raise RequestError(f"muon_scale={self.muon_scale} must be over 0, and finite")


def build_optimizer(
    module: nn.Module, settings: OptimizerSettings, scales: Mapping[str, float] = MappingProxyType({})
) -> "Optimizers":
    """One or two torch optimizers over a module's parameters, each tensor in exactly one group.

    `scales` gives parameters, by name, a multiple of the learning rate; what it does not name has 1.
    """
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    row = OPTIMIZERS[settings.name]
    taken, rest = ([(scales.get(n, 1.0), p) for n, p in named if row.takes(n, p) == other] for other in (True, False))
    groups = [
        {**group, "params": parameters, "weight_decay": settings.weight_decay if decays else 0.0}
        for group in _by_scale(rest)
        for decays in (True, False)
        if (parameters := [p for p in group["params"] if (p.dim() >= 2) == decays])
    ]
    on_cuda = any(p.is_cuda for _, p in named)
    betas = (settings.beta1, settings.beta2)
    fused = on_cuda or settings.fused
    adam = torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=settings.epsilon, fused=fused)
    return Optimizers([(adam, 1.0), *([row.build(_by_scale(taken), settings)] if taken else [])])


def _by_scale(parameters: Iterable[tuple[float, nn.Parameter]]) -> list[dict[str, Any]]:
    """Groups of parameters with one multiple of the learning rate."""
    groups: dict[float, list[nn.Parameter]] = {}
    for scale, parameter in parameters:
        groups.setdefault(scale, []).append(parameter)
    return [{"params": group, "scale": scale} for scale, group in groups.items()]


class Optimizers:
    """Several torch optimizers driven as one, each with its multiple of the learning rate."""

    def __init__(self, parts: list[tuple[torch.optim.Optimizer, float]]) -> None:
        self.parts = parts

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """While a CUDA graph records a step: torch asks to be told."""
        groups = [group for optimizer, _ in self.parts for group in optimizer.param_groups]
        before = [group.get("capturable", False) for group in groups]
        try:
            for group in groups:
                group["capturable"] = True
            yield
        finally:
            for group, was in zip(groups, before, strict=True):
                group["capturable"] = was

    def step(self, rate: float | Tensor, norm: Tensor | None = None) -> None:
        """One update at this learning rate, after which gradients are cleared; none where their norm is not finite.

        On CUDA the device decides that for itself: the host would have to wait for the norm.
        """
        on_device = norm is not None and norm.is_cuda
        if norm is not None and not on_device and not torch.isfinite(norm):
            return
        bad = (~torch.isfinite(norm)).float() if norm is not None and on_device else None
        for optimizer, scale in self.parts:
            optimizer.found_inf = bad  # type: ignore[attr-defined]  # fused AdamW and our Muon read it
            for group in optimizer.param_groups:
                group["lr"] = rate * scale * group.get("scale", 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_tensors(self) -> dict[str, Tensor]:
        """The optimizers' memory, each tensor whole under a stable name: every rank must ask."""
        tensors = {}
        for number, (optimizer, _) in enumerate(self.parts):
            for index, parameter in enumerate(_parameters(optimizer)):
                for key, value in optimizer.state[parameter].items():
                    tensors[f"{number}.{index}.{key}"] = whole(torch.as_tensor(value)).detach().contiguous()
        return tensors

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Put saved memory back; every tensor must find its parameter."""
        for name, value in tensors.items():
            optimizer, parameter, key = self._place(name)
            # AdamW keeps its step count on the CPU unless it is fused.
            if key == "step":
                optimizer.state[parameter][key] = value.to(parameter.device if optimizer.defaults["fused"] else "cpu")
            elif value.shape == parameter.shape:
                optimizer.state[parameter][key] = spread_like(value.to(parameter.device), parameter)
            else:
                raise RequestError(f"{name} is {list(value.shape)} where this model has {list(parameter.shape)}")

    def _place(self, name: str) -> tuple[torch.optim.Optimizer, nn.Parameter, str]:
        try:
            number, index, key = name.split(".", 2)
            optimizer = self.parts[int(number)][0]
            return optimizer, _parameters(optimizer)[int(index)], key
        except (ValueError, IndexError) as error:
            raise RequestError(f"the optimizer has no place for {name}") from error


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal by five Newton-Schulz steps (Jordan 2024), for hidden matrices only."""

    def __init__(self, parameters: Iterable[Any], momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": 0.0, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient; those of one shape are made orthogonal together."""
        for group in self.param_groups:
            same: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    same.setdefault(parameter.shape, []).append(parameter)
            for parameters in same.values():
                directions = orthogonalized(torch.stack([self._direction(p, group["momentum"]) for p in parameters]))
                for parameter, direction in zip(parameters, directions, strict=True):
                    self._move(parameter, direction, group["lr"], group["weight_decay"])

    @property
    def _alive(self) -> Tensor | float:
        """0 where this step is to leave no trace."""
        bad: Tensor | None = getattr(self, "found_inf", None)
        return 1.0 if bad is None else 1 - bad

    def _direction(self, parameter: nn.Parameter, keep: float) -> Tensor:
        """Momentum with the new gradient in it, and some more of that: Nesterov's."""
        state, grad = self.state[parameter], parameter.grad
        assert grad is not None
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        bad: Tensor | None = getattr(self, "found_inf", None)
        grad = grad if bad is None else torch.where(bad > 0, 0.0, grad)
        momentum = state["momentum"].mul_(1 - (1 - keep) * self._alive).add_(grad * (1 - keep))
        return whole(grad.lerp(momentum, keep))

    def _move(self, parameter: nn.Parameter, direction: Tensor, rate: float | Tensor, decay: float) -> None:
        parameter.mul_(1 - rate * decay * self._alive)
        # sqrt(rows / columns) keeps the size of what a wide matrix adds to its output that of a square one.
        scale = -rate * max(1.0, direction.shape[0] / direction.shape[1]) ** 0.5 * self._alive
        parameter.add_(spread_like(direction.to(parameter.dtype), parameter) * scale)


def orthogonalized(matrix: Tensor, steps: int = 5) -> Tensor:
    """A matrix, or each of a stack, with the same singular vectors and singular values near 1 (0.7 to 1.2).

    By an odd quintic iteration. A stack takes as many launches as one matrix.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.bfloat16() if matrix.is_cuda else matrix.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    result: Tensor = x.mT if tall else x
    return result


class OptimizerRow:
    """AdamW for every parameter, or another optimizer for those that it `takes`."""

    def takes(self, name: str, parameter: nn.Parameter) -> bool:
        """Whether a parameter is not AdamW's."""
        return False

    def build(self, groups: list[dict[str, Any]], settings: OptimizerSettings) -> tuple[torch.optim.Optimizer, float]:
        """The other optimizer, and the multiple of the learning rate that it steps with."""
        raise NotImplementedError


class MuonRow(OptimizerRow):
    """Muon for the layers' matrices; embeddings, heads and vectors stay with AdamW. Reads `muon_scale`."""

    def takes(self, name: str, parameter: nn.Parameter) -> bool:
        """Matrices of the layers."""
        return parameter.dim() == 2 and ".layers." in name

    def build(self, groups: list[dict[str, Any]], settings: OptimizerSettings) -> tuple[torch.optim.Optimizer, float]:
        """Muon, with a learning rate of its own size."""
        return Muon(groups, weight_decay=settings.weight_decay), settings.muon_scale


OPTIMIZERS: Mapping[str, OptimizerRow] = MappingProxyType({"adamw": OptimizerRow(), "muon": MuonRow()})


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
