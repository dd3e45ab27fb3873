"""A device measured in seconds: its plain matmul, and real training steps at two widths, give a law of speed."""

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

# Widths and tokens of the two timed trainings, both two layers deep.
PROBES = {"cpu": ((128, 256), 2048), "cuda": ((256, 1024), 65_536)}
# A predicted word's logits cost this part of what a layer's values cost, number for number (H200, four shapes).
LOGIT_COST = 0.04
UPDATE_COST = 0.15  # and the update of a parameter this part, once a step
TIMING_SECONDS = 3.0  # for both, if they are quick
# A run of minutes sees no text often enough to learn it by heart.
NO_DROPOUT: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0}


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is to be trained on, whatever the model's size."""

    length: int = 128
    vocab_size: int = 30522
    predicted: float = 0.15
    corpus_tokens: int | None = None  # of the shards, to count epochs


@dataclass(frozen=True, kw_only=True)
class DeviceSpeed:
    """A device as the plan knows it: seconds = `per_flop` x useful operations + `per_value` x values moved."""

    kind: str  # cpu or cuda
    matmul_rate: float  # operations a second
    per_flop: float
    per_value: float
    memory_gib: float


def moved_values(config: BertConfig, work: Work, step_tokens: float) -> float:
    """Values that pass through memory for a token, in units of one layer's width; the embeddings are one layer."""
    layers = (config.depth + 1) * config.width
    return layers + LOGIT_COST * work.predicted * work.vocab_size + UPDATE_COST * parameters(config) / step_tokens


def parameters(config: BertConfig) -> int:
    """Numbers that are learned, norms and biases left out."""
    tables = config.vocab_size + config.max_length + config.segments
    return config.depth * layer_parameters(config) + tables * config.table_width + 2 * config.width**2


def measure(device: torch.device, work: Work, *, compiled: bool = True) -> DeviceSpeed:
    """Seconds on the device: one matmul, and a few training steps at two widths. Compiled code only on CUDA."""
    if device.type not in PROBES:
        raise RequestError(f"no plan for device '{device}'; choose from: {', '.join(PROBES)}")
    widths, tokens = PROBES[device.type]
    tokens = max(1, tokens // work.length) * work.length
    rate = matmul_rate(device)
    configs = [_probe_config(width, work) for width in widths]
    steps = [training_step(config, work, tokens, device, compiled=compiled) for config in configs]
    points = []
    for config, seconds in zip(configs, _shortest(steps, device), strict=True):
        flops = flops_per_token(config, work.length, work.predicted)
        points.append((flops, moved_values(config, work, tokens), seconds / tokens))
    per_flop, per_value = fit_speed(points, rate)
    return DeviceSpeed(
        kind=device.type, matmul_rate=rate, per_flop=per_flop, per_value=per_value, memory_gib=_memory(device)
    )


def fit_speed(points: list[tuple[float, float, float]], rate: float) -> tuple[float, float]:
    """(seconds per operation, seconds per value) through points of (operations, values, seconds), all per token.

    Noise must not make either absurd: no operation is faster than in the matmul, and no value takes less than nothing.
    """
    flops, values, seconds = np.array(points).T
    both = np.stack((flops, values), axis=1)
    # Relative errors count: the narrow model's few nanoseconds as much as the wide one's many.
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
    """One step of real training on `tokens` of made-up text, ready to be called."""
    objective = (
        ForPretraining(new_model(config, {"masked_word": None}), objective_rows(DataSettings().objective))
        .to(device)
        .train()
    )
    fixed = work.length if device.type == "cuda" else None
    batch, targets = to_inputs(_made_up(config, work, tokens), device, fixed_length=fixed)
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


def _made_up(config: BertConfig, work: Work, tokens: int) -> Examples:
    rng = np.random.default_rng(0)
    sequences = max(1, tokens // work.length)
    total = sequences * work.length
    ids = rng.integers(0, config.vocab_size, total).astype(np.int32)
    chosen = np.sort(rng.choice(total, max(1, int(work.predicted * total)), replace=False))
    lengths = np.full(sequences, work.length)
    return Examples(ids, np.zeros(total, np.int32), lengths, chosen, ids[chosen], None, 0)


def _shortest(steps: Sequence[Callable[[], None]], device: torch.device) -> list[float]:
    """The shortest seconds of each step. They take turns, so that a busy moment of the machine hits all alike."""
    for step in steps:  # compiles, and makes the optimizer's memory
        step()
    times: list[list[float]] = []
    began = time.perf_counter()
    while len(times) < 3 or (len(times) < 20 and time.perf_counter() - began < TIMING_SECONDS):
        times.append([_seconds(step, device) for step in steps])
    return [min(column) for column in zip(*times, strict=True)]


def _seconds(step: Callable[[], None], device: torch.device) -> float:
    _settle(device)
    began = time.perf_counter()
    step()
    _settle(device)
    return time.perf_counter() - began


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _memory(device: torch.device) -> float:
    """GiB of the device: all of the card, or all of the machine."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory) / 2**30
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
