"""How much of the device's arithmetic training uses: useful operations per token over what plain matmul reaches.

Only work that the method asks for counts: no padding, no recomputation, no logits at positions nobody asked about.
So the share is lower than a profiler's, and comparable between implementations.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bertkit.config import BertConfig

TRAINING = 6  # per number of a matrix and token: multiply and add, once forward and twice backward
CUDA_SIDE = 8192
CPU_SIDE = 1024


def flops_per_token(
    config: BertConfig, length: float, predicted: float, *, generator: BertConfig | None = None
) -> float:
    """Useful operations of training on one token of a text `length` long, `predicted` of whose words are asked for.

    For texts of several lengths, `length` is their `seen_length`. With a `generator`, `config` is ELECTRA's
    discriminator: it judges every token, and the generator names the words.
    """
    if generator is None:
        return encoder_flops(config, length) + word_head_flops(config) * predicted
    judging = TRAINING * (config.width**2 + config.width)
    return encoder_flops(config, length) + judging + flops_per_token(generator, length, predicted)


def encoder_flops(config: BertConfig, length: float) -> float:
    """The encoder's part: matrices by use (a shared layer counts `depth` times), and attention by what is seen."""
    matrices = config.depth * layer_numbers(config) + _widening(config)
    seen = sum(seen_tokens(config, length, layer) for layer in range(config.depth))
    return TRAINING * matrices + 2 * TRAINING * config.width * seen  # q . k and weights . v


def layer_numbers(config: BertConfig) -> int:
    """Numbers in one layer's matrices: query, key, value, output, and the feed-forward's two or three."""
    maps = 3 if config.parts.feed_forward == "gated" else 2
    return 4 * config.width**2 + maps * config.width * config.inner


def seen_tokens(config: BertConfig, length: float, layer: int) -> float:
    """How many tokens one token attends to in a layer: all, or its window on both sides and itself."""
    window = config.parts.window
    if window is None or layer % config.parts.global_every == 0:
        return length
    return min(length, 2 * (window // 2) + 1)


def word_head_flops(config: BertConfig) -> float:
    """The vocabulary head at one position: the dense map and the decoder."""
    return TRAINING * config.table_width * (config.width + config.vocab_size)


def seen_length(lengths: Sequence[int]) -> float:
    """How many tokens a token of these texts sees on average: long texts count for each of their many tokens."""
    return sum(length * length for length in lengths) / max(1, sum(lengths))


def share(tokens_per_second: float, flops: float, rate: float) -> float:
    """The part of `rate` (operations a second) that useful work takes, at `flops` a token."""
    return tokens_per_second * flops / rate if rate > 0 else 0.0


def matmul_rate(device: torch.device | str, seconds: float = 0.2) -> float:
    """Operations a second of a large plain matmul: bfloat16 on CUDA, float32 on the CPU. Takes about `seconds`."""
    device = torch.device(device)
    side, kind = (CUDA_SIDE, torch.bfloat16) if device.type == "cuda" else (CPU_SIDE, torch.float32)
    own = torch.Generator(device).manual_seed(0)  # not the stream that training draws from
    left, right = (torch.randn(side, side, device=device, dtype=kind, generator=own) for _ in range(2))
    out = torch.empty(side, side, device=device, dtype=kind)
    timed = _cuda_seconds if device.type == "cuda" else _cpu_seconds

    def multiply() -> None:
        torch.mm(left, right, out=out)

    multiply()  # the library picks its kernel at the first call
    rounds = 4
    repeats = max(1, min(100, int(seconds / rounds / max(timed(multiply, 1), 1e-6))))
    fastest = min(timed(multiply, repeats) for _ in range(rounds))  # what disturbs a round only makes it longer
    return 2 * side**3 * repeats / fastest


def memory_gib(device: torch.device | str) -> float:
    """The most memory held so far, in GiB: torch's tensors on CUDA, the whole process elsewhere."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    import resource  # not on every system, and only the CPU needs it

    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def _widening(config: BertConfig) -> int:
    """The map from narrow embedding tables to the encoder, where there is one."""
    return 0 if config.table_width == config.width else config.table_width * config.width


def _cpu_seconds(work: Callable[[], None], repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    return time.perf_counter() - began


def _cuda_seconds(work: Callable[[], None], repeats: int) -> float:
    """By the device's own clock: launching is not counted."""
    event: Callable[..., Any] = torch.cuda.Event
    began, ended = event(enable_timing=True), event(enable_timing=True)
    began.record()
    for _ in range(repeats):
        work()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1000
