"""Static vectors, one per word: neighbors, arithmetic, and folders on disk."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from bertkit.checkpoint.tensors import read_object, write_tensors
from bertkit.errors import RequestError
from bertkit.files import whole_folder

FORMAT, VERSION = "bertkit static vectors", 1
RECORD_FILE, WORDS_FILE, VECTORS_FILE = "vectors.json", "words.txt", "vectors.safetensors"
TERM = re.compile(r"\s*([+-]?)\s*(\S+)")
Vector = NDArray[np.float32]
FNV_OFFSET, FNV_PRIME = 2166136261, 16777619  # FNV-1a, 32 bits


@dataclass(frozen=True)
class Neighbor:
    """A word, and the cosine between its vector and the query."""

    word: str
    cosine: float


@dataclass(frozen=True)
class Subwords:
    """The n-gram vectors of fastText, buckets D.

    N-grams of `shortest` to `longest` characters are hashed to them.
    """

    rows: Vector
    shortest: int
    longest: int

    def vector(self, word: str) -> Vector:
        """D: the mean of the vectors of the word's n-grams."""
        rows = ngram_buckets(word, self.shortest, self.longest, len(self.rows))
        if not rows:
            raise RequestError(f"'{word}' is too short for a vector: it has no part of {self.shortest} characters")
        mean: Vector = self.rows[rows].mean(axis=0)
        return mean


@dataclass(frozen=True, eq=False)
class StaticVectors:
    """W words with a vector each, the most frequent first; with subwords, a vector for any other word as well."""

    words: tuple[str, ...]
    vectors: Vector  # W D
    subwords: Subwords | None = None
    record: Mapping[str, Any] = field(default_factory=dict)  # how they were trained

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.words) != len(self.vectors) or not self.words:
            raise RequestError(f"{len(self.words)} words do not fit vectors of shape {list(self.vectors.shape)}")
        if len(self.numbers) != len(self.words):
            twice = next(word for number, word in enumerate(self.words) if self.numbers[word] != number)
            raise RequestError(f"the word '{twice}' has two vectors; leave one out")

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The row of each word."""
        return {word: number for number, word in enumerate(self.words)}

    @cached_property
    def _units(self) -> Vector:
        normalized: Vector = self.vectors / np.linalg.norm(self.vectors, axis=1, keepdims=True).clip(1e-12)
        return normalized

    def __contains__(self, word: str) -> bool:
        return word in self.numbers

    def vector(self, word: str) -> Vector:
        """D: the vector of a word; with subwords, of any word."""
        if word in self.numbers:
            row: Vector = self.vectors[self.numbers[word]]
            return row
        if self.subwords is not None:
            return self.subwords.vector(word)
        similar = [other for other in self.words if other.casefold() == word.casefold()]
        hint = f"; it knows '{similar[0]}'" if similar else "; vectors with subwords (method fasttext) could make one"
        raise RequestError(f"there is no vector for '{word}'{hint}")

    def similarity(self, one: str, other: str) -> float:
        """The cosine between two words."""
        a, b = self.vector(one), self.vector(other)
        return float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12))

    def nearest(self, word: str, top: int = 10) -> list[Neighbor]:
        """The words with the largest cosines, without the word itself."""
        return self._nearest(self.vector(word), {word}, top)

    def arithmetic(self, expression: str, top: int = 10) -> list[Neighbor]:
        """The words nearest to an expression such as "king - man + woman", without the words of the expression.

        Vectors are normalized, so that the long vector of a frequent word does not dominate.
        """
        terms = list(parse_expression(expression))
        total = np.zeros(self.vectors.shape[1], np.float32)
        for sign, word in terms:
            vector = self.vector(word)
            total += sign * vector / max(float(np.linalg.norm(vector)), 1e-12)
        return self._nearest(total, {word for _, word in terms}, top)

    def _nearest(self, vector: Vector, without: set[str], top: int) -> list[Neighbor]:
        if top < 1:
            raise RequestError(f"top={top} must be at least 1")
        cosines = self._units @ (vector / max(float(np.linalg.norm(vector)), 1e-12))
        cosines[[self.numbers[word] for word in without if word in self.numbers]] = -np.inf
        top = min(top, len(self.words) - sum(word in self.numbers for word in without))
        best = np.argpartition(-cosines, top - 1)[:top] if top else np.empty(0, np.int64)
        return [Neighbor(self.words[n], float(cosines[n])) for n in best[np.argsort(-cosines[best], kind="stable")]]

    def save(self, folder: Path | str) -> None:
        """Write a folder that `load_vectors` reads: a record, the words, and the vectors as safetensors."""
        if any(word != word.strip() or not word or len(word.splitlines()) != 1 for word in self.words):
            raise RequestError("a word with a line end or a space at its edge cannot be saved; leave it out")
        record = {"format": FORMAT, "version": VERSION, "words": len(self.words), "width": self.vectors.shape[1]}
        tensors = {"vectors": torch.from_numpy(np.ascontiguousarray(self.vectors))}
        if self.subwords is not None:
            tensors["subwords"] = torch.from_numpy(np.ascontiguousarray(self.subwords.rows))
            record |= {"shortest": self.subwords.shortest, "longest": self.subwords.longest}
        with whole_folder(folder) as draft:
            write_tensors(tensors, draft / VECTORS_FILE)
            (draft / WORDS_FILE).write_text("".join(f"{word}\n" for word in self.words), encoding="utf-8", newline="\n")
            text = json.dumps({**record, "made": dict(self.record)}, indent=2)
            (draft / RECORD_FILE).write_text(text, encoding="utf-8")

    def __repr__(self) -> str:
        parts = f", {len(self.subwords.rows):,} shared rows of subwords" if self.subwords is not None else ""
        return f"StaticVectors({len(self.words):,} words, {self.vectors.shape[1]} numbers each{parts})"


def parse_expression(expression: str) -> Iterator[tuple[int, str]]:
    """(1, king), (-1, man), (1, woman) of `king - man + woman`; a hyphen inside a word is part of it."""
    position, text = 0, expression.strip()
    while position < len(text):
        term = TERM.match(text, position)
        assert term is not None  # the rest of the text is not blank
        sign, word = term.groups()
        if (position and not sign) or word in ("+", "-"):
            raise RequestError(f"'{expression}' is no sum; write words with + or - between them: king - man + woman")
        yield (-1 if sign == "-" else 1), word
        position = term.end()
    if not text:
        raise RequestError("the sum is empty; write words with + or - between them: king - man + woman")


def is_vectors(path: Path | str) -> bool:
    """Whether a folder contains static vectors."""
    return (Path(path) / RECORD_FILE).is_file()


def load_vectors(folder: Path | str) -> StaticVectors:
    """The vectors of a folder that `save` wrote."""
    folder = Path(folder)
    if not is_vectors(folder):
        raise RequestError(
            f"{folder} holds no static vectors: it has no {RECORD_FILE}; make some with 'bertkit word2vec'"
        )
    record = read_object(folder / RECORD_FILE)
    if (record.get("format"), record.get("version")) != (FORMAT, VERSION):
        raise RequestError(f"{folder / RECORD_FILE} is of another format or version; make the vectors again")
    words, rows = _read_words(folder / WORDS_FILE), _read_tensors(folder / VECTORS_FILE)
    expected = [record.get("words"), record.get("width")]
    if [len(words), *rows["vectors"].shape[1:]] != expected or len(rows["vectors"]) != len(words):
        raise RequestError(f"{folder} is damaged: its words and vectors do not agree with its record; copy it again")
    subwords = None
    if "subwords" in rows:
        shortest, longest = record.get("shortest"), record.get("longest")
        if not (isinstance(shortest, int) and isinstance(longest, int) and 1 <= shortest <= longest <= 20):
            raise RequestError(
                f"{folder / RECORD_FILE} is damaged: it does not say how long subwords are; copy it again"
            )
        subwords = Subwords(rows["subwords"], shortest, longest)
    return StaticVectors(words, rows["vectors"], subwords, record.get("made", {}))


def _read_words(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8").split("\n")[:-1])
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {error}") from error


def _read_tensors(path: Path) -> dict[str, Vector]:
    try:
        rows = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RequestError(
            f"{path} is missing, truncated or not a safetensors file ({error}); copy it again"
        ) from error
    for name in ("vectors", *(set(rows) & {"subwords"})):
        if name not in rows or rows[name].ndim != 2 or rows[name].dtype != np.float32:
            raise RequestError(f"{path} must hold '{name}' as rows of float32; it was written by another program")
        if not np.isfinite(rows[name]).all():
            raise RequestError(f"{path} holds numbers that are not finite; train again with a smaller rate")
    return rows


def ngrams(word: str, shortest: int, longest: int) -> Iterator[str]:
    """The character n-grams of <word>, with marked ends, except <word> itself, which has its own row."""
    marked = f"<{word}>"
    for size in range(shortest, longest + 1):
        for start in range(len(marked) - size + 1):
            if size < len(marked):
                yield marked[start : start + size]


def bucket(ngram: str, buckets: int) -> int:
    """The bucket of an n-gram: the FNV-1a hash of its UTF-8 bytes."""
    value = FNV_OFFSET
    for byte in ngram.encode("utf-8", "surrogatepass"):
        value = ((value ^ byte) * FNV_PRIME) & 0xFFFFFFFF
    return value % buckets


def ngram_buckets(word: str, shortest: int, longest: int, buckets: int) -> list[int]:
    """The buckets of a word's n-grams."""
    return [bucket(ngram, buckets) for ngram in ngrams(word, shortest, longest)]
