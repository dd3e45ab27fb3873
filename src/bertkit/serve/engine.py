"""Where the server calls the model: sequences of many requests in one forward pass, each with its request's reader.

The rest of the server knows only shared encoders, token sequences and rows; a faster engine is a change to this file.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.engine.adapters import AdaptedRows, EncoderAdapter, adapted
from bertkit.engine.batches import Passage, RowReader, layer_vectors, make_batch
from bertkit.engine.recorded import RecordedPasses
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.model import BertModel
from bertkit.model.pooling import vectors_of
from bertkit.poolings import NO_POOLING
from bertkit.predict.fill import BlankKind, best_tokens
from bertkit.text.tokenizer import Tokenizer


class Reader(Protocol):
    """Turns the hidden states of sequences into rows, one per sequence. Equal readers in a batch are called once."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers it reads, concatenated in this order; 0 is the embeddings."""

    def __hash__(self) -> int: ...

    def __call__(self, x_TD: Tensor, batch: Batch) -> list[Any]:
        """A row for each sequence of the batch."""


@dataclass(slots=True)
class TokenSequence:
    """One sequence of a request, and the reader of its hidden states."""

    passage: Passage
    read: Reader
    adapter: EncoderAdapter | None = None  # set by the request's `SharedEncoder`

    def __len__(self) -> int:
        return len(self.passage.ids)


@dataclass(frozen=True, eq=False)
class SharedEncoder:
    """An encoder that any number of models may share: their sequences go through it together."""

    encoder: Encoder
    recorded: RecordedPasses | None = None  # on a GPU, for batches whose readers are all the same `RowReader`
    adapter: EncoderAdapter | None = None  # of the model whose sequences these are

    @property
    def key(self) -> Hashable:
        """Identifies the encoder in the queue: a trunk and its adapters share their batches."""
        return id(self.encoder)

    def claim(self, sequences: Sequence[TokenSequence]) -> None:
        """Mark the sequences of a request with its adapter."""
        for sequence in sequences if self.adapter is not None else ():
            sequence.adapter = self.adapter

    def compute(self, sequences: Sequence[TokenSequence]) -> list[Any]:
        """A row for each sequence, whatever it shared its batch with; with the calling thread's count of threads."""
        # Indices of sequences by reader; those of one adapter are neighbors.
        groups: dict[tuple[EncoderAdapter | None, Reader], list[int]] = {}
        for index, sequence in enumerate(sequences):
            groups.setdefault((sequence.adapter, sequence.read), []).append(index)
        groups = dict(sorted(groups.items(), key=lambda group: id(group[0][0])))
        plain = self.recorded is not None and len(groups) == 1 and sequences[0].adapter is None
        if self.recorded is not None and plain and isinstance(only := sequences[0].read, RowReader):
            replayed = self.recorded([sequence.passage for sequence in sequences], only)
            if replayed is not None:
                return list(replayed)
        # Sequences with equal readers are neighbors, so that their part of the batch is a slice and not a copy; among
        # them, those of one length, so that attention computes these together.
        for indices in groups.values():
            indices.sort(key=lambda index: len(sequences[index]))
        order = [index for indices in groups.values() for index in indices]
        rows: list[Any] = [None] * len(sequences)
        passages = [sequences[index].passage for index in order]
        device = self.encoder.embeddings.word.weight.device
        layers = sorted({layer for _, read in groups for layer in read.layers})
        with torch.inference_mode():
            forward = adapted(self.encoder, _adapted_rows([sequences[index] for index in order]))
            batch = make_batch(passages, device)
            x_TD = layer_vectors(forward, batch, layers)
            first, width = 0, self.encoder.config.width
            for (_, read), indices in groups.items():
                part, x_part = _slice(batch, x_TD, first, first + len(indices))
                rows_of_part = read(_select_layers(x_part, layers, read.layers, width), part)
                for index, row in zip(indices, rows_of_part, strict=True):
                    rows[index] = row
                first += len(indices)
        return rows


def _adapted_rows(sequences: Sequence[TokenSequence]) -> list[AdaptedRows]:
    """The rows of each adapter's sequences, which are neighbors, in a batch of these sequences."""
    rows, stop = list[AdaptedRows](), 0
    for adapter, run in groupby(sequences, key=lambda sequence: sequence.adapter):
        start, stop = stop, stop + sum(map(len, run))
        if adapter is not None:
            rows.append(AdaptedRows(start, stop, adapter))
    return rows


def _slice(batch: Batch, x_TD: Tensor, first: int, stop: int) -> tuple[Batch, Tensor]:
    """Sequences [first, stop) of a batch."""
    if stop - first == len(batch.lengths):
        return batch, x_TD
    start = sum(batch.lengths[:first])
    lengths = batch.lengths[first:stop]
    end = start + sum(lengths)
    return Batch(batch.ids[start:end], batch.segments[start:end], lengths), x_TD[start:end]


def _select_layers(x_TD: Tensor, computed: Sequence[int], wanted: Sequence[int], width: int) -> Tensor:
    """The wanted layers, in that order, of vectors that hold the `computed` layers side by side."""
    if list(computed) == list(wanted):
        return x_TD
    columns = [width * computed.index(layer) for layer in wanted]
    return torch.cat([x_TD[:, start : start + width] for start in columns], dim=-1)


@dataclass(frozen=True)
class ReadPooled(RowReader):
    """One embedding for each sequence."""

    layers: tuple[int, ...]
    pooling: str
    normalize: bool
    dense: nn.Sequential | None = None
    dimensions: int | None = None

    def rows(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """N D."""
        how: dict[str, Any] = {"normalize": self.normalize, "dense": self.dense, "dimensions": self.dimensions}
        return vectors_of(x_TD, batch, self.pooling, **how)


@dataclass(frozen=True)
class ReadTokens:
    """A vector for each token: embeddings without pooling, and windows of long texts before they are stitched."""

    layers: tuple[int, ...]
    normalize: bool = False
    dimensions: int | None = None

    def __call__(self, x_TD: Tensor, batch: Batch) -> list[np.ndarray]:
        """float32 [L, D] each."""
        how: dict[str, Any] = {"normalize": self.normalize, "dimensions": self.dimensions}
        vectors_TD = vectors_of(x_TD, batch, NO_POOLING, **how).cpu()
        return [part.numpy() for part in batch.split(vectors_TD)]


@dataclass(frozen=True)
class ReadScores(RowReader):
    """Logits of a head that reads the pooled vector."""

    model: BertModel = field(hash=False)  # modules are equal when they are the same
    head: str
    layers: tuple[int, ...]

    def rows(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """N outputs."""
        return self.model.read(self.head, x_TD, batch).float()


@dataclass(frozen=True)
class ReadTokenScores:
    """Logits of a head that reads every token."""

    model: BertModel = field(hash=False)
    head: str
    layers: tuple[int, ...]

    def __call__(self, x_TD: Tensor, batch: Batch) -> list[np.ndarray]:
        """float32 [L, outputs] each."""
        logits = self.model.read(self.head, x_TD, batch).float().cpu()
        return [part.numpy() for part in batch.split(logits)]


def read_head(model: BertModel, head: str, layers: tuple[int, ...]) -> ReadScores | ReadTokenScores:
    """The reader of a model's head."""
    return (ReadScores if model.heads[head].reads == "pooled" else ReadTokenScores)(model, head, layers)


@dataclass(frozen=True)
class ReadReduced(RowReader):
    """The input of the pooler's dense layer: windows of a long text are averaged before it."""

    model: BertModel = field(hash=False)
    layers: tuple[int, ...]

    def rows(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """N D."""
        assert self.model.pooler is not None  # only pooled heads join windows
        return self.model.pooler.reduce(x_TD, batch).float()


@dataclass(frozen=True, eq=False)
class ReadBlanks:
    """The best words at some positions of one sequence: (probabilities, ids), [positions, top] each."""

    model: BertModel
    tokenizer: Tokenizer
    positions: Sequence[int]
    kinds: Sequence[BlankKind] | None  # as in `Blanks`
    top: int
    layers: tuple[int, ...]

    def __call__(self, x_TD: Tensor, batch: Batch) -> list[tuple[list[list[float]], list[list[int]]]]:
        """One row, for the one sequence."""
        logits = self.model.read("masked_word", x_TD[list(self.positions)], batch)
        probabilities, tokens = best_tokens(logits, self.tokenizer, self.kinds, self.top)
        return [(probabilities.tolist(), tokens.tolist())]


@dataclass(frozen=True, eq=False)
class ReadLens:
    """The best words at every position, from the output of each layer: (probabilities, ids), [L, layers, top] each."""

    model: BertModel
    top: int
    vocab_size: int
    layers: tuple[int, ...]  # the last one is the model's output, which is normalized already

    def __call__(self, x_TD: Tensor, batch: Batch) -> list[tuple[np.ndarray, np.ndarray]]:
        """One row, for the one sequence."""
        *early, last = x_TD.chunk(len(self.layers), dim=-1)
        best = []
        for state in [*map(self.model.encoder.norm, early), last]:
            logits = self.model.read("masked_word", state, batch)[:, : self.vocab_size].float()
            best.append(logits.softmax(dim=-1).topk(self.top))
        values, ids = torch.stack([each.values for each in best], 1), torch.stack([each.indices for each in best], 1)
        return [(values.cpu().numpy(), ids.cpu().numpy())]


@dataclass(frozen=True, eq=False)
class ReadAttention:
    """Attention weights of one sequence, computed again from the inputs of the layers: the pass itself stays fused."""

    encoder: Encoder
    layer_numbers: tuple[int, ...]  # from 1
    heads: tuple[int, ...]  # from 0
    neurons: bool  # with queries and keys

    @property
    def layers(self) -> tuple[int, ...]:
        """The outputs of the layers below: what each layer reads."""
        return tuple(number - 1 for number in self.layer_numbers)

    def __call__(self, x_TD: Tensor, batch: Batch) -> list[list[dict[str, np.ndarray]]]:
        """One row: for each layer its weights [heads, L, L], and with neurons queries and keys [heads, L, K]."""
        heads, parts = list(self.heads), []
        for number, x in zip(self.layer_numbers, x_TD.chunk(len(self.layer_numbers), dim=-1), strict=True):
            layer = self.encoder.stack[number - 1]
            attention_input = layer.attention_input(x)
            [weights] = layer.attention.weights(attention_input, batch)
            tensors = {"weights": weights[heads]}
            if self.neurons:
                queries, keys, _ = layer.attention.project(attention_input, batch)
                tensors |= {"queries": queries[:, heads].transpose(0, 1), "keys": keys[:, heads].transpose(0, 1)}
            parts.append({name: tensor.float().cpu().numpy() for name, tensor in tensors.items()})
        return [parts]
