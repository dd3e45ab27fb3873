"""Sentences → ids for a whole corpus by the `tokenizers` library: for every tokenizer; the slow twin of table_ids.py.

A special token written in a text, like [MASK], is tokenized as ordinary characters.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend

from bertkit.text.sentences import split_sentences
from bertkit.text.tokenizer_files import SpecialTokens

Ids = NDArray[Any]  # "<u2" or "<u4"
Flags = NDArray[np.uint8]
Integers = NDArray[np.int64]

TEXTS_PER_BATCH = 4096  # encoded at once


@dataclass(frozen=True)
class EncodedTexts:
    """The tokens of several texts, concatenated."""

    ids: Ids
    words: Flags  # 1 for each token that starts a word
    lengths: Integers  # tokens of each text


def ids_dtype(vocabulary: int) -> str:
    """The smallest unsigned little-endian dtype for all ids."""
    return "<u2" if vocabulary <= 1 << 16 else "<u4"


def sentence_texts(paragraph: str) -> Iterator[str]:
    """The sentences, each with the white space before it, which byte-level pieces include."""
    start = 0
    for _, stop in split_sentences(paragraph):
        yield paragraph[start:stop]
        start = stop


class LibraryIds:
    """Encodes every text by the library."""

    def __init__(self, backend: Backend, names: SpecialTokens) -> None:
        self.backend = backend
        self.backend.encode_special_tokens = True  # "[MASK]" in a text becomes a bracket, a word and a bracket
        vocab = backend.get_vocab()
        self.size = max(vocab.values()) + 1
        self.dtype = np.dtype(ids_dtype(self.size))
        self.unknown = vocab[names.unk]
        # The library still finds special tokens that are spelled like a word: these words become unknown.
        self.ordinary = np.arange(self.size, dtype=self.dtype)
        self.ordinary[[vocab[name] for name in asdict(names).values()]] = self.unknown

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        """The ids of the texts, without [CLS] and [SEP]."""
        ids, words, lengths = [np.empty(0, self.dtype)], [np.empty(0, np.uint8)], []
        for start in range(0, len(texts), TEXTS_PER_BATCH):
            batch = list(texts[start : start + TEXTS_PER_BATCH])
            for encoding in self.backend.encode_batch(batch, add_special_tokens=False):
                ids.append(np.array(encoding.ids, self.dtype))
                words.append(np.diff(np.array(encoding.word_ids, np.int64), prepend=-1).astype(bool).view(np.uint8))
                lengths.append(len(encoding.ids))
        return EncodedTexts(self.ordinary[np.concatenate(ids)], np.concatenate(words), np.array(lengths, np.int64))
