"""Texts to vectors: any pooling, any layers, any length."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.engine.batches import (
    Passage,
    cut,
    each_batch,
    layer_vectors,
    make_batch,
    stitch,
    token_batches,
    token_budget,
    window_passages,
)
from bertkit.engine.cpu import onnx_of
from bertkit.engine.forward import Forward, quickest
from bertkit.engine.threads import with_threads
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.model.pooling import POOLINGS, EmbedSettings, pool
from bertkit.predict.length import LengthReport, TooLong, report_lengths
from bertkit.text.tokenizer import Tokenizer

Vectors = np.ndarray | list[np.ndarray]  # N D; with pooling 'none' L D of each text
Rows = Tensor | tuple[Tensor, ...]
TEXTS_PER_BLOCK = 2048  # sorted by length within a block; enough for batches with hardly any waste
# Poolings of one text whose rows are at hand: the twins of model/pooling.py.
PLAINLY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda x_TD: np.add.reduce(x_TD) / np.float32(len(x_TD)),  # what np.mean does, without its questions
    "cls": lambda x_TD: x_TD[0],
    "first": lambda x_TD: x_TD[0],
}
TINY = 1e-12  # as F.normalize has it
TEXTS_FOR_A_GPU = 8192  # it is waited for at the end of each block


@dataclass(frozen=True)
class Embedded:
    """A block of texts in the order given: a vector for each, or with pooling 'none' a row for each of its tokens."""

    texts: list[str]
    vectors: Vectors
    lengths: LengthReport  # with the numbers that the texts have among all


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
    settings, done = checked(settings, model.config.depth), 0
    on_gpu = model.device.type == "cuda"
    blocks = _blocks(iter(texts), TEXTS_FOR_A_GPU if on_gpu else TEXTS_PER_BLOCK)
    encoded = _encoded(tokenizer, settings.prefix, blocks, ahead=on_gpu)
    for block, encodings in encoded:
        report = report_lengths([len(e.ids) for e in encodings], limit, too_long, first=done, where=where)
        yield Embedded(block, embed_passages(model, encodings, settings, limit, too_long), report)
        done += len(block)


def _blocks(texts: Iterator[str], count: int) -> Iterator[list[str]]:
    while block := list(islice(texts, count)):
        yield block


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
    """The vectors of texts that are encoded already, in order; `settings` as `checked` gives them."""
    if len(encodings) == 1 and len(encodings[0].ids) <= limit:
        return _embed_one(model, encodings[0], settings)
    with torch.inference_mode():
        forward = quickest(model.encoder)
    windowed = {i for i, e in enumerate(encodings) if len(e.ids) > limit} if too_long == "window" else set()
    long = {i: _embed_windows(forward, model.device, encodings[i], settings, limit) for i in windowed}
    whole = [index for index in range(len(encodings)) if index not in windowed]
    passages = [cut(encodings[index], limit) for index in whole]

    def compute(chosen: list[int]) -> Rows:
        batch = make_batch([passages[i] for i in chosen], model.device)
        return _pool(layer_vectors(forward, batch, settings.layers), batch, settings)

    lengths = [len(passage.ids) for passage in passages]
    batches = list(token_batches(lengths, token_budget(lengths, model.device)))
    computed = each_batch(compute, batches, sum(lengths), model.device)
    order = [*long, *(whole[i] for chosen in batches for i in chosen)]
    if settings.pooling == "none":
        parts = [*long.values(), *(row.numpy() for rows in computed for row in rows)]
        return [part for _, part in sorted(zip(order, parts, strict=True), key=lambda each: each[0])]
    return _in_order(order, [*long.values()], cast(list[Tensor], computed))


def _in_order(order: Sequence[int], long: Sequence[np.ndarray], computed: Sequence[Tensor]) -> np.ndarray:
    """N D: row order[0] is the first vector of `long`, which are followed by those of `computed`."""
    if not order:
        return np.empty((0, 0), dtype=np.float32)
    place = computed[0].device if computed else torch.device("cpu")
    rows_ND = torch.cat([*(torch.from_numpy(vector)[None].to(place) for vector in long), *computed])
    found_ND = torch.empty_like(rows_ND)
    found_ND[torch.tensor(order, device=place)] = rows_ND  # where the rows are: a GPU does it in no time
    return _fetched(found_ND)


def _fetched(rows_ND: Tensor) -> np.ndarray:
    """An array of one's own; off a GPU through pinned memory, which it writes to by itself."""
    if rows_ND.device.type != "cuda":
        return rows_ND.cpu().numpy()
    stage_ND = torch.empty(rows_ND.shape, dtype=rows_ND.dtype, pin_memory=True)
    return stage_ND.copy_(rows_ND).numpy().copy()


def _embed_one(model: BertModel, passage: Passage, settings: EmbedSettings) -> Vectors:
    """What the general way would give: a query waits for it, and sorting and sharing out took longer than a layer."""
    read = PLAINLY.get(settings.pooling) if settings.layers == (model.config.depth,) else None
    short = onnx_of(model.encoder)
    if short is not None and read is not None and short.takes(passage.ids, passage.segments):
        vector_D = read(short(passage.ids))
        return (vector_D / max(math.sqrt(vector_D.dot(vector_D)), TINY) if settings.normalize else vector_D)[None]

    @torch.inference_mode()
    def compute() -> Vectors:
        batch = make_batch([passage], model.device)
        return _arrays(_pool(layer_vectors(model.encoder, batch, settings.layers), batch, settings))

    return with_threads(compute, len(passage.ids), model.device)


def checked(settings: EmbedSettings, depth: int) -> EmbedSettings:
    """Known pooling, layers counted from the bottom: 0 the embeddings, `depth` the last."""
    if not isinstance(settings.pooling, str) or settings.pooling not in (*POOLINGS, "none"):
        raise RequestError(f"unknown pooling '{settings.pooling}'; choose from: {', '.join(POOLINGS)}, none")
    layers = tuple(depth + 1 + layer if layer < 0 else layer for layer in settings.layers)
    if not layers or not all(0 <= layer <= depth for layer in layers):
        raise RequestError(
            f"layers {settings.layers} must be from 0 (embeddings) to {depth}, or -1 (last) to {-depth - 1}"
        )
    return replace(settings, layers=layers)


def _embed_windows(
    forward: Forward, device: torch.device, encoding: Passage, settings: EmbedSettings, limit: int
) -> np.ndarray:
    """One long text: its windows in batches, stitched to one sequence, pooled like any other."""
    passages, spans = window_passages(encoding, limit)
    per_batch = max(1, token_budget([limit] * len(passages), device) // limit)
    batches = [list(range(len(passages)))[at : at + per_batch] for at in range(0, len(passages), per_batch)]

    def compute(chosen: list[int]) -> tuple[Tensor, ...]:
        batch = make_batch([passages[i] for i in chosen], device)
        return batch.split(layer_vectors(forward, batch, settings.layers))

    parts = [part for found in each_batch(compute, batches, len(encoding.ids), device) for part in found]
    whole = Batch(torch.tensor(encoding.ids), torch.tensor(encoding.segments), (len(encoding.ids),)).to(device)
    vector: np.ndarray = _arrays(_pool(stitch(parts, spans), whole, settings))[0]
    return vector


def _pool(x_TD: Tensor, batch: Batch, settings: EmbedSettings) -> Rows:
    """A row for each sequence, still where the model is; with pooling 'none' its tokens' rows, off it."""
    if settings.pooling == "none":
        return batch.split(_normalized(x_TD, settings).cpu())
    return _normalized(pool(x_TD, batch, settings.pooling), settings)


def _normalized(x_ND: Tensor, settings: EmbedSettings) -> Tensor:
    """In float32: half precision's lengths would be a quarter percent off 1."""
    return F.normalize(x_ND.float(), dim=-1) if settings.normalize else x_ND.float()


def _arrays(rows: Rows) -> Vectors:
    return rows.cpu().numpy() if isinstance(rows, Tensor) else [row.numpy() for row in rows]
