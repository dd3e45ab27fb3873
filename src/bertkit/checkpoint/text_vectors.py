"""Texts to vectors, plainly: what training measures by and learns from. `predict` has the fast way."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.pooling import EmbedSettings, pool
from bertkit.progress import ShowProgress, silent
from bertkit.text.tokenizer import Tokenizer

BLOCK = 32_768  # texts that are tokenized and sorted by length together
TOKENS = {"cuda": 65_536, "cpu": 4_096}  # through the model at once

Vectors = NDArray[np.floating]
Ids = Sequence[tuple[Sequence[int], Sequence[int]]]


def text_vectors(
    checkpoint: Checkpoint,
    texts: Sequence[str],
    *,
    length: int | None = None,
    kind: str = "float32",
    out: Vectors | None = None,
    show: ShowProgress = silent,
) -> Vectors:
    """A vector for each text, pooled as the checkpoint says, else by the mean; texts over `length` tokens are cut.

    They come as an array of `kind`, or are put into `out`. On CUDA the layers compute in bfloat16.
    """
    settings, tokenizer = checkpoint.embed or EmbedSettings(), tokenizer_of(checkpoint)
    model, limit = checkpoint.model, min(length or checkpoint.max_length, checkpoint.max_length)
    if settings.layers != (-1,):
        raise RequestError(f"vectors of layers {settings.layers} are not for training; only those of the last one are")
    vectors = np.zeros((len(texts), settings.width(model.config.width)), dtype=kind) if out is None else out
    training = model.training
    model.eval()
    with show("vectors", len(texts)) as meter, torch.inference_mode():
        for start in range(0, len(texts), BLOCK):
            block = [settings.prefix + text for text in texts[start : start + BLOCK]]
            encoded = [_cut(*each, limit) for each in tokenizer.encode_plain(block)]
            for chosen in _by_length(encoded, TOKENS.get(model.device.type, TOKENS["cpu"])):
                found = _pooled(checkpoint, [encoded[i] for i in chosen], settings)
                vectors[[start + i for i in chosen]] = found.cpu().numpy()
                meter.update(start + len(block))
    model.train(training)
    return vectors


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """The checkpoint's tokenizer, which it must have."""
    if checkpoint.tokenizer is None:
        raise RequestError("the model's folder holds no tokenizer; texts cannot become vectors without one")
    return checkpoint.tokenizer


def _pooled(checkpoint: Checkpoint, encoded: Ids, settings: EmbedSettings) -> Tensor:
    model = checkpoint.model
    batch = Batch.pack([ids for ids, _ in encoded], [segments for _, segments in encoded]).to(model.device)
    with torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda"):
        hidden_TD = model(batch)
    vectors_ND = pool(hidden_TD.float(), batch, settings.pooling)
    return F.normalize(vectors_ND, dim=-1) if settings.normalize else vectors_ND


def _cut(ids: Sequence[int], segments: Sequence[int], limit: int) -> tuple[Sequence[int], Sequence[int]]:
    """The first tokens and the last one, [SEP]."""
    if len(ids) <= limit:
        return ids, segments
    return [*ids[: limit - 1], ids[-1]], [*segments[: limit - 1], segments[-1]]


def _by_length(encoded: Ids, budget: int) -> Iterator[list[int]]:
    """Numbers of texts of about equal length, at most `budget` tokens together."""
    part: list[int] = []
    tokens = 0
    for index in sorted(range(len(encoded)), key=lambda i: -len(encoded[i][0])):
        if part and tokens + len(encoded[index][0]) > budget:
            yield part
            part, tokens = [], 0
        part.append(index)
        tokens += len(encoded[index][0])
    if part:
        yield part
