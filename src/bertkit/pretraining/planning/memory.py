"""Memory checks before the first step, with the largest block that fits: estimated on the CPU, tried on CUDA."""

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertkit.config import BertConfig
from bertkit.errors import RequestError
from bertkit.pretraining.recipe import Recipe
from bertkit.pretraining.stages import Stage

FLOAT32_BYTES = 4
COPIES = 4  # of each parameter: weight, gradient, and AdamW's two moments
CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def check_host_memory(recipe: Recipe, stage: Stage, parameter_bytes: int) -> None:
    """Refuse a block that does not fit into free memory, by an estimate that is rather too low."""
    free = free_memory()
    if free is None:
        return
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def needed(block: int) -> int:
        return local_ranks * (COPIES * parameter_bytes + activation_bytes(recipe, block * stage.data.length))

    if needed(stage.data.block) > free:
        fitting = next((block for block in smaller_blocks(stage) if needed(block) <= free), None)
        has = f"about {needed(stage.data.block) / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} GB are free"
        raise _too_little(stage, has, fitting)


def check_device_memory(attempt: Callable[[int, bool], None], stage: Stage, *, alone: bool) -> None:
    """Refuse a block whose training step does not fit into the GPU; `attempt(block, compiled)` runs such a step.

    Eager code needs more memory than compiled code, but no minute to compile, so it is tried first. With several ranks
    no smaller block is searched, because the other ranks would wait.
    """
    if _fits(attempt, stage.data.block, False) or _fits(attempt, stage.data.block, True):
        return
    blocks = smaller_blocks(stage) if alone else []
    raise _too_little(
        stage, "more memory than the GPU has", next((b for b in blocks if _fits(attempt, b, False)), None)
    )


def smaller_blocks(stage: Stage) -> list[int]:
    """Smaller blocks that divide the stage's batch, each about half of the previous one, down to 1."""
    blocks = [stage.data.block]
    while blocks[-1] > 1:
        blocks.append(next(block for block in range(blocks[-1] // 2, 0, -1) if stage.batch % block == 0))
    return blocks[1:]


def one_pass(module: nn.Module, weights: Mapping[str, float], inputs: Sequence[Any]) -> None:
    """Run forward and backward with as much extra memory as AdamW will use; gradients are cleared afterwards."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    reserved = [torch.empty_like(parameter) for parameter in trainable for _ in range(2)]
    try:
        sums = module(*inputs)
        loss = torch.stack([weight * sums[name][0] for name, weight in weights.items()]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
    finally:
        module.zero_grad(set_to_none=True)
        del reserved


def activation_bytes(recipe: Recipe, tokens: int) -> int:
    """A lower bound of the activations that a forward keeps for the backward, in float32."""
    model, data = recipe.model, recipe.data
    companions = [other for row in data.rows for other in row.companions(model, data.rate, recipe.train)]
    layers = sum(_activations_per_token(config) for config in (model, *(other.config for other in companions)))
    predicted = sum(row.word_share(data.rate) for row in data.rows) + sum(other.word_share for other in companions)
    return int(FLOAT32_BYTES * tokens * (layers + 2 * predicted * model.vocab_size))


def free_memory() -> int | None:
    """Free bytes of this machine and within the limits of this process; None if the system does not report them."""
    return min((free for free in (_meminfo(), _cgroup()) if free is not None), default=None)


def _activations_per_token(config: BertConfig) -> int:
    """Values of all layers; with dropout at widths 256 and 512, 3 to 13 % more were measured."""
    return config.depth * (12 * config.width + 3 * config.inner)


def _fits(attempt: Callable[[int, bool], None], block: int, compiled: bool) -> bool:
    try:
        attempt(block, compiled)
        return True
    except torch.OutOfMemoryError:
        return False
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def _too_little(stage: Stage, has: str, fitting: int | None) -> RequestError:
    block = f"block={stage.data.block} (sequences of {stage.data.length} tokens that are computed at once) needs {has}"
    if fitting is None:
        return RequestError(f"{block}; lower block, or choose a shorter length or a smaller model")
    return RequestError(f"{block}; block={fitting} fits")


def _meminfo() -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines() if ":" in line)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _cgroup() -> int | None:
    """Free bytes within a container's limit; None if it has no limit ("max")."""
    try:
        most, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        cache = next(
            int(line.split()[1])
            for line in (CGROUP / "memory.stat").read_text().splitlines()
            if line.startswith("inactive_file ")
        )
        return max(0, most - used + cache)  # the page cache can be reclaimed
    except (OSError, ValueError, StopIteration):
        return None
