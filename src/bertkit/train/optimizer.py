"""AdamW without weight decay on norms and biases, and a second optimizer for the parameters that its row takes."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.errors import RequestError
from bertkit.train.distributed import full_tensor, sharded_like
from bertkit.train.optimizer_rows import OPTIMIZERS, OptimizerSettings


def build_optimizer(
    module: nn.Module, settings: OptimizerSettings, scales: Mapping[str, float] = MappingProxyType({})
) -> "Optimizers":
    """One or two torch optimizers over a module's parameters, each tensor in exactly one group.

    `scales` maps names of parameters to a factor on the learning rate; the default is 1.
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
    """Parameter groups by their factor on the learning rate."""
    groups: dict[float, list[nn.Parameter]] = {}
    for scale, parameter in parameters:
        groups.setdefault(scale, []).append(parameter)
    return [{"params": group, "scale": scale} for scale, group in groups.items()]


class Optimizers:
    """Several torch optimizers used as one, each with its factor on the learning rate."""

    def __init__(self, parts: list[tuple[torch.optim.Optimizer, float]]) -> None:
        self.parts = parts

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Mark the optimizers as capturable while a CUDA graph records a step, as torch requires."""
        groups = [group for optimizer, _ in self.parts for group in optimizer.param_groups]
        before = [group.get("capturable", False) for group in groups]
        try:
            for group in groups:
                group["capturable"] = True
            yield
        finally:
            for group, capturable in zip(groups, before, strict=True):
                group["capturable"] = capturable

    def step(self, rate: float | Tensor, norm: Tensor | None = None) -> None:
        """Update at this learning rate and clear the gradients; do nothing if their norm is not finite.

        On CUDA the device decides this, because the host would have to wait for the norm.
        """
        on_device = norm is not None and norm.is_cuda
        if norm is not None and not on_device and not torch.isfinite(norm):
            return
        nonfinite = (~torch.isfinite(norm)).float() if norm is not None and on_device else None
        for optimizer, scale in self.parts:
            optimizer.found_inf = nonfinite  # type: ignore[attr-defined]  # fused AdamW and our Muon read it
            for group in optimizer.param_groups:
                group["lr"] = rate * scale * group.get("scale", 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_tensors(self) -> dict[str, Tensor]:
        """The optimizers' state under stable names, gathered from all ranks: every rank must call this."""
        tensors = {}
        for number, (optimizer, _) in enumerate(self.parts):
            for index, parameter in enumerate(_parameters(optimizer)):
                for key, value in optimizer.state[parameter].items():
                    tensors[f"{number}.{index}.{key}"] = full_tensor(torch.as_tensor(value)).detach().contiguous()
        return tensors

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restore a saved state; every tensor must belong to a parameter."""
        for name, value in tensors.items():
            optimizer, parameter, key = self._locate(name)
            # AdamW keeps its step count on the CPU unless it is fused.
            if key == "step":
                optimizer.state[parameter][key] = value.to(parameter.device if optimizer.defaults["fused"] else "cpu")
            elif value.shape == parameter.shape:
                optimizer.state[parameter][key] = sharded_like(value.to(parameter.device), parameter)
            else:
                raise RequestError(f"{name} is {list(value.shape)} where this model has {list(parameter.shape)}")

    def _locate(self, name: str) -> tuple[torch.optim.Optimizer, nn.Parameter, str]:
        """The optimizer, parameter and key of a name such as `0.12.exp_avg`."""
        try:
            number, index, key = name.split(".", 2)
            optimizer = self.parts[int(number)][0]
            return optimizer, _parameters(optimizer)[int(index)], key
        except (ValueError, IndexError) as error:
            raise RequestError(f"the optimizer has no place for {name}") from error


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
