"""Watching a model learn: the same everyday sentences, their blanks filled again and again."""

from collections.abc import Sequence
from itertools import compress
from typing import Any

import torch

from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.text.tokenizer import Tokenizer

BLANK = "[MASK]"
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
    """`{"text": ..., "words": [...]}` for each blank, the likeliest word first; for a line of metrics.jsonl.

    The model is left in the mode it was in. Sentences that it is too short for are left out.
    """
    encoded = tokenizer.encode_batch([sentence.replace(BLANK, tokenizer.mask_token) for sentence in sentences])
    fits = [len(encoding) <= model.config.max_length for encoding in encoded]
    texts, encoded = list(compress(sentences, fits)), list(compress(encoded, fits))
    blanks = [(row, place) for row, e in enumerate(encoded) for place, i in enumerate(e.ids) if i == tokenizer.mask_id]
    if not blanks:
        return []
    batch = Batch.pack([e.ids for e in encoded], [e.segments for e in encoded])
    starts = batch.offsets.tolist()
    best = _best(model, batch, [starts[row] + place for row, place in blanks], min(top, tokenizer.size), tokenizer.size)
    return [{"text": texts[row], "words": tokenizer.tokens(ids)} for (row, _), ids in zip(blanks, best, strict=True)]


def _best(model: BertModel, batch: Batch, places: Sequence[int], top: int, known: int) -> list[list[int]]:
    """The `top` ids at each place; rows of the table beyond the vocabulary are no words."""
    was_training = model.training
    model.eval()
    try:
        batch = batch.to(model.device)
        hidden_MD = model(batch)[list(places)]
        logits_MV = model.read("masked_word", hidden_MD, batch)[:, :known]
        ids: list[list[int]] = logits_MV.topk(top).indices.tolist()
        return ids
    finally:
        model.train(was_training)
