"""The vectors of all words at all layers, computed once and stored in a temporary file."""

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
    known_segments,
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
FLOAT16_MAX = 65504.0


@dataclass(frozen=True)
class ReadCounts:
    """Counts of sentences and words after tokenization."""

    sentences: int  # without those left out
    words: int
    split: int  # words of more than one piece
    windowed: int  # sentences over the limit, read through windows
    left_out: int  # sentences with a word for which the tokenizer gives no token

    def __str__(self) -> str:
        text = f"{self.sentences:,} sentences, {self.words:,} words"
        text += f", {self.split:,} of them split into pieces ({self.split / max(self.words, 1):.1%})"
        if self.windowed:
            text += f"; {self.windowed:,} over the model's length, read through windows"
        if self.left_out:
            text += f"; {self.left_out:,} sentences left out: the tokenizer gives no token for one of their words"
        return text


@dataclass(frozen=True)
class TokenizedSentences:
    """Tokenized sentences, without those that could not be tokenized."""

    encodings: tuple[Encoding, ...]
    kept: tuple[int, ...]  # their numbers among the given sentences
    starts: tuple[int, ...]  # the number of each sentence's first word among all words, and the number of all words
    counts: ReadCounts


@dataclass(frozen=True)
class WordVectors:
    """The embeddings and every layer's output for all words, in float16."""

    values: NDArray[np.float16]  # N W D, where N counts the embeddings and every layer
    starts: tuple[int, ...]  # as in TokenizedSentences

    def rows(self, words: NDArray[np.int64]) -> Tensor:
        """N n D float32: the vectors of these words at every layer."""
        return torch.from_numpy(self.values[:, words]).float()

    def sentence(self, number: int) -> Tensor:
        """N n D float32: the vectors of the words of one sentence."""
        return self.rows(np.arange(self.starts[number], self.starts[number + 1]))


TrainAndTest = tuple[WordVectors, WordVectors]  # of the training and of the test sentences
Untrained = Callable[[], TrainAndTest]  # computes the vectors of an untrained encoder


def tokenize_sentences(bert: Bert, sentences: Sequence[Sequence[str]]) -> TokenizedSentences:
    """Tokenize sentences of words; a sentence with a word without tokens, such as a control character, is left out."""
    encodings = bert.tokenizer.encode_words_batch(sentences)
    pieces = [Counter(word for word in encoding.words if word is not None) for encoding in encodings]
    kept = tuple(n for n, words in enumerate(sentences) if words and len(pieces[n]) == len(words))
    if not kept:
        raise RequestError("the tokenizer gives no tokens for these sentences; is it for their language?")
    lengths = [len(sentences[n]) for n in kept]
    counts = ReadCounts(
        sentences=len(kept),
        words=sum(lengths),
        split=sum(count > 1 for n in kept for count in pieces[n].values()),
        windowed=sum(len(encodings[n]) > bert.checkpoint.max_length for n in kept),
        left_out=len(sentences) - len(kept),
    )
    return TokenizedSentences(tuple(encodings[n] for n in kept), kept, (0, *accumulate(lengths)), counts)


def word_vectors(
    bert: Bert, sentences: TokenizedSentences, pieces: Pieces = "mean", *, show: ShowProgress = silent
) -> WordVectors:
    """Run the model on every sentence; the vector of a word is the mean of its pieces, the first or the last."""
    config = bert.model.config
    starts = sentences.starts
    values = _temporary_array((config.depth + 1, starts[-1], config.width))
    done = 0
    with torch.inference_mode(), show("reading words", starts[-1]) as meter:
        for chosen, vectors in _batches(bert, sentences.encodings):
            for n, tokens_TX in zip(chosen, vectors, strict=True):
                words_WX = _pool_pieces(tokens_TX, sentences.encodings[n], pieces)
                words_WND = words_WX.view(-1, config.depth + 1, config.width)
                _refuse_not_finite(words_WND)
                halves_NWD = words_WND.clamp(-FLOAT16_MAX, FLOAT16_MAX).half().transpose(0, 1)
                values[:, starts[n] : starts[n + 1]] = halves_NWD.cpu().numpy()
                done += len(words_WND)
            meter.update(done)
    return WordVectors(values, starts)


def _refuse_not_finite(vectors_WND: Tensor) -> None:
    """Refuse a damaged model now: its scores would be NaN after an hour."""
    finite_N = vectors_WND.isfinite().all(dim=2).all(dim=0)
    if not bool(finite_N.all()):
        layer = int(finite_N.int().argmin())
        raise RequestError(f"the vectors of layer {layer} are not finite; the weights of the model are damaged")


def _temporary_array(shape: tuple[int, int, int]) -> NDArray[np.float16]:
    """An array in a temporary file without a name, which is removed with the array."""
    with tempfile.TemporaryFile() as file:
        size = 2 * shape[0] * shape[1] * shape[2]
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error now, not SIGBUS later
        return np.memmap(file, dtype=np.float16, mode="w+", shape=shape)


def _batches(bert: Bert, encodings: Sequence[Encoding]) -> Iterator[tuple[list[int], Sequence[Tensor]]]:
    """Numbers of sentences, and for each of them T (N D): the vectors of all layers, concatenated."""
    limit, layers = bert.checkpoint.max_length, range(bert.model.config.depth + 1)
    short = [n for n, encoding in enumerate(encodings) if len(encoding) <= limit]
    passages = [Passage(encodings[n].ids, known_segments(bert.model.config, encodings[n].segments)) for n in short]
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


def _pool_pieces(vectors_TX: Tensor, encoding: Encoding, pieces: Pieces) -> Tensor:
    """T X -> W X: vectors of pieces to vectors of words."""
    pairs = [(word, position) for position, word in enumerate(encoding.words) if word is not None]
    if pieces != "mean":
        # dict() keeps the last of several positions of a word.
        chosen = dict(pairs if pieces == "last" else reversed(pairs))
        return vectors_TX[sorted(chosen.values())]
    words = torch.tensor([word for word, _ in pairs], device=vectors_TX.device)
    counts = words.bincount()
    sums = vectors_TX.new_zeros(len(counts), vectors_TX.shape[1])
    return sums.index_add_(0, words, vectors_TX[[position for _, position in pairs]]) / counts[:, None]
