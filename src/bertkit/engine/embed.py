"""The one path from tokens to embeddings: truncation or windows, batches by token budget, forward, pooling, stitching.

`Bert.embed` and files go through `embed_blocks`. The server makes batches from several requests, so it calls the steps
by themselves: `split_text`, `vectors_of` and `stitched_vectors`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import cast

import numpy as np
import torch
from torch import Tensor

from bertkit.engine.batches import (
    Forward,
    Passage,
    fastest,
    layer_vectors,
    make_batch,
    map_batches,
    stitch,
    token_batches,
    token_budget,
    truncate,
    window_passages,
)
from bertkit.engine.cpu import onnx_of
from bertkit.engine.threads import threads_for
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.model.pooling import EmbedSettings, pool_array
from bertkit.text.length import LengthReport, TooLong, name_text, report_lengths
from bertkit.text.tokenizer import Tokenizer

Vectors = np.ndarray | list[np.ndarray]  # N D; without pooling L D of each text
Spans = Sequence[tuple[int, int]]
Tick = Callable[[int], None]  # of progress: so many texts more are done
TEXTS_PER_BLOCK = 2048  # texts are sorted by length within a block; enough for full batches
TEXTS_PER_GPU_BLOCK = 8192  # larger, because the GPU is synchronized at the end of each block
MIN_NORM = 1e-12  # smallest divisor in normalization, as in F.normalize


@dataclass(frozen=True)
class Embedded:
    """A block of texts in their order: a vector for each, or without pooling a vector for each of its tokens."""

    texts: list[str]
    vectors: Vectors
    lengths: LengthReport  # texts are numbered over all blocks


def split_text(tokens: Passage, limit: int, too_long: TooLong) -> tuple[list[Passage], Spans | None]:
    """The sequences that stand for one text: all of it, its start, or windows over it with their spans."""
    if len(tokens.ids) <= limit:
        return [tokens], None
    return window_passages(tokens, limit) if too_long == "window" else ([truncate(tokens, limit)], None)


def stitched_vectors(parts: Sequence[Tensor], spans: Spans, settings: EmbedSettings) -> Tensor:
    """D: the vector of one long text from the token vectors of its windows; without pooling L D."""
    x_LD = stitch(parts, spans)
    zeros = torch.zeros(len(x_LD), dtype=torch.long, device=x_LD.device)
    batch = Batch(zeros, zeros, (len(x_LD),))  # its ids are not read
    vectors = settings.vectors(x_LD, batch)
    return vectors if settings.per_token else vectors[0]


def embed_blocks(
    model: BertModel,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    settings: EmbedSettings,
    limit: int,
    too_long: TooLong,
    where: Callable[[int], str] = name_text,
    tick: Tick | None = None,
) -> Iterator[Embedded]:
    """Vectors of texts, block by block, in bounded memory. `where` names a text in messages.

    `tick` is called after each batch with its number of texts.
    """
    settings, done = settings.resolved(model.config.depth), 0
    on_gpu = model.device.type == "cuda"
    texts = iter(texts)
    blocks = iter(lambda: list(islice(texts, TEXTS_PER_GPU_BLOCK if on_gpu else TEXTS_PER_BLOCK)), [])
    for block, encodings in _encoded(tokenizer, settings.prefix, blocks, ahead=on_gpu):
        report = report_lengths([len(e.ids) for e in encodings], limit, too_long, first=done, where=where)
        yield Embedded(block, embed_passages(model, encodings, settings, limit, too_long, tick), report)
        done += len(block)


def _encoded(
    tokenizer: Tokenizer, prefix: str, blocks: Iterator[list[str]], *, ahead: bool
) -> Iterator[tuple[list[str], list[Passage]]]:
    """Blocks with their tokens; with `ahead`, the next block is encoded on another thread while one is in use."""

    def encode(block: list[str]) -> list[Passage]:
        return [Passage(*plain) for plain in tokenizer.encode_plain([prefix + text for text in block])]

    if not ahead:
        yield from ((block, encode(block)) for block in blocks)
        return
    with ThreadPoolExecutor(1) as pool:
        submitted = ((block, pool.submit(encode, block)) for block in blocks)
        upcoming = next(submitted, None)
        while upcoming is not None:
            block, encoding = upcoming
            upcoming = next(submitted, None)
            yield block, encoding.result()


def embed_passages(
    model: BertModel,
    encodings: Sequence[Passage],
    settings: EmbedSettings,
    limit: int,
    too_long: TooLong,
    tick: Tick | None = None,
) -> Vectors:
    """The vectors of tokenized texts, in order; `settings` are resolved."""
    if len(encodings) == 1 and len(encodings[0].ids) <= limit:
        return _embed_one(model, encodings[0], settings)
    with torch.inference_mode():
        forward = fastest(model.encoder)
    split = [split_text(encoding, limit, too_long) for encoding in encodings]
    long = {
        index: _embed_windows(forward, model.device, passages, spans, settings)
        for index, (passages, spans) in enumerate(split)
        if spans is not None
    }
    short = [index for index in range(len(split)) if index not in long]
    passages = [split[index][0][0] for index in short]

    def compute(chosen: list[int]) -> Tensor | tuple[Tensor, ...]:
        batch = make_batch([passages[i] for i in chosen], model.device)
        x_TD = layer_vectors(forward, batch, settings.layers)
        vectors = settings.vectors(x_TD, batch)
        return batch.split(vectors.cpu()) if settings.per_token else vectors

    lengths = [len(passage.ids) for passage in passages]
    batches = list(token_batches(lengths, token_budget(lengths, model.device)))
    computed = map_batches(compute, batches, sum(lengths), model.device, tick)
    order = [*long, *(short[i] for chosen in batches for i in chosen)]
    if settings.per_token:
        parts = [*long.values(), *(row for rows in computed for row in rows)]
        return [part.cpu().numpy() for _, part in sorted(zip(order, parts, strict=True), key=lambda pair: pair[0])]
    return _in_order(order, [*(vector[None] for vector in long.values()), *cast(list[Tensor], computed)])


def _in_order(order: Sequence[int], rows: Sequence[Tensor]) -> np.ndarray:
    """N D: row i of all `rows` together becomes row order[i]."""
    if not order:
        return np.empty((0, 0), dtype=np.float32)
    rows_ND = torch.cat(list(rows))
    ordered_ND = torch.empty_like(rows_ND)
    ordered_ND[torch.tensor(order, device=rows_ND.device)] = rows_ND
    if rows_ND.device.type != "cuda":
        return ordered_ND.cpu().numpy()
    # Through pinned memory, which the GPU copies to directly; the caller gets ordinary memory.
    staged_ND = torch.empty(ordered_ND.shape, dtype=ordered_ND.dtype, pin_memory=True)
    return staged_ND.copy_(ordered_ND).numpy().copy()


def _embed_one(model: BertModel, passage: Passage, settings: EmbedSettings) -> Vectors:
    """The same for one text, such as a query, without sorting and batching, which took longer than a layer."""
    last_layer = settings.layers == (model.config.depth,) and not settings.per_token
    last_layer = last_layer and settings.dense is None and settings.dimensions is None
    onnx = onnx_of(model.encoder)
    if onnx is not None and last_layer and onnx.takes(passage.ids, passage.segments):
        vector_D = pool_array(onnx(passage.ids), settings.pooling)
        norm = max(math.sqrt(vector_D.dot(vector_D)), MIN_NORM) if settings.normalize else 1
        return (vector_D / norm if settings.normalize else vector_D)[None]

    with torch.inference_mode(), threads_for(len(passage.ids), model.device):
        batch = make_batch([passage], model.device)
        x_TD = layer_vectors(model.encoder, batch, settings.layers)
        vectors = settings.vectors(x_TD, batch)
        return [vectors.cpu().numpy()] if settings.per_token else vectors.cpu().numpy()


def _embed_windows(
    forward: Forward, device: torch.device, passages: Sequence[Passage], spans: Spans, settings: EmbedSettings
) -> Tensor:
    """One long text: its windows in batches, stitched to one sequence, pooled like any other."""
    longest = len(passages[0].ids)
    per_batch = max(1, token_budget([longest] * len(passages), device) // longest)
    numbers = list(range(len(passages)))
    batches = [numbers[start : start + per_batch] for start in range(0, len(passages), per_batch)]

    def compute(chosen: list[int]) -> tuple[Tensor, ...]:
        batch = make_batch([passages[i] for i in chosen], device)
        return batch.split(layer_vectors(forward, batch, settings.layers))

    tokens = sum(len(passage.ids) for passage in passages)
    parts = [part for computed in map_batches(compute, batches, tokens, device) for part in computed]
    with torch.inference_mode():
        vectors = stitched_vectors(parts, spans, settings)
    return vectors.cpu() if settings.per_token else vectors  # vectors of all tokens would fill a GPU's memory
