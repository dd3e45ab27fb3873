"""Where the server calls the model: sequences of many requests in one forward pass, each read as its request asks.

Everything above knows only shared encoders, token sequences and rows; a faster engine is a change to this file.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from bertkit.engine.batches import Passage, layer_vectors, make_batch
from bertkit.engine.embed import vectors_of
from bertkit.engine.recorded import RecordedPasses, RowReader
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.model import BertModel
from bertkit.poolings import NO_POOLING


class Reader(Protocol):
    """What is read off one sequence's vectors. Equal readers in a batch read together."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Which layers it wants side by side, counted from the embeddings, 0."""

    def __hash__(self) -> int: ...

    def __call__(self, x_TD: Tensor, batch: Batch) -> list[Any]:
        """A row for each sequence of the batch."""


@dataclass(slots=True)
class TokenSequence:
    """One sequence of a request, and how its vectors are read."""

    passage: Passage
    read: Reader

    def __len__(self) -> int:
        return len(self.passage.ids)


@dataclass(frozen=True, eq=False)
class SharedEncoder:
    """An encoder that any number of models may share: their sequences go through it together."""

    encoder: Encoder
    recorded: RecordedPasses | None = None  # on a GPU, for batches whose readers are all alike and give rows

    @property
    def key(self) -> Hashable:
        """Identifies the encoder in the queue."""
        return id(self.encoder)

    def compute(self, sequences: Sequence[TokenSequence]) -> list[Any]:
        """A row for each sequence, whatever it shared its batch with; with the calling thread's count of threads."""
        groups: dict[Reader, list[int]] = {}
        for place, sequence in enumerate(sequences):
            groups.setdefault(sequence.read, []).append(place)
        if self.recorded is not None and len(groups) == 1 and isinstance(only := sequences[0].read, RowReader):
            replayed = self.recorded([sequence.passage for sequence in sequences], only)
            if replayed is not None:
                return list(replayed)
        # Readers that are alike stand together, so that what they read is a slice and not a copy; and among them
        # sequences of one length, so that attention takes these at once.
        for places in groups.values():
            places.sort(key=lambda place: len(sequences[place]))
        order = [place for places in groups.values() for place in places]
        rows: list[Any] = [None] * len(sequences)
        passages = [sequences[place].passage for place in order]
        device = self.encoder.embeddings.word.weight.device
        layers = sorted({layer for read in groups for layer in read.layers})
        with torch.inference_mode():
            batch = make_batch(passages, device)
            x_TD = layer_vectors(self.encoder, batch, layers)
            first, width = 0, self.encoder.config.width
            for read, places in groups.items():
                part, x_part = _slice(batch, x_TD, first, first + len(places))
                found = read(_columns(x_part, layers, read.layers, width), part)
                for place, row in zip(places, found, strict=True):
                    rows[place] = row
                first += len(places)
        return rows


def _slice(batch: Batch, x_TD: Tensor, first: int, stop: int) -> tuple[Batch, Tensor]:
    """Sequences [first, stop) of a batch."""
    if stop - first == len(batch.lengths):
        return batch, x_TD
    start = sum(batch.lengths[:first])
    lengths = batch.lengths[first:stop]
    end = start + sum(lengths)
    return Batch(batch.ids[start:end], batch.segments[start:end], lengths), x_TD[start:end]


def _columns(x_TD: Tensor, have: Sequence[int], want: Sequence[int], width: int) -> Tensor:
    """Those layers of the ones side by side that a reader wants, in its order."""
    if list(have) == list(want):
        return x_TD
    places = [have.index(layer) for layer in want]
    return torch.cat([x_TD[:, place * width : (place + 1) * width] for place in places], dim=-1)


@dataclass(frozen=True)
class ReadPooled(RowReader):
    """One vector for each sequence."""

    layers: tuple[int, ...]
    pooling: str
    normalize: bool

    def numbers(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """N D."""
        return vectors_of(x_TD, batch, self.pooling, normalize=self.normalize)


@dataclass(frozen=True)
class ReadTokens:
    """A vector for each token; windows of long texts are stitched from them."""

    layers: tuple[int, ...]
    normalize: bool = False

    def __call__(self, x_TD: Tensor, batch: Batch) -> list[np.ndarray]:
        """float32 [L, D] each."""
        vectors_TD = vectors_of(x_TD, batch, NO_POOLING, normalize=self.normalize).cpu()
        return [part.numpy() for part in batch.split(vectors_TD)]


@dataclass(frozen=True)
class ReadScores(RowReader):
    """What a head of one model that reads the pooled vector gives."""

    model: BertModel = field(hash=False)  # modules are equal when they are the same
    head: str
    layers: tuple[int, ...]

    def numbers(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """N outputs."""
        return self.model.read(self.head, x_TD, batch).float()


@dataclass(frozen=True)
class ReadTokenScores:
    """What a head of one model that reads every token gives."""

    model: BertModel = field(hash=False)
    head: str
    layers: tuple[int, ...]

    def __call__(self, x_TD: Tensor, batch: Batch) -> list[np.ndarray]:
        """float32 [L, outputs] each."""
        numbers = self.model.read(self.head, x_TD, batch).float().cpu()
        return [part.numpy() for part in batch.split(numbers)]


def read_head(model: BertModel, head: str, layers: tuple[int, ...]) -> ReadScores | ReadTokenScores:
    """The reader of a model's head."""
    return (ReadScores if model.heads[head].reads == "pooled" else ReadTokenScores)(model, head, layers)


@dataclass(frozen=True)
class ReadReduced(RowReader):
    """What the pooler's map would read: windows of a long text are joined before it."""

    model: BertModel = field(hash=False)
    layers: tuple[int, ...]

    def numbers(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """N D."""
        assert self.model.pooler is not None  # only pooled heads join windows
        return self.model.pooler.reduce(x_TD, batch).float()


@dataclass(frozen=True, eq=False)
class ReadBlanks:
    """The best words at some places of one sequence: (probabilities, ids), [places, top] each."""

    model: BertModel
    places: tuple[int, ...]
    top: int
    known: int  # rows of the table beyond the vocabulary are no words
    layers: tuple[int, ...]

    def __call__(self, x_TD: Tensor, batch: Batch) -> list[tuple[list[list[float]], list[list[int]]]]:
        """One row, for the one sequence."""
        logits = self.model.read("masked_word", x_TD[list(self.places)], batch)[:, : self.known].float()
        best = logits.softmax(dim=-1).topk(self.top)
        return [(best.values.tolist(), best.indices.tolist())]


@dataclass(frozen=True, eq=False)
class ReadAttention:
    """What layers do with one sequence, computed again from what they read; the fused kernels stay on."""

    encoder: Encoder
    numbers: tuple[int, ...]  # layers, from 1
    heads: tuple[int, ...]  # from 0
    neurons: bool  # queries and keys too

    @property
    def layers(self) -> tuple[int, ...]:
        """What each layer reads is what the one below gave."""
        return tuple(number - 1 for number in self.numbers)

    def __call__(self, x_TD: Tensor, batch: Batch) -> list[list[dict[str, np.ndarray]]]:
        """One row: for each layer its weights [heads, L, L], and with neurons queries and keys [heads, L, K]."""
        chosen, parts = list(self.heads), []
        for number, x in zip(self.numbers, x_TD.chunk(len(self.numbers), dim=-1), strict=True):
            layer = self.encoder.stack[number - 1]
            seen = layer.attention_input(x)
            [weights] = layer.attention.weights(seen, batch)
            found = {"weights": weights[chosen]}
            if self.neurons:
                queries, keys, _ = layer.attention.project(seen, batch)
                found |= {"queries": queries[:, chosen].transpose(0, 1), "keys": keys[:, chosen].transpose(0, 1)}
            parts.append({name: tensor.float().cpu().numpy() for name, tensor in found.items()})
        return [parts]
