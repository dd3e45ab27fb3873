"""The training plan for a number of minutes: for each model size its speed, batch, steps, memory and expected loss.

`probe` measures the speed of the device; the expected loss is a rough fit to published runs.
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
# Bytes kept for the backward pass, in bfloat16 (H200, three shapes: within 20 %). Float32 takes twice as much.
BYTES_PER_VALUE, BYTES_PER_LOGIT = 28, 6
BYTES_PER_PARAMETER = 16  # float32: weight, gradient, AdamW's two moments
MIN_STEPS = 5_000  # a batch so large that fewer steps are left wastes tokens
BATCH_RANGE = (32, 4096)
MEMORY_SHARE = 0.8  # of the device that a plan may use


@dataclass(frozen=True, kw_only=True)
class SizePlan:
    """The plan for one model size."""

    name: str
    parameters: int
    tokens_per_second: float
    share: float  # of the device's matmul rate
    batch: int  # sequences per step
    block: int  # sequences per forward pass; a step has batch / block of them
    steps: int
    tokens: int
    epochs: float | None
    memory_gib: float
    fits: bool
    expected_loss: float
    settings: str  # arguments for bertkit pretrain


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The plans for all sizes, and the recommended size."""

    minutes: float
    work: Work
    device: DeviceSpeed
    sizes: tuple[SizePlan, ...]
    recommended: str


# The expected loss, in nats per masked word.
#
# L = 0.62 + 0.69 x (406.4 / N^0.34 + 410.7 / D^0.28), N parameters of the layers' matrices, D training tokens.
# The bracket is Chinchilla's law for causal models (Hoffmann et al. 2022); offset and factor are fitted to
#   L12-H256, 0.82 G tokens:          2.72 (own run, H200, four minutes; the law says 2.72)
#   RoBERTa-base, 131 G tokens:       1.38 (its paper's perplexity of 3.99 on books and Wikipedia; the law: 1.40)
#   BERT-large, about 85 G tokens:    1.24 (NVIDIA's two phases, next-sentence loss included; the law: 1.23)
# Three points and two free parameters, over different vocabularies and corpora: rough, good for comparing sizes, not as
# a prediction. With less than a few million tokens a model only learns word frequencies, so the law is cut off there.
LOSS_FACTOR, LOSS_OFFSET = 0.69, 0.62
UNIGRAM_LOSS = 7.0  # about the loss of predicting by word frequency; with a small vocabulary 0.8 ln(size) is less
MAX_EPOCHS = 40  # the runs above repeated their text 20 to 40 times; more repetition does not count


def expected_loss(matrix_parameters: float, tokens: float, work: Work) -> float:
    """The masked-word loss to expect after training on this many tokens: rough, see above."""
    if work.corpus_tokens is not None:
        tokens = min(tokens, MAX_EPOCHS * work.corpus_tokens)
    chinchilla = 406.4 / matrix_parameters**0.34 + 410.7 / max(tokens, 1) ** 0.28
    return float(min(UNIGRAM_LOSS, 0.8 * math.log(work.vocab_size), LOSS_OFFSET + LOSS_FACTOR * chinchilla))


def plan(
    minutes: float, device: torch.device | str, work: Work | None = None, *, speed: DeviceSpeed | None = None
) -> TrainingPlan:
    """Measure the device (unless its `speed` is given) and plan all sizes; the lowest expected loss is recommended."""
    if not 0 < minutes < math.inf:
        raise RequestError(f"minutes={minutes} must be a number over 0")
    work = work or Work()
    if speed is None:
        speed = measure(torch.device(device), work)
    sizes = tuple(plan_size(name, minutes, speed, work) for name in CANDIDATES)
    fitting = [size for size in sizes if size.fits and size.steps]
    if not fitting:
        raise RequestError(
            f"no size fits {speed.memory_gib:.1f} GiB in {minutes} minutes; use more memory or more minutes"
        )
    best = min(fitting, key=lambda size: (round(size.expected_loss, 2), size.parameters))
    return TrainingPlan(minutes=minutes, work=work, device=speed, sizes=sizes, recommended=best.name)


def plan_size(name: str, minutes: float, speed: DeviceSpeed, work: Work) -> SizePlan:
    """The plan for one size, without measuring."""
    config = size_config(name, work)
    flops = flops_per_token(config, work.length, work.predicted)
    batch = _batch(_tokens_per_second(config, speed, work, BATCH_RANGE[-1]) * 60 * minutes, speed.kind, work.length)
    rate = _tokens_per_second(config, speed, work, batch)
    block = _block(config, batch, speed, work)
    steps = int(rate * 60 * minutes / (batch * work.length))
    tokens = steps * batch * work.length
    needed = memory_needed(config, block, work, half=speed.kind == "cuda")
    matrix_parameters = config.depth * layer_parameters(config)
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
        fits=needed <= MEMORY_SHARE * speed.memory_gib,
        expected_loss=expected_loss(matrix_parameters, tokens, work),
        settings=_settings(name, batch, block, minutes, work),
    )


def size_config(name: str, work: Work) -> BertConfig:
    """The shape of a size, without dropout."""
    sizes: dict[str, Any] = {**CANDIDATES[name], "max_length": max(work.length, 128)}
    return family_config("bert", vocab_size=work.vocab_size, **sizes, **NO_DROPOUT)


def memory_needed(config: BertConfig, block: int, work: Work, *, half: bool) -> float:
    """GiB for training with `block` sequences per forward pass: rough, from three shapes on one device."""
    tokens, factor = block * work.length, 1 if half else 2
    values = tokens * (config.depth + 1) * config.width * BYTES_PER_VALUE * factor
    logits = tokens * work.predicted * work.vocab_size * BYTES_PER_LOGIT * factor
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
    notes = ["* recommended: the lowest expected loss in this time.  ! does not fit into memory.", f"  {best.settings}"]
    notes.append("The loss is estimated from three published runs: good for comparing sizes, no promise.")
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
    shape = CANDIDATES[name]
    size = f"size={name}" if name in SIZES else " ".join(f"{key}={value}" for key, value in shape.items())
    return f"{size} length={work.length} dropout=0 attention_dropout=0 batch={batch} block={block} minutes={minutes:g}"


def _tokens_per_second(config: BertConfig, speed: DeviceSpeed, work: Work, batch: int) -> float:
    """The speed that the measurements of the device predict."""
    operations = flops_per_token(config, work.length, work.predicted)
    values = moved_values(config, work, batch * work.length)
    return 1 / (speed.per_flop * operations + speed.per_value * values)


def _batch(tokens: float, kind: str, length: int) -> int:
    """The largest power of two that leaves enough steps; on CUDA large enough to use the device."""
    smallest, largest = BATCH_RANGE
    if kind == "cuda":
        smallest = max(smallest, 32_768 // length)
    batch = 1 << max(0, math.floor(math.log2(max(1.0, tokens / (MIN_STEPS * length)))))
    return min(max(batch, smallest), largest)


def _block(config: BertConfig, batch: int, speed: DeviceSpeed, work: Work) -> int:
    """Sequences per forward pass: the batch, halved until it fits into memory."""
    block = batch
    while block > 1 and memory_needed(config, block, work, half=speed.kind == "cuda") > MEMORY_SHARE * speed.memory_gib:
        block //= 2
    return block
