"""Sentences → ids for a whole corpus, by the library: correct for every tokenizer, and the slow twin of table_ids.py.

A special token written in a text, like [MASK], counts as ordinary characters: text never becomes special tokens.
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

BATCH = 4096  # texts that the library encodes at once


@dataclass(frozen=True)
class EncodedTexts:
    """The ids of several texts end to end, 1 for each token that begins a word, and how many tokens each text has."""

    ids: Ids
    words: Flags
    lengths: Integers


def ids_dtype(vocabulary: int) -> str:
    """The smallest unsigned type that holds every id, little-endian."""
    return "<u2" if vocabulary <= 1 << 16 else "<u4"


def sentence_texts(paragraph: str) -> Iterator[str]:
    """The sentences, each with the white space before it, which byte-level pieces need to see."""
    end = 0
    for _, stop in split_sentences(paragraph):
        yield paragraph[end:stop]
        end = stop


class LibraryIds:
    """Every text through the library."""

    def __init__(self, backend: Backend, names: SpecialTokens) -> None:
        self.backend = backend
        self.backend.encode_special_tokens = True  # "[MASK]" in a text is a bracket, a word and a bracket
        vocab = backend.get_vocab()
        self.size = max(vocab.values()) + 1
        self.dtype = np.dtype(ids_dtype(self.size))
        self.unknown = vocab[names.unk]
        # Where a special piece is spelled like a word, the library finds it even so: that word is unknown then.
        self.harmless = np.arange(self.size, dtype=self.dtype)
        self.harmless[[vocab[name] for name in asdict(names).values()]] = self.unknown

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        """The ids of the texts, without [CLS] and [SEP]."""
        ids, words, lengths = [np.empty(0, self.dtype)], [np.empty(0, np.uint8)], []
        for begin in range(0, len(texts), BATCH):
            batch = list(texts[begin : begin + BATCH])
            for encoding in self.backend.encode_batch(batch, add_special_tokens=False):
                ids.append(np.array(encoding.ids, self.dtype))
                words.append(np.diff(np.array(encoding.word_ids, np.int64), prepend=-1).astype(bool).view(np.uint8))
                lengths.append(len(encoding.ids))
        return EncodedTexts(self.harmless[np.concatenate(ids)], np.concatenate(words), np.array(lengths, np.int64))
