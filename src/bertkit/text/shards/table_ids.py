"""Sentences → ids from a table of words: equal to the library's, several times as fast, for BERT's own pipeline.

BERT splits a text at white space and around punctuation before WordPiece, so that equal words have equal ids
everywhere. The text is one buffer of UTF-8; NumPy finds the words in its bytes, a hash table in C numbers the distinct
ones, and only new words are tokenized by the library. Python works once per distinct word. A chunk between spaces with
anything other than printable ASCII is one "word" here, which the library splits.
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

MAX_WORDS = 500_000  # in the table, about 150 bytes each; a full table is cleared
MAX_KEPT_BYTES = 100  # longer words are not kept in the table
SLICE_CHARACTERS = 8_000_000  # of text that are arrays at one time, about 15 bytes each

# Kinds of bytes; a chunk that contains a byte of kind OTHER becomes OTHER as a whole.
SPACE, LETTER, SIGN, OTHER = range(4)


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
    """Encodes each distinct word by the library once; only for tokenizers whose words are independent."""

    def __init__(
        self, backend: Backend, names: SpecialTokens, *, room: int = MAX_WORDS, slice_size: int = SLICE_CHARACTERS
    ) -> None:
        super().__init__(backend, names)
        self.room, self.slice_size = room, slice_size
        self.table: dict[bytes, bytes] = {}  # word -> its ids as bytes
        lowercase = json.loads(backend.to_str())["normalizer"]["lowercase"]
        letters = bytes(range(256))
        self._cased = np.frombuffer(letters.lower() if lowercase else letters, np.uint8)
        self._kinds = _kinds()
        self._model = backend.model
        # No word starts with "##", because "#" is always a separate word: so the piece alone says it.
        self._starts_word = np.ones(self.size, np.uint8)
        self._starts_word[[number for piece, number in backend.get_vocab().items() if piece.startswith("##")]] = 0

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        """The ids of the texts, without [CLS] and [SEP]."""
        ids, lengths = [np.empty(0, self.dtype)], [np.empty(0, np.int64)]
        for part in _slices(texts, self.slice_size):
            # A line end marks the end of each text, so those inside are replaced; for BERT they are spaces.
            lines = "\n".join([*(text.replace("\n", " ") for text in part), ""]).encode()
            part_ids, part_lengths = self._encode_lines(np.frombuffer(lines, np.uint8))
            ids.append(part_ids)
            lengths.append(part_lengths)
        joined = self.ordinary[np.concatenate(ids)]
        return EncodedTexts(joined, self._starts_word[joined], np.concatenate(lengths))

    def _encode_lines(self, text: Bytes) -> tuple[NDArray[Any], Positions]:
        """The ids of all lines, concatenated, and the number of ids of each line."""
        kinds = self._kinds[text]
        _spread_other(kinds)
        starts_word = (kinds == SIGN) | ((kinds != SPACE) & (kinds != np.append(np.uint8(SPACE), kinds[:-1])))
        inside = kinds != SPACE
        numbers, distinct = _numbered(self._cased[text[inside]], np.flatnonzero(starts_word[inside]))
        rows = self._look_up(distinct)
        sizes = np.fromiter(map(len, rows), np.int32, len(rows)) // np.int32(self.dtype.itemsize)
        counts = sizes[numbers]
        ends = np.append(np.int32(0), np.cumsum(counts, dtype=np.int32))
        first = (np.cumsum(sizes, dtype=np.int32) - sizes)[numbers]
        positions = np.repeat(first - ends[:-1], counts)
        positions += np.arange(ends[-1], dtype=np.int32)
        words_before = np.searchsorted(np.flatnonzero(starts_word), np.flatnonzero(text == ord("\n")))
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
            table.clear()  # frequent words return soon, and a change of language does no harm
        for word in missing:
            if len(word) > MAX_KEPT_BYTES:
                table.pop(word, None)
        return rows

    def _tokenize_word(self, word: str) -> list[int]:
        if word.isascii() and word.isprintable():  # already split and lowercased: only WordPiece remains
            return [token.id for token in self._model.tokenize(word)]
        return list(self.backend.encode(word, add_special_tokens=False).ids)


def _kinds() -> Bytes:
    kinds = np.full(256, OTHER, np.uint8)
    for char in map(chr, range(32, 127)):
        kinds[ord(char)] = LETTER if char.isalnum() else SIGN
    kinds[[ord(" "), ord("\n")]] = SPACE
    return kinds


def _slices(texts: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Consecutive texts of about `size` characters together."""
    total = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    bounds = np.flatnonzero(np.diff(total // size, prepend=-1, append=-1))
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        yield texts[start:stop]


def _spread_other(kinds: Bytes) -> None:
    """Set whole chunks to OTHER that contain a byte of that kind; the last byte is a space."""
    spaces = np.flatnonzero(kinds == SPACE)
    chunks = np.unique(np.searchsorted(spaces, np.flatnonzero(kinds == OTHER)))
    starts = np.append(0, spaces + 1)[chunks]
    lengths = spaces[chunks] - starts
    kinds[np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())] = OTHER


def _numbered(text: Bytes, starts: Positions) -> tuple[NDArray[np.int32], list[bytes]]:
    """Each word's number among the distinct words, and these; a word ends where the next one starts."""
    offsets = np.append(starts, len(text)).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    encoded = pa.Array.from_buffers(pa.binary(), len(starts), buffers).dictionary_encode()
    return np.asarray(encoded.indices), encoded.dictionary.to_pylist()
