"""A vector for every word at every layer, computed once: packed batches, long sentences through windows, on disk."""

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.engine.batches import (
    TOKENS_PER_BATCH,
    Passage,
    layer_vectors,
    make_batch,
    stitch,
    token_batches,
    window_passages,
)
from bertkit.errors import RequestError
from bertkit.predict.bert import Bert
from bertkit.progress import ShowProgress, silent
from bertkit.text.tokenizer import Encoding

Pieces = Literal["mean", "first", "last"]
PIECES: dict[str, Pieces] = {"mean": "mean", "first": "first", "last": "last"}
LARGEST = 65504.0  # of float16


@dataclass(frozen=True)
class ReadCounts:
    """What became of the words on their way into the model."""

    sentences: int  # that were read
    words: int
    split: int  # words of more than one piece
    windowed: int  # sentences over the limit, read through windows
    left_out: int  # sentences with a word that the tokenizer makes nothing of

    def __str__(self) -> str:
        said = f"{self.sentences:,} sentences, {self.words:,} words"
        said += f", {self.split:,} of them split into pieces ({self.split / max(self.words, 1):.1%})"
        if self.windowed:
            said += f"; {self.windowed:,} over the model's length, read through windows"
        if self.left_out:
            said += f"; {self.left_out:,} sentences left out: the tokenizer makes nothing of one of their words"
        return said


@dataclass(frozen=True)
class Sentences:
    """Sentences as the tokenizer cut them, and which of those given they are."""

    encodings: tuple[Encoding, ...]
    kept: tuple[int, ...]
    starts: tuple[int, ...]  # of each sentence's words among all, and where the last one ends
    counts: ReadCounts


@dataclass(frozen=True)
class WordVectors:
    """The embeddings and every layer's output for all words, in float16."""

    values: NDArray[np.float16]  # N W D, where N counts the embeddings and every layer
    starts: tuple[int, ...]  # as in Sentences

    def rows(self, words: NDArray[np.int64]) -> Tensor:
        """N n D float32: the vectors of these words at every layer."""
        return torch.from_numpy(self.values[:, words]).float()


BothSides = tuple[WordVectors, WordVectors]  # of the sentences to train on, and of those to test on
Untrained = Callable[[], BothSides]  # the same from an encoder with random weights


def cut_sentences(bert: Bert, sentences: Sequence[Sequence[str]]) -> Sentences:
    """Words to pieces; a sentence with a word of no piece, such as a lone control character, is left out."""
    every = bert.tokenizer.encode_words_batch(sentences)
    pieces = [Counter(word for word in encoding.words if word is not None) for encoding in every]
    kept = tuple(n for n, words in enumerate(sentences) if words and len(pieces[n]) == len(words))
    if not kept:
        raise RequestError("the tokenizer makes nothing of these sentences; is it of their language?")
    lengths = [len(sentences[n]) for n in kept]
    counts = ReadCounts(
        sentences=len(kept),
        words=sum(lengths),
        split=sum(count > 1 for n in kept for count in pieces[n].values()),
        windowed=sum(len(every[n]) > bert.checkpoint.max_length for n in kept),
        left_out=len(sentences) - len(kept),
    )
    return Sentences(tuple(every[n] for n in kept), kept, (0, *accumulate(lengths)), counts)


def word_vectors(
    bert: Bert, sentences: Sentences, pieces: Pieces = "mean", *, show: ShowProgress = silent
) -> WordVectors:
    """Read every sentence once; a word of several pieces gets their mean, or the first or the last one's vector."""
    config = bert.model.config
    starts = sentences.starts
    values = _on_disk((config.depth + 1, starts[-1], config.width))
    done = 0
    with torch.inference_mode(), show("reading words", starts[-1]) as meter:
        for chosen, vectors in _batches(bert, sentences.encodings):
            for n, own in zip(chosen, vectors, strict=True):
                means = _words(own, sentences.encodings[n], pieces).view(-1, config.depth + 1, config.width)
                _refuse_not_finite(means)
                found = means.clamp(-LARGEST, LARGEST).half().transpose(0, 1)
                values[:, starts[n] : starts[n + 1]] = found.cpu().numpy()
                done += found.shape[1]
            meter.update(done)
    return WordVectors(values, starts)


def _refuse_not_finite(vectors_WND: Tensor) -> None:
    """A damaged model would give scores that are no numbers, an hour later."""
    fine = vectors_WND.isfinite().all(dim=2).all(dim=0)
    if not bool(fine.all()):
        layer = int(fine.int().argmin())
        raise RequestError(f"the model gives numbers that are not finite at layer {layer}; its weights are damaged")


def _on_disk(shape: tuple[int, int, int]) -> NDArray[np.float16]:
    """An array in a nameless file: memory stays free, and the file goes when the array does."""
    with tempfile.TemporaryFile() as file:
        size = 2 * shape[0] * shape[1] * shape[2]
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk speaks now, and not by a signal later
        return np.memmap(file, dtype=np.float16, mode="w+", shape=shape)


def _batches(bert: Bert, encodings: Sequence[Encoding]) -> Iterator[tuple[list[int], Sequence[Tensor]]]:
    """Numbers of sentences, and for each of them T (N D): every layer side by side."""
    limit, layers = bert.checkpoint.max_length, range(bert.model.config.depth + 1)
    short = [n for n, encoding in enumerate(encodings) if len(encoding) <= limit]
    passages = [Passage(encodings[n].ids, bert.known_segments(encodings[n].segments)) for n in short]
    for chosen in token_batches([len(passage.ids) for passage in passages]):
        batch = make_batch([passages[i] for i in chosen], bert.model.device)
        yield [short[i] for i in chosen], batch.split(layer_vectors(bert.model.encoder, batch, layers))
    for n in sorted(set(range(len(encodings))) - set(short)):
        windows, spans = window_passages(encodings[n], limit)
        parts: list[Tensor] = []
        size = max(1, TOKENS_PER_BATCH // limit)
        for first in range(0, len(windows), size):
            batch = make_batch(windows[first : first + size], bert.model.device)
            parts += batch.split(layer_vectors(bert.model.encoder, batch, layers))
        yield [n], [stitch(parts, spans)]


def _words(vectors_TX: Tensor, encoding: Encoding, pieces: Pieces) -> Tensor:
    """Pieces to words: T X -> W X."""
    places = [place for place, word in enumerate(encoding.words) if word is not None]
    words = [encoding.words[place] for place in places]
    if pieces != "mean":
        # dict() keeps the last of several places of a word.
        pairs = zip(words, places, strict=True) if pieces == "last" else zip(words[::-1], places[::-1], strict=True)
        places = [place for _, place in sorted(dict(pairs).items(), key=lambda pair: pair[1])]
        return vectors_TX[places]
    own = torch.tensor(words, device=vectors_TX.device)
    counts = own.bincount()
    sums = vectors_TX.new_zeros(len(counts), vectors_TX.shape[1]).index_add_(0, own, vectors_TX[places])
    return sums / counts[:, None]
