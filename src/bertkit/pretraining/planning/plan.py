"""What a number of minutes buys on this machine: for each size its speed, batch, steps, memory and expected loss.

`probe` measures the speed; the law of loss is fitted to published runs and rough.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from bertkit.config import SIZES, BertConfig, family_config
from bertkit.errors import RequestError
from bertkit.pretraining.planning.probe import NO_DROPOUT, DeviceSpeed, Work, measure, moved_values, parameters
from bertkit.train.speed import flops_per_token, layer_parameters, utilization

CANDIDATES: dict[str, dict[str, int]] = {
    **{name: SIZES[name] for name in ("tiny", "mini", "small", "medium")},
    "L12-H256": {"depth": 12, "width": 256, "heads": 4, "inner": 1024},
    **{name: SIZES[name] for name in ("base", "large")},
}
# Bytes held for the backward pass, in bfloat16 (H200, three shapes: within a fifth). Float32 takes twice as much.
BYTES_PER_VALUE, BYTES_PER_LOGIT = 28, 6
BYTES_PER_PARAMETER = 16  # float32: weight, gradient, AdamW's two moments
WANTED_STEPS = 5_000  # a larger batch than leaves this many wastes tokens
BATCHES = (32, 4096)
ROOM = 0.8  # of the memory may be planned for


@dataclass(frozen=True, kw_only=True)
class SizePlan:
    """What one size does in the time."""

    name: str
    parameters: int
    tokens_per_second: float
    share: float  # of the device's matmul rate
    batch: int  # sequences a step
    block: int  # sequences at once; a step is batch / block of them
    steps: int
    tokens: int
    epochs: float | None
    memory_gib: float
    fits: bool
    expected_loss: float
    settings: str  # what to give to bertkit pretrain


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """All sizes, and the one to take."""

    minutes: float
    work: Work
    device: DeviceSpeed
    sizes: tuple[SizePlan, ...]
    recommended: str


# The loss that is expected, in nats per masked word.
#
# L = 0.62 + 0.69 x (406.4 / N^0.34 + 410.7 / D^0.28), N numbers in the layers' matrices, D tokens seen.
# The bracket is Chinchilla's law for left-to-right models (Hoffmann et al. 2022); the line through it is fitted to
#   L12-H256, 0.82 G tokens:          2.72 (own run, H200, four minutes; the law says 2.72)
#   RoBERTa-base, 131 G tokens:       1.38 (its paper's perplexity of 3.99 on books and Wikipedia; the law: 1.40)
#   BERT-large, about 85 G tokens:    1.24 (NVIDIA's two phases, next-sentence loss included; the law: 1.23)
# Three points and two free numbers over different vocabularies and corpora: rough, better for comparing sizes than as
# a promise. Under a few million tokens a model only learns how frequent words are, so the law is cut off there.
SCALE, LEAST = 0.69, 0.62
FREQUENCIES_ONLY = 7.0  # the loss of knowing word frequencies alone, about; with few pieces 0.8 ln(pieces) is less
MOST_EPOCHS = 40  # the points above saw their text 20 to 40 times; more repetition is not counted


def expected_loss(matrix_numbers: float, tokens: float, work: Work) -> float:
    """The masked-word loss to expect of a size after so many tokens: rough, see above."""
    if work.corpus_tokens is not None:
        tokens = min(tokens, MOST_EPOCHS * work.corpus_tokens)
    hard = 406.4 / matrix_numbers**0.34 + 410.7 / max(tokens, 1) ** 0.28
    return float(min(FREQUENCIES_ONLY, 0.8 * math.log(work.vocab_size), LEAST + SCALE * hard))


def plan(
    minutes: float, device: torch.device | str, work: Work | None = None, *, speed: DeviceSpeed | None = None
) -> TrainingPlan:
    """Measure the device (unless its `speed` is given) and say what fits; the least expected loss is recommended."""
    if not 0 < minutes < math.inf:
        raise RequestError(f"minutes={minutes} must be a number over 0")
    work = work or Work()
    if speed is None:
        speed = measure(torch.device(device), work)
    sizes = tuple(plan_size(name, minutes, speed, work) for name in CANDIDATES)
    fitting = [size for size in sizes if size.fits and size.steps]
    if not fitting:
        raise RequestError(f"no size fits {speed.memory_gib:.1f} GiB in {minutes} minutes; take more of either")
    best = min(fitting, key=lambda size: (round(size.expected_loss, 2), size.parameters))
    return TrainingPlan(minutes=minutes, work=work, device=speed, sizes=sizes, recommended=best.name)


def plan_size(name: str, minutes: float, speed: DeviceSpeed, work: Work) -> SizePlan:
    """One row of the plan; no measuring here."""
    config = size_config(name, work)
    flops = flops_per_token(config, work.length, work.predicted)
    batch = _batch(_rate(config, speed, work, BATCHES[-1]) * 60 * minutes, speed.kind, work.length)
    rate = _rate(config, speed, work, batch)
    block = _block(config, batch, speed, work)
    steps = int(rate * 60 * minutes / (batch * work.length))
    tokens = steps * batch * work.length
    needed = memory_needed(config, block, work, half=speed.kind == "cuda")
    numbers = config.depth * layer_parameters(config)
    return SizePlan(
        name=name,
        parameters=parameters(config),
        tokens_per_second=rate,
        share=utilization(rate, flops, speed.matmul_rate),
        batch=batch,
        block=block,
        steps=steps,
        tokens=tokens,
        epochs=tokens / work.corpus_tokens if work.corpus_tokens else None,
        memory_gib=needed,
        fits=needed <= ROOM * speed.memory_gib,
        expected_loss=expected_loss(numbers, tokens, work),
        settings=_settings(name, batch, block, minutes, work),
    )


def size_config(name: str, work: Work) -> BertConfig:
    """A candidate's shape, without dropout."""
    sizes: dict[str, Any] = {**CANDIDATES[name], "max_length": max(work.length, 128)}
    return family_config("bert", vocab_size=work.vocab_size, **sizes, **NO_DROPOUT)


def memory_needed(config: BertConfig, block: int, work: Work, *, half: bool) -> float:
    """GiB for training with `block` sequences at once: rough, from three shapes on one device."""
    tokens, times = block * work.length, 1 if half else 2
    values = tokens * (config.depth + 1) * config.width * BYTES_PER_VALUE * times
    logits = tokens * work.predicted * work.vocab_size * BYTES_PER_LOGIT * times
    return (parameters(config) * BYTES_PER_PARAMETER + values + logits) / 2**30


def plan_table(plan: TrainingPlan) -> str:
    """The plan as text for a terminal."""
    head = ("size", "params", "tokens/s", "of matmul", "batch", "steps", "tokens", "epochs", "memory", "loss, about")
    rows = [_cells(size, size.name == plan.recommended) for size in plan.sizes]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)]
    best = next(size for size in plan.sizes if size.name == plan.recommended)
    device, work = plan.device, plan.work
    about = f"{plan.minutes:g} minutes on {device.kind}: plain matmul {device.matmul_rate / 1e12:,.3g} TFLOP/s, "
    about += f"{device.memory_gib:,.0f} GiB; sequences of {work.length}, {work.vocab_size:,} pieces"
    notes = ["* recommended: the least loss in this time.  ! does not fit the memory.", f"  {best.settings}"]
    notes.append("Loss by a law through three published runs: good for comparing sizes, no promise.")
    return "\n".join([about, "", *lines, "", *notes])


def _cells(size: SizePlan, recommended: bool) -> tuple[str, ...]:
    mark = "* " if recommended else "" if size.fits else "! "
    epochs = "-" if size.epochs is None else f"{size.epochs:,.1f}"
    batch = f"{size.batch:,}" if size.block == size.batch else f"{size.batch:,} by {size.block:,}"
    speed = (
        f"{size.tokens_per_second:,.0f}",
        f"{size.share:.0%}",
        batch,
        f"{size.steps:,}",
        f"{size.tokens / 1e6:,.1f} M",
    )
    return (mark + size.name, f"{size.parameters / 1e6:,.1f} M", *speed, epochs, f"{size.memory_gib:.1f} GiB",
            f"{size.expected_loss:.2f}")  # fmt: skip


def _settings(name: str, batch: int, block: int, minutes: float, work: Work) -> str:
    numbers = CANDIDATES[name]
    size = f"size={name}" if name in SIZES else " ".join(f"{key}={value}" for key, value in numbers.items())
    return f"{size} length={work.length} dropout=0 attention_dropout=0 batch={batch} block={block} minutes={minutes:g}"


def _rate(config: BertConfig, speed: DeviceSpeed, work: Work, batch: int) -> float:
    """Tokens a second, by the law of speed."""
    operations = flops_per_token(config, work.length, work.predicted)
    values = moved_values(config, work, batch * work.length)
    return 1 / (speed.per_flop * operations + speed.per_value * values)


def _batch(tokens: float, kind: str, length: int) -> int:
    """The largest power of two that leaves enough steps; on CUDA not so small that the device would idle."""
    smallest, largest = BATCHES
    if kind == "cuda":
        smallest = max(smallest, 32_768 // length)
    batch = 1 << max(0, math.floor(math.log2(max(1.0, tokens / (WANTED_STEPS * length)))))
    return min(max(batch, smallest), largest)


def _block(config: BertConfig, batch: int, speed: DeviceSpeed, work: Work) -> int:
    """As much of the batch at once as fits the memory: the batch halved until it does, or one sequence."""
    block = batch
    while block > 1 and memory_needed(config, block, work, half=speed.kind == "cuda") > ROOM * speed.memory_gib:
        block //= 2
    return block
