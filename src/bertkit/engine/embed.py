"""The one path from tokens to embeddings: cut or windows, batches by token budget, forward, pooling, stitching.

Python and files go through `embed_blocks`. The server forms batches out of several requests, so that it calls the steps
of the path by themselves: `split_text`, `vectors_of` and `stitched_vectors`.
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
    cut,
    each_batch,
    layer_vectors,
    make_batch,
    quickest,
    stitch,
    token_batches,
    token_budget,
    window_passages,
)
from bertkit.engine.cpu import onnx_of
from bertkit.engine.threads import threads_for
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.model.pooling import EmbedSettings, pool_array, vectors_of
from bertkit.text.length import LengthReport, TooLong, report_lengths
from bertkit.text.tokenizer import Tokenizer

Vectors = np.ndarray | list[np.ndarray]  # N D; without pooling L D of each text
Spans = Sequence[tuple[int, int]]
TEXTS_PER_BLOCK = 2048  # sorted by length within a block; enough for batches with hardly any waste
TEXTS_PER_GPU_BLOCK = 8192  # a GPU is waited for at the end of each block
MIN_LENGTH = 1e-12  # of a vector that is normalized, as in F.normalize


@dataclass(frozen=True)
class Embedded:
    """A block of texts in the order given: a vector for each, or without pooling a row for each of its tokens."""

    texts: list[str]
    vectors: Vectors
    lengths: LengthReport  # counts the texts among all


def split_text(tokens: Passage, limit: int, too_long: TooLong) -> tuple[list[Passage], Spans | None]:
    """What goes through the model for one text: all of it, its start, or windows over it with their spans."""
    if len(tokens.ids) <= limit:
        return [tokens], None
    return window_passages(tokens, limit) if too_long == "window" else ([cut(tokens, limit)], None)


def stitched_vectors(parts: Sequence[Tensor], spans: Spans, settings: EmbedSettings) -> Tensor:
    """D: the vector of one long text from the token vectors of its windows; without pooling L D."""
    x_LD = stitch(parts, spans)
    nothing = torch.zeros(len(x_LD), dtype=torch.long, device=x_LD.device)
    whole = Batch(nothing, nothing, (len(x_LD),))
    found = vectors_of(x_LD, whole, settings.pooling, normalize=settings.normalize)
    return found if settings.per_token else found[0]


def embed_blocks(
    model: BertModel,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    settings: EmbedSettings,
    limit: int,
    too_long: TooLong,
    where: Callable[[int], str] = "text number {}".format,
) -> Iterator[Embedded]:
    """Texts in, vectors out, block by block: memory does not grow with their number. `where` names text number n."""
    settings, done = settings.resolved(model.config.depth), 0
    on_gpu = model.device.type == "cuda"
    texts = iter(texts)
    blocks = iter(lambda: list(islice(texts, TEXTS_PER_GPU_BLOCK if on_gpu else TEXTS_PER_BLOCK)), [])
    for block, encodings in _encoded(tokenizer, settings.prefix, blocks, ahead=on_gpu):
        report = report_lengths([len(e.ids) for e in encodings], limit, too_long, first=done, where=where)
        yield Embedded(block, embed_passages(model, encodings, settings, limit, too_long), report)
        done += len(block)


def _encoded(
    tokenizer: Tokenizer, prefix: str, blocks: Iterator[list[str]], *, ahead: bool
) -> Iterator[tuple[list[str], list[Passage]]]:
    """Blocks with their tokens; `ahead`, each is encoded on another thread while the one before it is in use."""

    def encode(block: list[str]) -> list[Passage]:
        return [Passage(*plain) for plain in tokenizer.encode_plain([prefix + text for text in block])]

    if not ahead:
        yield from ((block, encode(block)) for block in blocks)
        return
    with ThreadPoolExecutor(1) as pool:
        waiting = ((block, pool.submit(encode, block)) for block in blocks)
        now = next(waiting, None)
        while now is not None:
            block, encoding = now
            now = next(waiting, None)
            yield block, encoding.result()


def embed_passages(
    model: BertModel, encodings: Sequence[Passage], settings: EmbedSettings, limit: int, too_long: TooLong
) -> Vectors:
    """The vectors of texts that are encoded already, in order; `settings` are resolved."""
    if len(encodings) == 1 and len(encodings[0].ids) <= limit:
        return _embed_one(model, encodings[0], settings)
    with torch.inference_mode():
        forward = quickest(model.encoder)
    split = [split_text(each, limit, too_long) for each in encodings]
    long = {
        index: _embed_windows(forward, model.device, passages, spans, settings)
        for index, (passages, spans) in enumerate(split)
        if spans is not None
    }
    whole = [index for index in range(len(split)) if index not in long]
    passages = [split[index][0][0] for index in whole]

    def compute(chosen: list[int]) -> Tensor | tuple[Tensor, ...]:
        batch = make_batch([passages[i] for i in chosen], model.device)
        x_TD = layer_vectors(forward, batch, settings.layers)
        found = vectors_of(x_TD, batch, settings.pooling, normalize=settings.normalize)
        return batch.split(found.cpu()) if settings.per_token else found

    lengths = [len(passage.ids) for passage in passages]
    batches = list(token_batches(lengths, token_budget(lengths, model.device)))
    computed = each_batch(compute, batches, sum(lengths), model.device)
    order = [*long, *(whole[i] for chosen in batches for i in chosen)]
    if settings.per_token:
        parts = [*long.values(), *(row for rows in computed for row in rows)]
        return [part.cpu().numpy() for _, part in sorted(zip(order, parts, strict=True), key=lambda each: each[0])]
    return _in_order(order, [*(vector[None] for vector in long.values()), *cast(list[Tensor], computed)])


def _in_order(order: Sequence[int], rows: Sequence[Tensor]) -> np.ndarray:
    """N D: the first of `rows` becomes row order[0], the next one row order[1], and so on."""
    if not order:
        return np.empty((0, 0), dtype=np.float32)
    rows_ND = torch.cat(list(rows))
    found_ND = torch.empty_like(rows_ND)
    found_ND[torch.tensor(order, device=rows_ND.device)] = rows_ND  # where the rows are: a GPU does it in no time
    if rows_ND.device.type != "cuda":
        return found_ND.cpu().numpy()
    # Through pinned memory, which the GPU writes to by itself; the copy belongs to the caller.
    staged_ND = torch.empty(found_ND.shape, dtype=found_ND.dtype, pin_memory=True)
    return staged_ND.copy_(found_ND).numpy().copy()


def _embed_one(model: BertModel, passage: Passage, settings: EmbedSettings) -> Vectors:
    """What the general way would give: a query waits for it, and sorting and sharing out took longer than a layer."""
    plain = settings.layers == (model.config.depth,) and not settings.per_token
    short = onnx_of(model.encoder)
    if short is not None and plain and short.takes(passage.ids, passage.segments):
        vector_D = pool_array(short(passage.ids), settings.pooling)
        length = max(math.sqrt(vector_D.dot(vector_D)), MIN_LENGTH) if settings.normalize else 1
        return (vector_D / length if settings.normalize else vector_D)[None]

    with torch.inference_mode(), threads_for(len(passage.ids), model.device):
        batch = make_batch([passage], model.device)
        x_TD = layer_vectors(model.encoder, batch, settings.layers)
        found = vectors_of(x_TD, batch, settings.pooling, normalize=settings.normalize).cpu().numpy()
    return [found] if settings.per_token else found


def _embed_windows(
    forward: Forward, device: torch.device, passages: Sequence[Passage], spans: Spans, settings: EmbedSettings
) -> Tensor:
    """One long text: its windows in batches, stitched to one sequence, pooled like any other."""
    longest = len(passages[0].ids)
    per_batch = max(1, token_budget([longest] * len(passages), device) // longest)
    batches = [list(range(len(passages)))[at : at + per_batch] for at in range(0, len(passages), per_batch)]

    def compute(chosen: list[int]) -> tuple[Tensor, ...]:
        batch = make_batch([passages[i] for i in chosen], device)
        return batch.split(layer_vectors(forward, batch, settings.layers))

    tokens = sum(len(passage.ids) for passage in passages)
    parts = [part for found in each_batch(compute, batches, tokens, device) for part in found]
    with torch.inference_mode():
        found = stitched_vectors(parts, spans, settings)
    return found.cpu() if settings.per_token else found  # a row for each token would fill a GPU's memory
