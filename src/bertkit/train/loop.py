"""The loop is a generator: no callbacks, no trainer class. The caller's for-loop is the callback."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bertkit.errors import BertkitError
from bertkit.train.distributed import Ranks, full_tensor, reshard
from bertkit.train.optimizer import Optimizers
from bertkit.train.runs import Progress
from bertkit.train.schedule import Budget, Schedule

# name -> (sum, count, right)
Sums = Mapping[str, tuple[Tensor, Tensor, Tensor]]


class LossModule(nn.Module):
    """A module whose forward gives the `Sums` of each loss."""

    weights: Mapping[str, float]  # of each loss


@dataclass(frozen=True)
class Micro:
    """One forward's worth of a step on one rank."""

    inputs: tuple[Any, ...]  # what the module is called with
    counts: Mapping[str, int]  # how many targets of each loss, known before the forward
    tokens: int
    seed: int  # of this forward's dropout and sampling


@dataclass(frozen=True)
class StepReport:
    """What one step did, over all ranks. Numbers of a GPU are waited for when they are asked for, and not before."""

    progress: Progress
    totals: Mapping[str, Tensor]  # (sum, count, right) of each loss
    norm_tensor: Tensor
    rate: float
    seconds: float  # since the last report
    bad: str | None = None  # what was not finite, if a step was left out for it: this one or, on CUDA, the one before

    @cached_property
    def losses(self) -> Mapping[str, float]:
        """Means."""
        return {name: loss / max(count, 1) for name, (loss, count, _) in self._values.items()}

    @cached_property
    def right(self) -> Mapping[str, float]:
        """Shares."""
        return {name: hits / max(count, 1) for name, (_, count, hits) in self._values.items()}

    @cached_property
    def norm(self) -> float:
        """Of all gradients, before clipping."""
        return float(self.norm_tensor)

    @cached_property
    def _values(self) -> dict[str, list[float]]:
        return {name: total.tolist() for name, total in self.totals.items()}


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """How to train, whatever is trained."""

    budget: Budget
    schedule: Schedule
    clip: float = 1.0
    most_skipped: int = 5  # NaN steps in a row before giving up
    autocast: bool = False  # bfloat16 by torch's own rules
    clock: Callable[[], float] = time.perf_counter
    look_back: bool | None = None  # hear of a NaN one step late, and never wait for the device; None: on CUDA


@dataclass(frozen=True, eq=False)
class Setup:
    """What all steps of a run share."""

    module: nn.Module
    weights: Mapping[str, float]  # of each loss
    optimizers: Optimizers
    settings: LoopSettings
    ranks: Ranks


# Setup, this rank's part of the step, learning rate -> (sums of each loss, gradient norm before clipping, tokens)
Take = Callable[[Setup, Sequence[Micro], float], tuple[dict[str, Tensor], Tensor, int]]


def train(
    module: nn.Module,
    weights: Mapping[str, float],
    micros: Callable[[int], Sequence[Micro]],
    optimizers: Optimizers,
    settings: LoopSettings,
    ranks: Ranks,
    start: Progress,
    take: Take | None = None,
) -> Iterator[StepReport]:
    """Yield after every step until the budget is spent; `micros(step)` gives this rank's part of a step.

    A step whose gradients are not finite is left out on the device itself. The host looks at their norm after the next
    step is under way (`look_back`), so that the device never waits for it. `take` is another way to take a step.
    """
    setup = Setup(module, weights, optimizers, settings, ranks)
    progress, before, looked_at = start, settings.clock(), deque[tuple[Callable[[], float], Sequence[Micro]]]()
    behind = int(ranks.device.type == "cuda" if settings.look_back is None else settings.look_back)
    while (spent := settings.budget.progress(progress.step, progress.seconds)) < 1:
        parts = micros(progress.step)
        rate = settings.schedule.rate(progress.step, spent)
        totals, norm, tokens = (take or take_step)(setup, parts, rate)
        looked_at.append((async_item(norm), parts))
        bad = None
        if len(looked_at) > behind:
            past_norm, past_parts = looked_at.popleft()
            if not math.isfinite(past_norm()):  # the norm is that of all ranks: they look together or not at all
                bad = first_bad_tensor(module, past_parts, ranks, autocast=settings.autocast)
        module.zero_grad(set_to_none=True)
        # Evaluating and saving between two steps count too, so that a budget of minutes ends on time.
        now = settings.clock()
        seconds, before = ranks.from_first_rank(now - before), now
        progress = _advanced(progress, seconds, tokens, skipped=bad is not None)
        _stop_after_many_nans(progress, bad, settings.most_skipped)
        yield StepReport(progress, totals, norm, rate, seconds, bad)


def take_step(setup: Setup, parts: Sequence[Micro], rate: float) -> tuple[dict[str, Tensor], Tensor, int]:
    """Gradients of all parts, clipped, and one update: (sums of each loss, norm before clipping, tokens)."""
    totals, tokens = _backward(setup.module, setup.weights, parts, setup.settings.autocast, setup.ranks)
    norm = full_tensor(nn.utils.clip_grad_norm_(setup.module.parameters(), setup.settings.clip)).detach()
    setup.optimizers.step(rate, norm)
    return totals, norm, tokens


def async_item(number: Tensor) -> Callable[[], float]:
    """Start copying a scalar to the host; the returned function waits for it, and for nothing queued behind it."""
    if not number.is_cuda:
        return lambda: float(number)
    home = torch.empty((), dtype=number.dtype, pin_memory=True).copy_(number, non_blocking=True)
    there = torch.cuda.Event()  # type: ignore[no-untyped-call]
    there.record()

    def wait() -> float:
        there.synchronize()
        return float(home)

    return wait


def _backward(
    module: nn.Module, weights: Mapping[str, float], parts: Sequence[Micro], autocast: bool, ranks: Ranks
) -> tuple[dict[str, Tensor], int]:
    """Gradients of sum / count over everything in the step: one division, so any cut of the step is the same step."""
    names = list(weights)
    local = torch.tensor(
        [*(sum(p.counts[n] for p in parts) for n in names), sum(p.tokens for p in parts)], dtype=torch.float64
    )
    *counts, tokens = (ranks.sum(local.to(ranks.device)) if ranks.size > 1 else local).tolist()
    totals = {name: torch.zeros(3, dtype=torch.float64, device=ranks.device) for name in names}
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        quiet = module.no_sync() if isinstance(module, DistributedDataParallel) and not last else nullcontext()
        torch.manual_seed(part.seed)  # dropout and sampling are a function of (seed, step, block), not of history
        with quiet, torch.autocast(ranks.device.type, torch.bfloat16, enabled=autocast):
            sums: Sums = module(*part.inputs)
            # DDP takes the mean over ranks, and the counts are those of all ranks: so times the number of ranks.
            loss = sum(weights[n] * sums[n][0] * (ranks.size / max(c, 1)) for n, c in zip(names, counts, strict=True))
            assert isinstance(loss, Tensor)
            loss.backward()  # type: ignore[no-untyped-call]
        for name in names:
            totals[name] += torch.stack([value.detach().double() for value in sums[name]])
    return {name: ranks.sum(total) for name, total in totals.items()}, int(tokens)


def _advanced(progress: Progress, seconds: float, tokens: int, *, skipped: bool) -> Progress:
    return replace(
        progress,
        step=progress.step + 1,
        seconds=progress.seconds + seconds,
        tokens=progress.tokens + tokens,
        skipped=progress.skipped + skipped,
        skipped_in_a_row=progress.skipped_in_a_row + 1 if skipped else 0,
    )


def _stop_after_many_nans(progress: Progress, bad: str | None, most: int) -> None:
    if progress.skipped_in_a_row > most:
        raise BertkitError(
            f"step {progress.step}: {bad} is NaN or infinite, and so were the {most} steps before; "
            "lower the learning rate or raise the warm-up; the last checkpoint is kept"
        )


def first_bad_tensor(module: nn.Module, parts: Sequence[Micro], ranks: Ranks, *, autocast: bool = False) -> str:
    """The first that is not finite: a weight, else what a part gives in a forward pass, else a gradient.

    Sharded tensors and forwards are collective, so no rank leaves a search before all ranks have finished it.
    """
    inner = module.module if isinstance(module, DistributedDataParallel) else module
    searches = (_bad_weight, lambda inner: _bad_output(inner, parts, ranks, autocast), _bad_gradient)
    for search in searches:
        if found := next(filter(None, ranks.gather(search(inner))), None):
            return found
    return "the norm of all gradients"


def _bad_weight(module: nn.Module) -> str | None:
    named = [name for name, parameter in module.named_parameters() if not torch.isfinite(full_tensor(parameter)).all()]
    return f"the weight {named[0]}" if named else None


def _bad_gradient(module: nn.Module) -> str | None:
    gradients = [(name, parameter.grad) for name, parameter in module.named_parameters() if parameter.grad is not None]
    named = [name for name, gradient in gradients if not torch.isfinite(full_tensor(gradient)).all()]
    return f"the gradient of {named[0]}" if named else None


def _bad_output(module: nn.Module, parts: Sequence[Micro], ranks: Ranks, autocast: bool) -> str | None:
    """Run the forwards again, slowly, and see which submodule is the first to give a number that is not finite."""
    found: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def look(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not torch.isfinite(output).all():
                found.append(name)

        return look

    hooks = [inner.register_forward_hook(watch(name)) for name, inner in module.named_modules() if name]
    half = torch.autocast(ranks.device.type, torch.bfloat16, enabled=autocast)
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), half:
            for part in parts:
                torch.manual_seed(part.seed)
                module(*part.inputs)
    finally:
        for hook in hooks:
            hook.remove()
        reshard(module)
    where = f" on rank {ranks.rank}" if ranks.size > 1 else ""
    return f"the output of {found[0]}{where}" if found else None
