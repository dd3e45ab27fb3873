"""The Muon optimizer, for the weight matrices of the layers."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.train.distributed import full_tensor, sharded_like


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalized by five Newton-Schulz steps (Jordan 2024), for hidden matrices only."""

    def __init__(self, parameters: Iterable[Any], momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": 0.0, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient; matrices of the same shape are orthogonalized as one stack."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for parameters in by_shape.values():
                directions = orthogonalized(torch.stack([self._direction(p, group["momentum"]) for p in parameters]))
                for parameter, direction in zip(parameters, directions, strict=True):
                    self._update(parameter, direction, group["lr"], group["weight_decay"])

    @property
    def _enabled(self) -> Tensor | float:
        """0 in a step that must change nothing because a gradient is not finite, else 1."""
        nonfinite: Tensor | None = getattr(self, "found_inf", None)
        return 1.0 if nonfinite is None else 1 - nonfinite

    def _direction(self, parameter: nn.Parameter, keep: float) -> Tensor:
        """The update before orthogonalization: Nesterov momentum."""
        state, grad = self.state[parameter], parameter.grad
        assert grad is not None
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        nonfinite: Tensor | None = getattr(self, "found_inf", None)
        grad = grad if nonfinite is None else torch.where(nonfinite > 0, 0.0, grad)
        momentum = state["momentum"].mul_(1 - (1 - keep) * self._enabled).add_(grad * (1 - keep))
        return full_tensor(grad.lerp(momentum, keep))

    def _update(self, parameter: nn.Parameter, direction: Tensor, rate: float | Tensor, decay: float) -> None:
        parameter.mul_(1 - rate * decay * self._enabled)
        # sqrt(rows / columns) scales the update of a tall matrix to the effect of that of a square one.
        scale = -rate * max(1.0, direction.shape[0] / direction.shape[1]) ** 0.5 * self._enabled
        parameter.add_(sharded_like(direction.to(parameter.dtype), parameter) * scale)


def orthogonalized(matrix: Tensor, steps: int = 5) -> Tensor:
    """A matrix, or each of a stack, with the same singular vectors and with singular values near 1 (0.7 to 1.2).

    Computed by an odd quintic iteration; a stack takes as many kernel launches as one matrix.
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
