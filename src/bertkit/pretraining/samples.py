"""Predicted words for a few fixed sentences, recorded during training."""

from collections.abc import Sequence
from itertools import compress
from typing import Any

import torch

from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.text.tokenizer import Tokenizer

BLANK = "[MASK]"  # in SENTENCES; other tokenizers have another mask token
SENTENCES = (
    "The capital of France is [MASK].",
    "She opened the [MASK] and went into the house.",
    "He was born in the [MASK] of 1950.",
    "The [MASK] rises in the east and sets in the west.",
    "They drank a cup of hot [MASK] before breakfast.",
    "The children went to [MASK] to learn to read.",
    "A dog has four [MASK].",
    "It rained all day, so the streets were [MASK].",
)


@torch.no_grad()
def fill_samples(
    model: BertModel, tokenizer: Tokenizer, sentences: Sequence[str] = SENTENCES, top: int = 5
) -> list[dict[str, Any]]:
    """`{"text": ..., "words": [...]}` for each [MASK], most probable word first; for a line of metrics.jsonl.

    Sentences over the model's max_length are left out.
    """
    encoded = tokenizer.encode_batch([sentence.replace(BLANK, tokenizer.mask_token) for sentence in sentences])
    fits = [len(encoding) <= model.config.max_length for encoding in encoded]
    texts, encoded = list(compress(sentences, fits)), list(compress(encoded, fits))
    masks = [
        (row, position)
        for row, encoding in enumerate(encoded)
        for position, token_id in enumerate(encoding.ids)
        if token_id == tokenizer.mask_id
    ]
    if not masks:
        return []
    batch = Batch.pack([e.ids for e in encoded], [e.segments for e in encoded])
    starts = batch.offsets.tolist()
    positions = [starts[row] + position for row, position in masks]
    best = _top_ids(model, batch, positions, min(top, tokenizer.size), tokenizer.size)
    return [{"text": texts[row], "words": tokenizer.tokens(ids)} for (row, _), ids in zip(masks, best, strict=True)]


def _top_ids(model: BertModel, batch: Batch, positions: Sequence[int], top: int, vocab_size: int) -> list[list[int]]:
    """The `top` ids at each position; rows of the table beyond the vocabulary are ignored."""
    was_training = model.training
    model.eval()
    try:
        batch = batch.to(model.device)
        hidden_MD = model(batch)[list(positions)]
        logits_MV = model.read("masked_word", hidden_MD, batch)[:, :vocab_size]
        ids: list[list[int]] = logits_MV.topk(top).indices.tolist()
        return ids
    finally:
        model.train(was_training)
