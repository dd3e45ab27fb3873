"""Measure the training speed of a device: a plain matmul, and real training steps at two widths."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertkit.config import BertConfig, family_config
from bertkit.errors import RequestError
from bertkit.model.model import new_model
from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.examples.batches import DataSettings
from bertkit.pretraining.examples.inputs import to_inputs
from bertkit.pretraining.objectives.module import ForPretraining
from bertkit.pretraining.objectives.table import objective_rows
from bertkit.train.half import HalfPrecision
from bertkit.train.optimizer import build_optimizer
from bertkit.train.optimizer_rows import OptimizerSettings
from bertkit.train.speed import flops_per_token, layer_parameters, matmul_rate

# device -> (widths of the two timed models of two layers, tokens per step)
TIMED_MODELS = {"cpu": ((128, 256), 2048), "cuda": ((256, 1024), 65_536)}
LOGIT_COST = 0.04  # of one logit, relative to one value of a layer (H200, four shapes)
UPDATE_COST = 0.15  # of updating one parameter, once per step, relative to the same
TIMING_SECONDS = 3.0  # for both models, if they are fast
# Runs of minutes repeat no text often enough to overfit.
NO_DROPOUT: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0}


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is trained on, independent of the model's size."""

    length: int = 128
    vocab_size: int = 30522
    predicted: float = 0.15  # share of tokens
    corpus_tokens: int | None = None  # of the shards, to count epochs


@dataclass(frozen=True, kw_only=True)
class DeviceSpeed:
    """The measured speed of a device: seconds = `per_flop` x useful operations + `per_value` x values moved."""

    kind: str  # cpu or cuda
    matmul_rate: float  # operations per second
    per_flop: float
    per_value: float
    memory_gib: float


def moved_values(config: BertConfig, work: Work, step_tokens: float) -> float:
    """Values that pass through memory per token, in units of layer values; the embeddings count as one layer."""
    layers = (config.depth + 1) * config.width
    return layers + LOGIT_COST * work.predicted * work.vocab_size + UPDATE_COST * parameters(config) / step_tokens


def parameters(config: BertConfig) -> int:
    """The number of parameters, without norms and biases."""
    tables = config.vocab_size + config.max_length + config.segments
    return config.depth * layer_parameters(config) + tables * config.table_width + 2 * config.width**2


def measure(device: torch.device, work: Work, *, compiled: bool = True) -> DeviceSpeed:
    """Time a matmul and a few training steps at two widths; on CUDA the steps are compiled."""
    if device.type not in TIMED_MODELS:
        raise RequestError(f"no plan for device '{device}'; choose from: {', '.join(TIMED_MODELS)}")
    widths, tokens = TIMED_MODELS[device.type]
    tokens = max(1, tokens // work.length) * work.length
    rate = matmul_rate(device)
    configs = [_probe_config(width, work) for width in widths]
    steps = [training_step(config, work, tokens, device, compiled=compiled) for config in configs]
    points = []
    for config, seconds in zip(configs, _shortest_times(steps, device), strict=True):
        flops = flops_per_token(config, work.length, work.predicted)
        points.append((flops, moved_values(config, work, tokens), seconds / tokens))
    per_flop, per_value = fit_speed(points, rate)
    return DeviceSpeed(
        kind=device.type, matmul_rate=rate, per_flop=per_flop, per_value=per_value, memory_gib=_total_memory(device)
    )


def fit_speed(points: list[tuple[float, float, float]], rate: float) -> tuple[float, float]:
    """Fit (seconds per operation, seconds per value) to points of (operations, values, seconds), all per token.

    Bounds against noise: no operation is faster than in the matmul, and no value takes negative time.
    """
    flops, values, seconds = np.array(points).T
    both = np.stack((flops, values), axis=1)
    # Least squares of relative errors, so that the fast narrow model counts as much as the slow wide one.
    per_flop, per_value = np.linalg.lstsq(both / seconds[:, None], np.ones(len(seconds)), rcond=None)[0]
    if per_flop < 1 / rate:
        per_flop = 1 / rate
        per_value = max(0.0, float(np.mean((seconds - per_flop * flops) / values)))
    elif per_value < 0:
        per_flop, per_value = float(np.mean(seconds / flops)), 0.0
    return float(per_flop), float(per_value)


def training_step(
    config: BertConfig, work: Work, tokens: int, device: torch.device, *, compiled: bool
) -> Callable[[], None]:
    """A function that runs one real training step on `tokens` random tokens."""
    rows = objective_rows(DataSettings().objective)
    objective = ForPretraining(new_model(config, {"masked_word": None}), rows).to(device).train()
    fixed = work.length if device.type == "cuda" else None
    batch, targets = to_inputs(_random_examples(config, work, tokens), device, fixed_length=fixed)
    module: torch.nn.Module = HalfPrecision(objective) if device.type == "cuda" else objective
    if compiled and device.type == "cuda":
        module.compile()
    optimizers = build_optimizer(objective, OptimizerSettings())

    def step() -> None:
        [(loss, count, _)] = module(batch, targets).values()
        (loss / count).backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizers.step(1e-4)

    return step


def _probe_config(width: int, work: Work) -> BertConfig:
    sizes: dict[str, Any] = {"depth": 2, "width": width, "heads": width // 64, "inner": 4 * width}
    longest = max(work.length, 128)
    return family_config("bert", **sizes, vocab_size=work.vocab_size, max_length=longest, **NO_DROPOUT)


def _random_examples(config: BertConfig, work: Work, tokens: int) -> Examples:
    rng = np.random.default_rng(0)
    sequences = max(1, tokens // work.length)
    total = sequences * work.length
    ids = rng.integers(0, config.vocab_size, total).astype(np.int32)
    chosen = np.sort(rng.choice(total, max(1, int(work.predicted * total)), replace=False))
    lengths = np.full(sequences, work.length)
    return Examples(ids, np.zeros(total, np.int32), lengths, chosen, ids[chosen], None, 0)


def _shortest_times(steps: Sequence[Callable[[], None]], device: torch.device) -> list[float]:
    """The shortest time of each step in seconds; they are timed in turn, so that other load affects all of them."""
    for step in steps:  # compiles, and allocates the optimizer's state
        step()
    times: list[list[float]] = []
    start = time.perf_counter()
    while len(times) < 3 or (len(times) < 20 and time.perf_counter() - start < TIMING_SECONDS):
        times.append([_seconds(step, device) for step in steps])
    return [min(column) for column in zip(*times, strict=True)]


def _seconds(step: Callable[[], None], device: torch.device) -> float:
    _synchronize(device)
    start = time.perf_counter()
    step()
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _total_memory(device: torch.device) -> float:
    """GiB of the GPU, or of the machine."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory) / 2**30
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
