"""A tiny model over a real vocabulary, and three ways to run windows through it."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from bertkit.config import family_config
from bertkit.data.tables import Location
from bertkit.model import operations
from bertkit.model.attention import KERNELS
from bertkit.model.batch import Batch
from bertkit.model.model import new_model
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.tokenizer_files import ROBERTA_TOKENS
from bertkit.text.tokenizer_kinds.byte_level_bpe import byte_level_backend

PLACE = Location(Path("train.tsv"), 7)

# Letters, accents composed and apart, CJK, emoji with joiners, controls, spaces of no width, specials, odd casings.
ODD = [
    "a",
    "b",
    "Ada",
    "'",
    ".",
    "1",
    "é",
    "e\u0301",
    "\u0301",
    "o\u0323\u0302",
    "日",
    "本",
    "각",
    "\u1100\u1161\u11a8",
]
ODD += ["\U0001f469", "\u200d", "\U0001f469\u200d\U0001f467", "\ufe0f", "\x00", "\x07", "\u200b", "\u00ad", "\ufeff"]
ODD += ["ﬁ", "İ", "ß", "[SEP]", "[MASK]", "\u0e01\u0e47", "\u2028"]
odd_words = st.lists(st.sampled_from(ODD), min_size=1, max_size=4).map("".join)


def byte_tokenizer():
    """RoBERTa's special tokens over single bytes: odd characters are several tokens, and two separators part a pair."""
    pieces = [*asdict(ROBERTA_TOKENS).values(), *sorted(ByteLevel.alphabet())]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    return Tokenizer(byte_level_backend(vocab, [], ROBERTA_TOKENS, add_prefix_space=False), ROBERTA_TOKENS)


def tiny_model(tokenizer, head, outputs, **numbers):
    config = family_config("bert", "tiny", vocab_size=tokenizer.size, init_std=0.2, **numbers)
    return new_model(config, {head: outputs}, seed=5).eval()


def pack(windows):
    return Batch.pack([window.ids for window in windows], [window.segments for window in windows])


def outputs_of(model, head, windows):
    """The head's numbers, window by window, from one packed batch."""
    batch = pack(windows)
    with torch.inference_mode():
        logits = model.logits(batch, head)
    rows = batch.split(logits) if len(logits) == len(batch.ids) else logits
    return [row.numpy() for row in rows]


def three_ways(model, head, windows, monkeypatch):
    """Packed, one by one, padded."""
    packed = outputs_of(model, head, windows)
    alone = [outputs_of(model, head, [window])[0] for window in windows]
    with monkeypatch.context() as patch:
        patch.setattr(operations, "attend", KERNELS["padded"])
        padded = outputs_of(model, head, windows)
    return packed, alone, padded


def assert_near(ours, theirs):
    for left, right in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5, rtol=1e-4)
