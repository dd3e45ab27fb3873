"""Many texts through the model: packed batches of a bounded number of tokens, long texts through windows."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from bertkit.engine.cpu import cpu_operations
from bertkit.engine.threads import TOKENS_FOR_ONE_THREAD, at_once
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.operations import TORCH, Operations
from bertkit.text.tokenizer import Encoding
from bertkit.text.windows import window_cuts, windows

Found = TypeVar("Found")

# Large enough for work that ends with every batch, small enough for a BERT-large layer's activations (about 200 MB).
TOKENS_PER_BATCH = 4096
TOKENS_ON_CUDA = 32768  # enough for a GPU to be busy with its matrix products: 0.4 GB in BERT-base's widest place
# On a CPU a batch goes through the layers on one core, so that its activations should stay in that core's cache; and
# there should be several for every core, for they do not end together.
TOKENS_ON_CPU = 1024
FEW_TOKENS = 256  # too few to share among cores by batches: all of them work on each map instead


@dataclass(frozen=True)
class Forward:
    """An encoder and the operations that it is computed with."""

    encoder: Encoder
    ops: Operations = TORCH

    def __call__(self, batch: Batch) -> Tensor:
        """T D: the last layer's vectors."""
        whole_TD = self.ops.whole(batch)
        if whole_TD is not None:
            return whole_TD
        vectors_TD: Tensor = self.encoder(batch, None, self.ops)
        return vectors_TD

    def hidden_states(self, batch: Batch, depth: int | None = None) -> list[Tensor]:
        """The embeddings and each layer's output up to `depth`, T D each; the last of all is as in a call."""
        return self.encoder.hidden_states(batch, depth, self.ops)


def quickest(encoder: Encoder) -> Forward:
    """The encoder with the fastest operations that compute it on the device of its weights."""
    ops: Operations | None = None
    if encoder.embeddings.word.weight.is_cuda:
        from bertkit.engine.cuda import cuda_operations

        ops = cuda_operations(encoder)
    return Forward(encoder, ops or cpu_operations(encoder) or TORCH)


class Passage(NamedTuple):
    """What goes through the model in one piece: token ids with [CLS] in front and [SEP] behind."""

    ids: Sequence[int]
    segments: Sequence[int]


def cut(encoding: Encoding | Passage, limit: int) -> Passage:
    """The text's first tokens and its last one, [SEP]: at most `limit`."""
    ids, segments = encoding.ids, encoding.segments
    if len(ids) <= limit:
        return Passage(ids, segments)
    return Passage([*ids[: limit - 1], ids[-1]], [*segments[: limit - 1], segments[-1]])


def window_passages(encoding: Encoding | Passage, limit: int) -> tuple[list[Passage], list[tuple[int, int]]]:
    """Windows over a long text's tokens, each between [CLS] and [SEP]; the spans count from the first real token."""
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

    Where the next one is too long for what is left of a batch, the longest that is not goes in.
    """
    # From its end on: the longest first, and of equals the one that was given first.
    left = sorted(range(len(lengths)), key=lambda i: (lengths[i], -i))
    known = [lengths[i] for i in left]
    while left:
        batch = [left.pop()]
        room = budget - known.pop()
        while at := bisect_right(known, room):
            batch.append(left.pop(at - 1))
            room -= known.pop(at - 1)
        yield batch


def token_budget(lengths: Sequence[int], device: torch.device) -> int:
    """How many tokens to a batch: it depends on the texts alone, so that the same texts give the same bits."""
    if device.type != "cpu":
        return TOKENS_ON_CUDA
    return min(max(sum(lengths) // 16, FEW_TOKENS), TOKENS_ON_CPU)


def each_batch(
    compute: Callable[[list[int]], Found], batches: Sequence[list[int]], tokens: int, device: torch.device
) -> list[Found]:
    """What `compute` gives for each batch, in order. On a CPU, as many at a time as torch has threads, with one each.

    Cores that share a map's rows wait for each other at its end; cores with a batch of their own never do. Only one
    batch that is alone is shared among threads, unless all its `tokens` are few.
    """
    compute, threads = torch.inference_mode()(compute), torch.get_num_threads()
    alone = len(batches) == 1 and tokens > TOKENS_FOR_ONE_THREAD
    if device.type != "cpu" or threads == 1 or alone:
        return [compute(batch) for batch in batches]
    return at_once(compute, batches, threads)


def make_batch(passages: Sequence[Passage], device: torch.device) -> Batch:
    """Passages packed end to end on the model's device; a GPU is not waited for."""
    batch = Batch.pack([p.ids for p in passages], [p.segments for p in passages])
    if device.type != "cuda":
        return batch.to(device)
    return batch.laid_out().refilled([each.pin_memory().to(device, non_blocking=True) for each in batch.tensors])


def layer_vectors(forward: Encoder | Forward, batch: Batch, layers: Sequence[int]) -> Tensor:
    """T (D x layers): the chosen layers side by side; layers above the highest are never computed."""
    if isinstance(forward, Encoder):
        forward = quickest(forward)
    if list(layers) == [forward.encoder.config.depth]:
        return forward(batch)
    states = forward.hidden_states(batch, depth=max(layers))
    return torch.cat([states[layer] for layer in layers], dim=-1)


def last_layer(encoder: Encoder, passages: Sequence[Passage], device: torch.device) -> tuple[Batch, Tensor]:
    """Passages as a batch, and the last layer's vectors of its tokens, T D: what heads read."""
    batch = make_batch(passages, device)
    return batch, layer_vectors(encoder, batch, [encoder.config.depth])


class RowReader:
    """Reads one row of numbers for each sequence off a batch. Equal readers share recordings."""

    layers: tuple[int, ...]  # which ones it wants side by side, counted from the embeddings, 0

    def numbers(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """N R float32; it must not read the batch's `lengths`, which differ between batches of one form."""
        raise NotImplementedError

    def __call__(self, x_TD: Tensor, batch: Batch) -> list[np.ndarray]:
        """float32 [R] each."""
        return list(self.numbers(x_TD, batch).cpu().numpy())


def stitch(parts: Sequence[Tensor], spans: Sequence[tuple[int, int]]) -> Tensor:
    """L D of a whole long text: each token from the window that shows most around it, [CLS] and [SEP] averaged."""
    cuts = window_cuts(spans)
    body = [
        part[1 + start - span[0] : 1 + stop - span[0]]
        for part, span, (start, stop) in zip(parts, spans, pairwise(cuts), strict=True)
    ]
    first = torch.stack([part[0] for part in parts]).mean(dim=0, keepdim=True)
    last = torch.stack([part[-1] for part in parts]).mean(dim=0, keepdim=True)
    return torch.cat([first, *body, last])
