"""Device utilization of training: useful operations per token, relative to the rate of a plain matmul.

Only operations that the method requires are counted: no padding, no recomputation, no logits at unused positions. So
utilization is lower than a profiler's, and comparable between implementations.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bertkit.config import BertConfig

TRAINING_FLOPS = 6  # per weight of a matrix and token: multiply and add, once forward and twice backward
CUDA_MATMUL_SIDE = 8192  # rows and columns of the matrices that are multiplied to measure a device
CPU_MATMUL_SIDE = 1024


def flops_per_token(
    config: BertConfig, length: float, predicted: float, *, generator: BertConfig | None = None
) -> float:
    """Useful operations of training on one token of a text of `length` tokens, if a share `predicted` is predicted.

    For texts of several lengths, `length` is their `mean_attended_length`. With a `generator`, `config` is ELECTRA's
    discriminator, which judges every token, and the generator predicts the words.
    """
    if generator is None:
        return encoder_flops(config, length) + word_head_flops(config) * predicted
    head = TRAINING_FLOPS * (config.width**2 + config.width)
    return encoder_flops(config, length) + head + flops_per_token(generator, length, predicted)


def encoder_flops(config: BertConfig, length: float) -> float:
    """Operations of the encoder: matrices by use (a shared layer counts `depth` times), and attention."""
    widening = 0 if config.embedding_width in (None, config.width) else config.table_width * config.width
    matrices = config.depth * layer_parameters(config) + widening
    layers = 0 if config.recurrent else config.depth
    attended = sum(attended_tokens(config, length, layer) for layer in range(layers))
    return TRAINING_FLOPS * matrices + 2 * TRAINING_FLOPS * config.width * attended  # q . k and weights . v


def layer_parameters(config: BertConfig) -> int:
    """Parameters of one layer's matrices: query, key, value, output, and two or three of the feed-forward.

    Of a recurrent layer: those of the gates (four in an LSTM, three in a GRU) and of an LSTM's projection.
    """
    if config.recurrent:
        width = config.width // config.directions
        projected = width * config.inner if config.inner > width else 0
        one = 8 * config.inner * width + projected if config.parts.layer == "lstm" else 6 * width**2
        return config.directions * one
    maps = 3 if config.parts.feed_forward == "gated" else 2
    return 4 * config.width**2 + maps * config.width * config.inner


def attended_tokens(config: BertConfig, length: float, layer: int) -> float:
    """The number of tokens that one token attends to in a layer: all, or those in its window."""
    window = config.parts.window
    if window is None or layer % config.parts.global_every == 0:
        return length
    return min(length, 2 * (window // 2) + 1)


def word_head_flops(config: BertConfig) -> float:
    """Operations of the masked-word head at one position: dense layer and decoder."""
    return TRAINING_FLOPS * config.table_width * (config.width + config.vocab_size)


def mean_attended_length(lengths: Sequence[int]) -> float:
    """The mean over all tokens of the length of their text, which is what a token attends to."""
    return sum(length * length for length in lengths) / max(1, sum(lengths))


def utilization(tokens_per_second: float, flops: float, rate: float) -> float:
    """The share of `rate` (operations per second) that useful work takes, at `flops` per token."""
    return tokens_per_second * flops / rate if rate > 0 else 0.0


def matmul_rate(device: torch.device | str, seconds: float = 0.2) -> float:
    """Operations per second of a large plain matmul: bfloat16 on CUDA, float32 on the CPU. Takes about `seconds`."""
    device = torch.device(device)
    on_cuda = device.type == "cuda"
    side, dtype = (CUDA_MATMUL_SIDE, torch.bfloat16) if on_cuda else (CPU_MATMUL_SIDE, torch.float32)
    generator = torch.Generator(device).manual_seed(0)  # the global one must not change
    left, right = (torch.randn(side, side, device=device, dtype=dtype, generator=generator) for _ in range(2))
    out = torch.empty(side, side, device=device, dtype=dtype)
    timed = _cuda_seconds if on_cuda else _cpu_seconds

    def multiply() -> None:
        torch.mm(left, right, out=out)

    multiply()  # the library selects its kernel at the first call
    rounds = 4
    repeats = max(1, min(100, int(seconds / rounds / max(timed(multiply, 1), 1e-6))))
    fastest = min(timed(multiply, repeats) for _ in range(rounds))  # other load only makes a round longer
    return 2 * side**3 * repeats / fastest


def memory_gib(device: torch.device | str) -> float:
    """Peak memory so far, in GiB: torch's tensors on CUDA, the whole process elsewhere."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    import resource  # not on every system, and only the CPU needs it

    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def _cpu_seconds(work: Callable[[], None], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return time.perf_counter() - start


def _cuda_seconds(work: Callable[[], None], repeats: int) -> float:
    """Time by CUDA events, which does not include launching."""
    event: Callable[..., Any] = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000
