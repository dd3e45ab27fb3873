"""The training corpus of static vectors: text files or shards as word ids, sorted by frequency.

Words are those of BERT's basic tokenizer: letters and digits between spaces and punctuation. In shards, a word is the
joined pieces from one word start to the next. Words without a letter or digit, unknown words and rare words are
removed, so that their neighbors become adjacent, as in word2vec. Windows end at the ends of sentences.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import RequestError
from bertkit.progress import Meter, ShowProgress, silent
from bertkit.text.corpus import CorpusReport, corpus_files, corpus_size, read_documents
from bertkit.text.sentences import split_sentences
from bertkit.text.shards.reader import MANIFEST, REQUEST, ShardSet, open_shards
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary.word_counts import split_chunk

LEFT_OUT = -1  # id of words that are removed
HASH_BASE = 0x9E3779B97F4A7C15  # odd, so that its powers are invertible modulo 2**64


@dataclass(frozen=True, eq=False)
class WordCorpus:
    """W words by decreasing count, and a text of N words in S sentences."""

    words: tuple[str, ...]
    counts: NDArray[np.int64]  # W
    ids: NDArray[np.int32]  # N
    starts: NDArray[np.int64]  # S + 1: the first word of each sentence, and the end

    def sentence_numbers(self, start: int, stop: int) -> NDArray[np.int64]:
        """The sentence of each word from `start` to `stop`."""
        return np.searchsorted(self.starts, np.arange(start, min(stop, len(self.ids))), "right")


def read_words(paths: Sequence[Path | str], *, min_count: int = 5, show: ShowProgress = silent) -> WordCorpus:
    """The words of text files, or of one folder of shards."""
    first = Path(paths[0]) if paths else Path()
    if (first / MANIFEST).exists() or (first / REQUEST).exists():
        if len(paths) > 1:
            raise RequestError(f"{first} holds shards: name that folder alone, or text files alone")
        return words_of_shards(first, min_count=min_count, show=show)
    return words_of_texts(paths, min_count=min_count, show=show)


def words_of_texts(
    paths: Sequence[Path | str], *, min_count: int = 5, lowercase: bool = True, show: ShowProgress = silent
) -> WordCorpus:
    """The words of text files."""
    report = CorpusReport()
    files = corpus_files(paths)
    word_ids = _WordIds(lowercase)
    ids, starts = array("i"), array("q", [0])
    with show("reading", corpus_size(files)) as meter:
        for document in read_documents(files, report=report):
            for paragraph in document.paragraphs:
                for start, end in split_sentences(paragraph):
                    for chunk in paragraph[start:end].split():
                        ids.extend(word_ids[chunk])
                    starts.append(len(ids))
            meter.update(report.bytes, {"words": f"{len(ids):,}"})
    array_ids = np.frombuffer(ids, np.int32) if ids else np.empty(0, np.int32)
    listed = ", ".join(map(str, paths[:3])) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
    return _frequent(list(word_ids.words), array_ids, np.frombuffer(starts, np.int64), min_count, listed)


class _WordIds(dict[str, tuple[int, ...]]):
    """Text between white space -> ids of its words; split when first used."""

    def __init__(self, lowercase: bool) -> None:
        self.lowercase = lowercase
        self.words: dict[str, int] = {}

    def __missing__(self, chunk: str) -> tuple[int, ...]:
        words = [word for word in split_chunk(chunk, lowercase=self.lowercase) if _has_alphanumeric(word)]
        self[chunk] = ids = tuple(self.words.setdefault(word, len(self.words)) for word in words)
        return ids


def words_of_shards(folder: Path | str, *, min_count: int = 5, show: ShowProgress = silent) -> WordCorpus:
    """The words of shards; their pieces are joined by the tokenizer of the shards."""
    shards = open_shards(folder)
    words: dict[str, int] = {}
    with show("reading", shards.tokens) as meter:
        parts = [_shard_words(shards, *span, words, meter) for span in pairwise(shards.shard_starts.tolist())]
    ids = np.concatenate([np.empty(0, np.int32), *(ids for ids, _ in parts)])
    lengths = np.concatenate([np.empty(0, np.int64), *(lengths for _, lengths in parts)])
    return _frequent(list(words), ids, np.concatenate([[0], np.cumsum(lengths)]), min_count, str(folder))


def _shard_words(
    shards: ShardSet, start: int, stop: int, words: dict[str, int], meter: Meter
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The word ids of one shard, and the number of words of each sentence; new words are added to `words`."""
    pieces, flags = shards.read(start, stop)
    bounds = shards.sentence_starts
    bounds = bounds[np.searchsorted(bounds, start) : np.searchsorted(bounds, stop, "right")] - start
    begins = np.union1d(np.flatnonzero(flags), bounds[:-1])
    ends = np.append(begins[1:], len(pieces))
    _, first, inverse = np.unique(fingerprints(pieces, begins), return_index=True, return_inverse=True)
    ids = np.array([_word_id(shards.tokenizer, pieces[begins[n] : ends[n]], words) for n in first], np.int32)
    meter.update(stop, {"words": f"{len(words):,}"})
    return ids[inverse] if len(ids) else np.empty(0, np.int32), np.diff(np.searchsorted(begins, bounds))


def fingerprints(pieces: NDArray[Any], begins: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A 64-bit hash of the pieces of each word; a million words have a collision in one of 10**7 corpora."""
    lengths = np.diff(np.append(begins, len(pieces)))
    position = np.arange(len(pieces)) - np.repeat(begins, lengths)  # in the word
    powers = np.array([pow(HASH_BASE, n + 1, 2**64) for n in range(max(lengths, default=0))], np.uint64)
    mixed = (pieces.astype(np.uint64) + np.uint64(1)) * powers[position]
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(HASH_BASE)  # else sums of small products could collide
    return np.add.reduceat(mixed, begins) if len(begins) else np.empty(0, np.uint64)


def _word_id(tokenizer: Tokenizer, pieces: NDArray[Any], words: dict[str, int]) -> int:
    """The id of the word that these pieces form; LEFT_OUT if one of them is unknown."""
    if (pieces == tokenizer.unknown_id).any():
        return LEFT_OUT
    word = tokenizer.decode(pieces.tolist()).strip()
    return words.setdefault(word, len(words)) if _has_alphanumeric(word) else LEFT_OUT


def _has_alphanumeric(word: str) -> bool:
    return any(character.isalnum() for character in word)


def _frequent(
    words: list[str], ids: NDArray[np.int32], starts: NDArray[np.int64], min_count: int, source: str
) -> WordCorpus:
    """The corpus with ids by decreasing count, without rare words; ties keep the order of the text."""
    if not (ids != LEFT_OUT).any():
        raise RequestError(f"{source} holds no words; give some text to learn from")
    counts = np.bincount(ids[ids != LEFT_OUT], minlength=len(words)).astype(np.int64)
    order = np.argsort(-counts, kind="stable")[: int((counts >= min_count).sum())]
    if len(order) < 2:
        raise RequestError(
            f"{source} has {len(order)} words that occur {min_count} times or more; "
            "give more text, or a lower min_count"
        )
    new_id = np.full(len(words) + 1, LEFT_OUT, np.int32)  # the last entry is for LEFT_OUT = -1
    new_id[order] = np.arange(len(order))
    new_ids = new_id[ids]
    kept = new_ids != LEFT_OUT
    new_position = np.concatenate([[0], np.cumsum(kept)])
    return WordCorpus(tuple(words[n] for n in order), counts[order], new_ids[kept], new_position[starts])
