"""Sentences → ids from a table of words: what the library gives, several times as fast, for BERT's own pipeline.

BERT cuts a text at white space and around punctuation before WordPiece sees it, so equal words have equal ids wherever
they are. The text is one buffer of UTF-8; arrays over its bytes find the words, a hash table in C
numbers the distinct ones, and only words that were never seen go through the library. Python's own work is per distinct
word. A chunk between spaces that has anything but printable ASCII in it is one "word" here: the library cuts it.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend

from bertkit.text.shards.sentence_ids import EncodedTexts, LibraryIds
from bertkit.text.tokenizer_files import SpecialTokens, load_backend

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]

ROOM = 500_000  # words the table keeps, about 150 bytes each; a full one starts anew
LONGEST_KEPT = 100  # bytes of a word worth keeping
SLICE = 8_000_000  # characters of text that are arrays at one time, about 15 bytes each

# Kinds of bytes; a chunk with an odd one in it becomes odd as a whole.
SPACE, LETTER, SIGN, ODD = range(4)


def load_encoder(path: Path) -> LibraryIds:
    """The fastest correct encoder for the tokenizer of a folder."""
    backend, names = load_backend(path)
    return TableIds(backend, names) if words_are_independent(backend) else LibraryIds(backend, names)


def words_are_independent(backend: Backend) -> bool:
    """Whether this is BERT's own pipeline, without added pieces that could hold a space or part of a word."""
    state = json.loads(backend.to_str())
    normalizer, model = state["normalizer"] or {}, state["model"]
    return (
        (normalizer.get("type"), normalizer.get("clean_text")) == ("BertNormalizer", True)
        and state["pre_tokenizer"] == {"type": "BertPreTokenizer"}
        and (model["type"], model["continuing_subword_prefix"]) == ("WordPiece", "##")
        and all(token["special"] for token in state["added_tokens"])
    )


class TableIds(LibraryIds):
    """Each distinct word through the library once; only for tokenizers whose words are independent."""

    def __init__(self, backend: Backend, names: SpecialTokens, *, room: int = ROOM, slice_size: int = SLICE) -> None:
        super().__init__(backend, names)
        self.room, self.slice_size = room, slice_size
        self.table: dict[bytes, bytes] = {}  # a word, and its ids as bytes
        lowercase = json.loads(backend.to_str())["normalizer"]["lowercase"]
        letters = bytes(range(256))
        self._cased = np.frombuffer(letters.lower() if lowercase else letters, np.uint8)
        self._kinds = _kinds()
        self._model = backend.model
        # No word begins with "##", since "#" is always a word of its own: so the piece alone decides.
        self._begins = np.ones(self.size, np.uint8)
        self._begins[[number for piece, number in backend.get_vocab().items() if piece.startswith("##")]] = 0

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        """The ids of the texts, without [CLS] and [SEP]."""
        ids, lengths = [np.empty(0, self.dtype)], [np.empty(0, np.int64)]
        for part in _slices(texts, self.slice_size):
            # A line end closes each text, so none may be inside; for BERT it is a space.
            lines = "\n".join([*(text.replace("\n", " ") for text in part), ""]).encode()
            some_ids, some_lengths = self._encode_lines(np.frombuffer(lines, np.uint8))
            ids.append(some_ids)
            lengths.append(some_lengths)
        joined = self.harmless[np.concatenate(ids)]
        return EncodedTexts(joined, self._begins[joined], np.concatenate(lengths))

    def _encode_lines(self, text: Bytes) -> tuple[NDArray[Any], Positions]:
        """The ids of all lines end to end, and how many each line has."""
        kinds = self._kinds[text]
        _spread_odd(kinds)
        begins = (kinds == SIGN) | ((kinds != SPACE) & (kinds != np.append(np.uint8(SPACE), kinds[:-1])))
        inside = kinds != SPACE
        numbers, distinct = _numbered(self._cased[text[inside]], np.flatnonzero(begins[inside]))
        rows = self._look_up(distinct)
        sizes = np.fromiter(map(len, rows), np.int32, len(rows)) // np.int32(self.dtype.itemsize)
        counts = sizes[numbers]
        ends = np.append(np.int32(0), np.cumsum(counts, dtype=np.int32))
        first = (np.cumsum(sizes, dtype=np.int32) - sizes)[numbers]
        positions = np.repeat(first - ends[:-1], counts)
        positions += np.arange(ends[-1], dtype=np.int32)
        words_before = np.searchsorted(np.flatnonzero(begins), np.flatnonzero(text == ord("\n")))
        line_ends = ends[words_before].astype(np.int64)
        return np.frombuffer(b"".join(rows), self.dtype)[positions], line_ends - np.append(0, line_ends[:-1])

    def _look_up(self, words: list[bytes]) -> list[bytes]:
        """The ids of each word, as bytes."""
        table = self.table
        missing = [word for word in words if word not in table]
        for word in missing:
            table[word] = np.array(self._tokenize_word(word.decode()), self.dtype).tobytes()
        rows = [table[word] for word in words]
        if len(table) > self.room:
            table.clear()  # the frequent ones come back at once, and a change of language is no problem
        for word in missing:
            if len(word) > LONGEST_KEPT:
                table.pop(word, None)
        return rows

    def _tokenize_word(self, word: str) -> list[int]:
        if word.isascii() and word.isprintable():  # cut and lowercased already: the vocabulary alone decides
            return [token.id for token in self._model.tokenize(word)]
        return list(self.backend.encode(word, add_special_tokens=False).ids)


def _kinds() -> Bytes:
    kinds = np.full(256, ODD, np.uint8)
    for char in map(chr, range(32, 127)):
        kinds[ord(char)] = LETTER if char.isalnum() else SIGN
    kinds[[ord(" "), ord("\n")]] = SPACE
    return kinds


def _slices(texts: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Runs of texts of about `size` characters."""
    total = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    bounds = np.flatnonzero(np.diff(total // size, prepend=-1, append=-1))
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        yield texts[start:stop]


def _spread_odd(kinds: Bytes) -> None:
    """Make every byte odd that has an odd one in the same chunk; the last byte is a space."""
    spaces = np.flatnonzero(kinds == SPACE)
    chunks = np.unique(np.searchsorted(spaces, np.flatnonzero(kinds == ODD)))
    starts = np.append(0, spaces + 1)[chunks]
    lengths = spaces[chunks] - starts
    kinds[np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())] = ODD


def _numbered(text: Bytes, starts: Positions) -> tuple[NDArray[np.int32], list[bytes]]:
    """Which of the distinct words each word is, and these; a word goes from its start to the next one's."""
    offsets = np.append(starts, len(text)).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    encoded = pa.Array.from_buffers(pa.binary(), len(starts), buffers).dictionary_encode()
    return np.asarray(encoded.indices), encoded.dictionary.to_pylist()
