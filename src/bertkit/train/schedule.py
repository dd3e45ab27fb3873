"""Learning rate schedules as pure functions of progress, by steps or by time."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bertkit.errors import RequestError

Decay = Literal["linear", "cosine", "constant", "trapezoid", "inverse-sqrt", "slanted"]

# Factor on the peak learning rate when the share `x` of the budget is spent, and `n` times the steps of the warm-up.
DECAYS: dict[Decay, Callable[[float, float], float]] = {
    "linear": lambda x, n: 1 - x,
    "cosine": lambda x, n: 0.5 * (1 + math.cos(math.pi * x)),
    "constant": lambda x, n: 1.0,
    "trapezoid": lambda x, n: min(1.0, (1 - x) / 0.3),  # flat, then down over the last 30 %
    "inverse-sqrt": lambda x, n: max(n, 1.0) ** -0.5,  # the Transformer's; the budget does not matter
    # ULMFiT's slanted triangle: up over the first tenth, then down, from 1/32 to 1 and back.
    "slanted": lambda x, n: (1 + 31 * min(x / 0.1, (1 - x) / 0.9)) / 32,
}
OWN_WARMUP = ("slanted",)  # these rise by themselves, and `warmup` does not apply


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Linear warm-up from 0 over `warmup` steps, then decay until the budget is spent."""

    peak: float
    warmup: int
    decay: Decay = "linear"
    floor: float = 0.0  # the lowest share of the peak after warm-up

    def __post_init__(self) -> None:
        if self.decay not in DECAYS:
            raise RequestError(f"unknown decay '{self.decay}'; choose from: {', '.join(DECAYS)}")

    def rate(self, step: int, progress: float) -> float:
        """The learning rate of step number `step` (from 0) when the share `progress` (0..1) of the budget is spent.

        Warm-up and decay are multiplied, as in Google's code, so that a budget of minutes cannot skip the warm-up.
        """
        warmup = 0 if self.decay in OWN_WARMUP else self.warmup
        up = min(1.0, (step + 1) / warmup) if warmup else 1.0
        down = DECAYS[self.decay](min(max(progress, 0.0), 1.0), (step + 1) / max(self.warmup, 1))
        return self.peak * up * max(down, self.floor)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long to train: a number of steps, a number of minutes, or whichever ends first."""

    steps: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None:
            raise RequestError("say how long to train: steps=... or minutes=...")
        no_steps = self.steps is not None and self.steps < 1
        if no_steps or (self.minutes is not None and not 0 < self.minutes < math.inf):
            raise RequestError(f"steps={self.steps}, minutes={self.minutes}: a budget must be over 0 and finite")

    def progress(self, step: int, seconds: float) -> float:
        """The share of the budget that is spent after `step` steps and `seconds`."""
        by_steps = step / self.steps if self.steps else 0.0
        by_clock = seconds / (60 * self.minutes) if self.minutes else 0.0
        return max(by_steps, by_clock)
