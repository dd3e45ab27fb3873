"""The training loop is a generator: no callbacks, no trainer class; the caller's for-loop takes their place."""

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

# loss -> (sum of losses, number of targets, number correct)
Sums = Mapping[str, tuple[Tensor, Tensor, Tensor]]


class LossModule(nn.Module):
    """A module whose forward returns the `Sums` of each loss."""

    weights: Mapping[str, float]  # of each loss


@dataclass(frozen=True)
class MicroBatch:
    """The examples of one forward pass: a part of a step on one rank."""

    inputs: tuple[Any, ...]  # arguments of the module
    counts: Mapping[str, int]  # number of targets of each loss, known before the forward
    tokens: int
    seed: int  # for dropout and sampling


@dataclass(frozen=True)
class StepReport:
    """The result of one step over all ranks. Values on a GPU are copied to the host when they are first read."""

    progress: Progress
    totals: Mapping[str, Tensor]  # (sum, count, correct) of each loss
    norm_tensor: Tensor
    rate: float
    seconds: float  # since the last report
    nonfinite: str | None = None  # the tensor for which a step was skipped: this step or, on CUDA, the one before

    @cached_property
    def losses(self) -> Mapping[str, float]:
        """The mean of each loss."""
        return {name: loss / max(count, 1) for name, (loss, count, _) in self._values.items()}

    @cached_property
    def accuracies(self) -> Mapping[str, float]:
        """The share of correct predictions of each loss."""
        return {name: correct / max(count, 1) for name, (_, count, correct) in self._values.items()}

    @cached_property
    def norm(self) -> float:
        """The norm of all gradients, before clipping."""
        return float(self.norm_tensor)

    @cached_property
    def _values(self) -> dict[str, list[float]]:
        return {name: total.tolist() for name, total in self.totals.items()}


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """Settings of the loop that do not depend on what is trained."""

    budget: Budget
    schedule: Schedule
    clip: float = 1.0
    most_skipped: int = 5  # steps in a row with NaN before the run fails
    autocast: bool = False  # torch.autocast to bfloat16
    clock: Callable[[], float] = time.perf_counter
    late_nan_check: bool | None = None  # check for NaN one step late, without waiting for the device; None: on CUDA


@dataclass(frozen=True, eq=False)
class StepContext:
    """What all steps of a run share."""

    module: nn.Module
    weights: Mapping[str, float]  # of each loss
    optimizers: Optimizers
    settings: LoopSettings
    ranks: Ranks


# context, this rank's part of the step, learning rate -> (sums of each loss, gradient norm before clipping, tokens)
StepFunction = Callable[[StepContext, Sequence[MicroBatch], float], tuple[dict[str, Tensor], Tensor, int]]


def train(
    module: nn.Module,
    weights: Mapping[str, float],
    micro_batches: Callable[[int], Sequence[MicroBatch]],
    optimizers: Optimizers,
    settings: LoopSettings,
    ranks: Ranks,
    start: Progress,
    take: StepFunction | None = None,
) -> Iterator[StepReport]:
    """Yield a report after each step until the budget is spent; `micro_batches(step)` is this rank's part of a step.

    A step whose gradients are not finite is skipped on the device. The host reads their norm after the next step has
    been launched (`late_nan_check`), so that the device never waits for the host. `take` replaces `take_step`.
    """
    context = StepContext(module, weights, optimizers, settings, ranks)
    progress, before, unchecked = start, settings.clock(), deque[tuple[Callable[[], float], Sequence[MicroBatch]]]()
    delay = int(ranks.device.type == "cuda" if settings.late_nan_check is None else settings.late_nan_check)
    while (spent := settings.budget.progress(progress.step, progress.seconds)) < 1:
        parts = micro_batches(progress.step)
        rate = settings.schedule.rate(progress.step, spent)
        totals, norm, tokens = (take or take_step)(context, parts, rate)
        unchecked.append((async_item(norm), parts))
        nonfinite = None
        if len(unchecked) > delay:
            past_norm, past_parts = unchecked.popleft()
            if not math.isfinite(past_norm()):  # the norm is over all ranks, so all of them search, or none
                nonfinite = first_nonfinite(module, past_parts, ranks, autocast=settings.autocast)
        module.zero_grad(set_to_none=True)
        # Time for evaluating and saving between two steps counts too, so that a budget of minutes ends on time.
        now = settings.clock()
        seconds, before = ranks.from_first_rank(now - before), now
        progress = _advanced(progress, seconds, tokens, skipped=nonfinite is not None)
        _stop_after_many_nans(progress, nonfinite, settings.most_skipped)
        yield StepReport(progress, totals, norm, rate, seconds, nonfinite)


def take_step(context: StepContext, parts: Sequence[MicroBatch], rate: float) -> tuple[dict[str, Tensor], Tensor, int]:
    """Compute and clip the gradients of all parts, and update: (sums of each loss, norm before clipping, tokens)."""
    totals, tokens = _backward(context.module, context.weights, parts, context.settings.autocast, context.ranks)
    norm = full_tensor(nn.utils.clip_grad_norm_(context.module.parameters(), context.settings.clip)).detach()
    context.optimizers.step(rate, norm)
    return totals, norm, tokens


def async_item(number: Tensor) -> Callable[[], float]:
    """Start copying a scalar to the host; the returned function waits for that copy, and for nothing after it."""
    if not number.is_cuda:
        return lambda: float(number)
    on_host = torch.empty((), dtype=number.dtype, pin_memory=True).copy_(number, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def wait() -> float:
        copied.synchronize()
        return float(on_host)

    return wait


def _backward(
    module: nn.Module, weights: Mapping[str, float], parts: Sequence[MicroBatch], autocast: bool, ranks: Ranks
) -> tuple[dict[str, Tensor], int]:
    """Gradients of sum / count over the whole step: with one division, any split of a step gives the same gradients."""
    names = list(weights)
    local = torch.tensor(
        [*(sum(p.counts[n] for p in parts) for n in names), sum(p.tokens for p in parts)], dtype=torch.float64
    )
    *counts, tokens = (ranks.sum(local.to(ranks.device)) if ranks.size > 1 else local).tolist()
    totals = {name: torch.zeros(3, dtype=torch.float64, device=ranks.device) for name in names}
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        no_sync = module.no_sync() if isinstance(module, DistributedDataParallel) and not last else nullcontext()
        ranks.seed(part.seed)  # dropout and sampling depend on (seed, step, block), not on earlier steps
        with no_sync, torch.autocast(ranks.device.type, torch.bfloat16, enabled=autocast):
            sums: Sums = module(*part.inputs)
            # DDP averages over ranks, but the counts are those of all ranks: so multiply by the number of ranks.
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


def _stop_after_many_nans(progress: Progress, nonfinite: str | None, most: int) -> None:
    if progress.skipped_in_a_row > most:
        raise BertkitError(
            f"step {progress.step}: {nonfinite} is NaN or infinite, and so were the {most} steps before; "
            "lower the learning rate or raise the warm-up; the last checkpoint is kept"
        )


def first_nonfinite(module: nn.Module, parts: Sequence[MicroBatch], ranks: Ranks, *, autocast: bool = False) -> str:
    """The name of the first tensor that is not finite: a weight, else the output of a submodule, else a gradient.

    Gathering sharded tensors and forwards are collective, so all ranks finish a search before any of them returns.
    """
    inner = module.module if isinstance(module, DistributedDataParallel) else module
    searches = (_nonfinite_weight, lambda inner: _nonfinite_output(inner, parts, ranks, autocast), _nonfinite_gradient)
    for search in searches:
        if name := next(filter(None, ranks.gather(search(inner))), None):
            return name
    return "the norm of all gradients"


def _nonfinite_weight(module: nn.Module) -> str | None:
    names = [name for name, parameter in module.named_parameters() if not torch.isfinite(full_tensor(parameter)).all()]
    return f"the weight {names[0]}" if names else None


def _nonfinite_gradient(module: nn.Module) -> str | None:
    gradients = [(name, parameter.grad) for name, parameter in module.named_parameters() if parameter.grad is not None]
    names = [name for name, gradient in gradients if not torch.isfinite(full_tensor(gradient)).all()]
    return f"the gradient of {names[0]}" if names else None


def _nonfinite_output(module: nn.Module, parts: Sequence[MicroBatch], ranks: Ranks, autocast: bool) -> str | None:
    """Run the forwards again with hooks: the first submodule whose output is not finite."""
    names: list[str] = []

    def checking_hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def check(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not torch.isfinite(output).all():
                names.append(name)

        return check

    hooks = [inner.register_forward_hook(checking_hook(name)) for name, inner in module.named_modules() if name]
    bfloat16 = torch.autocast(ranks.device.type, torch.bfloat16, enabled=autocast)
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), bfloat16:
            for part in parts:
                ranks.seed(part.seed)
                module(*part.inputs)
    finally:
        for hook in hooks:
            hook.remove()
        reshard(module)
    rank = f" on rank {ranks.rank}" if ranks.size > 1 else ""
    return f"the output of {names[0]}{rank}" if names else None
