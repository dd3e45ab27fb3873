"""Texts through an encoder: the fastest engine, packed batches by a token budget, windows over long texts."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from bertkit.config import BertConfig
from bertkit.engine.cpu import cpu_operations
from bertkit.engine.threads import TOKENS_FOR_ONE_THREAD, map_in_threads
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.operations import TORCH, Operations
from bertkit.text.tokenizer import Encoding
from bertkit.text.windows import window_cuts, windows

Result = TypeVar("Result")

# For work that waits for every batch: a BERT-large layer's activations take about 200 MB.
TOKENS_PER_BATCH = 4096
TOKENS_PER_CUDA_BATCH = 32768  # keeps a GPU busy with matrix products; the widest activations of BERT-base take 0.4 GB
# On a CPU a batch goes through the layers on one core, so its activations should fit in that core's cache; and there
# should be several batches per core, because they do not end at the same time.
MAX_TOKENS_PER_CPU_BATCH = 1024
MIN_TOKENS_PER_CPU_BATCH = 256  # fewer are not split into batches: all cores work on each matrix product instead


@dataclass(frozen=True)
class Forward:
    """An encoder and the operations of the engine that computes it."""

    encoder: Encoder
    ops: Operations = TORCH

    def __call__(self, batch: Batch) -> Tensor:
        """T D: the last layer's vectors."""
        output_TD = self.ops.whole_encoder(batch)
        if output_TD is not None:
            return output_TD
        vectors_TD: Tensor = self.encoder(batch, None, self.ops)
        return vectors_TD

    def hidden_states(self, batch: Batch, depth: int | None = None) -> list[Tensor]:
        """The embeddings and each layer's output up to `depth`, T D each; the last layer's with the final norm."""
        return self.encoder.hidden_states(batch, depth, self.ops)


def fastest(encoder: Encoder) -> Forward:
    """The encoder with the fastest operations that compute it on the device of its weights."""
    ops: Operations | None = None
    if encoder.embeddings.word.weight.is_cuda:
        from bertkit.engine.cuda import cuda_operations

        ops = cuda_operations(encoder)
    return Forward(encoder, ops or cpu_operations(encoder) or TORCH)


class Passage(NamedTuple):
    """One sequence of a batch: token ids from [CLS] to [SEP], and their segments."""

    ids: Sequence[int]
    segments: Sequence[int]


def known_segments(config: BertConfig, segments: Sequence[int]) -> Sequence[int]:
    """Segment ids that a model has: all 0 for a family without a second segment."""
    return segments if config.segments > max(segments, default=0) else [0] * len(segments)


def truncate(encoding: Encoding | Passage, limit: int) -> Passage:
    """At most `limit` tokens: the first ones and the last one, [SEP]."""
    ids, segments = encoding.ids, encoding.segments
    if len(ids) <= limit:
        return Passage(ids, segments)
    return Passage([*ids[: limit - 1], ids[-1]], [*segments[: limit - 1], segments[-1]])


def window_passages(encoding: Encoding | Passage, limit: int) -> tuple[list[Passage], list[tuple[int, int]]]:
    """Windows over a long text's tokens, each between [CLS] and [SEP]; spans count from the token after [CLS]."""
    ids, segments = list(encoding.ids), list(encoding.segments)
    room = limit - 2
    spans = windows(len(ids) - 2, room, overlap=room // 4)
    passages = [
        Passage([ids[0], *ids[1 + a : 1 + b], ids[-1]], [segments[0], *segments[1 + a : 1 + b], segments[-1]])
        for a, b in spans
    ]
    return passages, spans


def token_batches(lengths: Sequence[int], budget: int = TOKENS_PER_BATCH) -> Iterator[list[int]]:
    """Indices by length, longest first, in batches of at most `budget` tokens (one text at least).

    Each batch is filled up with the longest of the remaining texts that still fits.
    """
    # Read from the end: the longest first, and of equal ones the first.
    remaining = sorted(range(len(lengths)), key=lambda i: (lengths[i], -i))
    remaining_lengths = [lengths[i] for i in remaining]
    while remaining:
        batch = [remaining.pop()]
        room = budget - remaining_lengths.pop()
        while fitting := bisect_right(remaining_lengths, room):
            batch.append(remaining.pop(fitting - 1))
            room -= remaining_lengths.pop(fitting - 1)
        yield batch


def token_budget(lengths: Sequence[int], device: torch.device) -> int:
    """Tokens per batch. It depends on the texts alone, not on the cores, so that the same texts give the same bits."""
    if device.type != "cpu":
        return TOKENS_PER_CUDA_BATCH
    return min(max(sum(lengths) // 16, MIN_TOKENS_PER_CPU_BATCH), MAX_TOKENS_PER_CPU_BATCH)


def map_batches(
    compute: Callable[[list[int]], Result],
    batches: Sequence[list[int]],
    tokens: int,
    device: torch.device,
    tick: Callable[[int], None] | None = None,
) -> list[Result]:
    """`compute` of each batch, in order. On a CPU, a batch per thread at a time, for as many threads as torch has.

    Cores that share a matrix product wait for each other at its end; cores with a batch each do not wait. A single
    batch is shared among the threads, unless it has few `tokens`. `tick` is called with the size of each done.
    """
    compute, threads = torch.inference_mode()(compute), torch.get_num_threads()
    single = len(batches) == 1 and tokens > TOKENS_FOR_ONE_THREAD
    if device.type != "cpu" or threads == 1 or single:
        results: Iterable[Result] = map(compute, batches)
    else:
        results = map_in_threads(compute, batches, threads)
    finished = []
    for batch, result in zip(batches, results, strict=True):
        finished.append(result)
        if tick is not None:
            tick(len(batch))
    return finished


def make_batch(passages: Sequence[Passage], device: torch.device) -> Batch:
    """Passages packed end to end on the model's device; the copy to a GPU is asynchronous."""
    batch = Batch.pack([p.ids for p in passages], [p.segments for p in passages])
    if device.type != "cuda":
        return batch.to(device)
    return batch.laid_out().refilled([tensor.pin_memory().to(device, non_blocking=True) for tensor in batch.tensors])


def layer_vectors(forward: Encoder | Forward, batch: Batch, layers: Sequence[int]) -> Tensor:
    """T (D x layers): the chosen layers side by side; layers above the highest are never computed."""
    if isinstance(forward, Encoder):
        forward = fastest(forward)
    if list(layers) == [forward.encoder.config.depth]:
        return forward(batch)
    states = forward.hidden_states(batch, depth=max(layers))
    return torch.cat([states[layer] for layer in layers], dim=-1)


def last_layer(encoder: Encoder, passages: Sequence[Passage], device: torch.device) -> tuple[Batch, Tensor]:
    """Passages as a batch, and the last layer's vectors of its tokens, T D, which heads read."""
    batch = make_batch(passages, device)
    return batch, layer_vectors(encoder, batch, [encoder.config.depth])


class RowReader:
    """Computes one row for each sequence of a batch from its tokens' vectors. Equal readers share CUDA graphs."""

    layers: tuple[int, ...]  # the layers that it reads, side by side; 0 are the embeddings

    def rows(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """N R float32. It must not read the batch's `lengths`: a CUDA graph would repeat those it was recorded with."""
        raise NotImplementedError

    def __call__(self, x_TD: Tensor, batch: Batch) -> list[np.ndarray]:
        """float32 [R] for each sequence."""
        return list(self.rows(x_TD, batch).cpu().numpy())


def stitch(parts: Sequence[Tensor], spans: Sequence[tuple[int, int]]) -> Tensor:
    """L D of a long text: each token from the window with the most context around it; [CLS] and [SEP] averaged."""
    cuts = window_cuts(spans)
    body = [
        part[1 + start - span[0] : 1 + stop - span[0]]
        for part, span, (start, stop) in zip(parts, spans, pairwise(cuts), strict=True)
    ]
    first = torch.stack([part[0] for part in parts]).mean(dim=0, keepdim=True)
    last = torch.stack([part[-1] for part in parts]).mean(dim=0, keepdim=True)
    return torch.cat([first, *body, last])
