"""Vectors of texts for training: evaluation and teachers. `engine/embed.py` is faster, and not for training."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.engine.batches import Passage, make_batch, token_batches, truncate
from bertkit.errors import RequestError
from bertkit.model.pooling import EmbedSettings
from bertkit.progress import ShowProgress, silent
from bertkit.text.tokenizer import Tokenizer

TEXTS_PER_BLOCK = 32_768  # tokenized and sorted by length together
TOKENS_PER_BATCH = {"cuda": 65_536, "cpu": 4_096}

Vectors = NDArray[np.floating]


def text_vectors(
    checkpoint: Checkpoint,
    texts: Sequence[str],
    *,
    length: int | None = None,
    kind: str = "float32",
    out: Vectors | None = None,
    show: ShowProgress = silent,
) -> Vectors:
    """A vector for each text, pooled as the checkpoint says or by the mean; over `length` tokens are truncated.

    The vectors have dtype `kind`, or are written to `out`. On CUDA the layers compute in bfloat16.
    """
    settings, tokenizer = checkpoint.embed or EmbedSettings(), tokenizer_of(checkpoint)
    model, limit = checkpoint.model, min(length or checkpoint.max_length, checkpoint.max_length)
    if settings.layers != (-1,):
        raise RequestError(f"vectors of layers {settings.layers} are not for training; only those of the last one are")
    vectors = np.zeros((len(texts), settings.width(model.config.width)), dtype=kind) if out is None else out
    training = model.training
    model.eval()
    with show("vectors", len(texts)) as meter, torch.inference_mode():
        for start in range(0, len(texts), TEXTS_PER_BLOCK):
            block = [settings.prefix + text for text in texts[start : start + TEXTS_PER_BLOCK]]
            passages = [truncate(Passage(*plain), limit) for plain in tokenizer.encode_plain(block)]
            budget = TOKENS_PER_BATCH.get(model.device.type, TOKENS_PER_BATCH["cpu"])
            for chosen in token_batches([len(passage.ids) for passage in passages], budget):
                batch_vectors = _vectors(checkpoint, [passages[i] for i in chosen], settings)
                vectors[[start + i for i in chosen]] = batch_vectors.cpu().numpy()
                meter.update(start + len(block))
    model.train(training)
    return vectors


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """The checkpoint's tokenizer; a checkpoint without one is refused."""
    if checkpoint.tokenizer is None:
        raise RequestError("the model's folder holds no tokenizer; texts cannot become vectors without one")
    return checkpoint.tokenizer


def _vectors(checkpoint: Checkpoint, passages: Sequence[Passage], settings: EmbedSettings) -> Tensor:
    model = checkpoint.model
    batch = make_batch(passages, model.device)
    with torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda"):
        hidden_TD = model(batch)
    return settings.vectors(hidden_TD.float(), batch)
