"""Texts to vectors: any pooling, any layers, any length."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.errors import BertkitWarning, RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.model.pooling import POOLINGS, EmbedSettings, pool
from bertkit.predict.engine import (
    TOKENS_PER_BATCH,
    Passage,
    cut,
    layer_vectors,
    make_batch,
    stitch,
    token_batches,
    window_passages,
)
from bertkit.predict.length import LengthReport, TooLong, report_lengths
from bertkit.text.tokenizer import Encoding

Vectors = list[np.ndarray]


@dataclass(frozen=True)
class Embedded:
    """One vector for each text in the order given, or with pooling 'none' one row for each of its tokens."""

    vectors: Vectors
    lengths: LengthReport


def embed(
    model: BertModel, encodings: Sequence[Encoding], settings: EmbedSettings, limit: int, too_long: TooLong
) -> Embedded:
    """Vectors of encoded texts, float32."""
    settings = _checked(settings, model.config.depth)
    lengths = [len(encoding.ids) for encoding in encodings]
    report = report_lengths(lengths, limit, too_long)
    if report.long:
        warnings.warn(str(report), BertkitWarning, stacklevel=3)
    windowed = {index for index, _ in report.long} if too_long == "window" else set()
    vectors: dict[int, np.ndarray] = {}
    whole = [index for index in range(len(encodings)) if index not in windowed]
    with torch.inference_mode():
        passages = [cut(encodings[index], limit) for index in whole]
        for chosen in token_batches([len(p.ids) for p in passages]):
            found = _embed_batch(model, [passages[i] for i in chosen], settings)
            vectors |= dict(zip((whole[i] for i in chosen), found, strict=True))
        for index in windowed:
            vectors[index] = _embed_windows(model, encodings[index], settings, limit)
    return Embedded([vectors[index] for index in range(len(encodings))], report)


def _checked(settings: EmbedSettings, depth: int) -> EmbedSettings:
    """Known pooling, layers counted from the bottom: 0 the embeddings, `depth` the last."""
    if settings.pooling != "none" and settings.pooling not in POOLINGS:
        raise RequestError(f"unknown pooling '{settings.pooling}'; choose from: {', '.join(POOLINGS)}, none")
    layers = tuple(depth + 1 + layer if layer < 0 else layer for layer in settings.layers)
    if not layers or not all(0 <= layer <= depth for layer in layers):
        raise RequestError(
            f"layers {settings.layers} must be from 0 (embeddings) to {depth}, or -1 (last) to {-depth - 1}"
        )
    return replace(settings, layers=layers)


def _embed_batch(model: BertModel, passages: list[Passage], settings: EmbedSettings) -> Vectors:
    batch = make_batch(passages, model.device)
    return _pool(layer_vectors(model.encoder, batch, settings.layers), batch, settings)


def _embed_windows(model: BertModel, encoding: Encoding, settings: EmbedSettings, limit: int) -> np.ndarray:
    """One long text: its windows in batches, stitched to one sequence, pooled like any other."""
    passages, spans = window_passages(encoding, limit)
    per_batch = max(1, TOKENS_PER_BATCH // limit)
    parts: list[Tensor] = []
    for start in range(0, len(passages), per_batch):
        batch = make_batch(passages[start : start + per_batch], model.device)
        parts += batch.split(layer_vectors(model.encoder, batch, settings.layers))
    whole = Batch(torch.tensor(encoding.ids), torch.tensor(encoding.segments), (len(encoding.ids),)).to(model.device)
    return _pool(stitch(parts, spans), whole, settings)[0]


def _pool(x_TD: Tensor, batch: Batch, settings: EmbedSettings) -> Vectors:
    pooled = batch.split(x_TD) if settings.pooling == "none" else pool(x_TD, batch, settings.pooling)
    rows = [F.normalize(row, dim=-1) for row in pooled] if settings.normalize else list(pooled)
    return [row.float().cpu().numpy() for row in rows]
