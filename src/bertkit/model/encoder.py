"""The encoder: embeddings, then one layer after the other."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.errors import RequestError
from bertkit.model.attention import AttentionPattern, attention_weights
from bertkit.model.batch import Batch
from bertkit.model.embeddings import Embeddings
from bertkit.model.layer import LAYERS, PostNormLayer, PreNormLayer
from bertkit.model.operations import TORCH, Operations
from bertkit.settings import pick


@dataclass(frozen=True)
class LayerTrace:
    """What one layer computed for one sequence of length L."""

    queries: Tensor  # L H K
    keys: Tensor  # L H K
    values: Tensor  # L H K
    weights: Tensor  # H L L: row = the token that attends, column = the token it attends to
    mixed: Tensor  # L D: weights @ values, heads side by side, before the output projection
    output: Tensor  # L D


@dataclass(frozen=True)
class Trace:
    """Everything that the encoder computed for one sequence."""

    embeddings: Tensor  # L D
    layers: tuple[LayerTrace, ...]
    output: Tensor  # L D: the last layer's output, normalized where the family ends with a norm


class AttentionRecorder(Operations):
    """Torch's operations, which keep what the attention of each layer computed for one sequence."""

    def __init__(self) -> None:
        self.records: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = []  # the first fields of LayerTrace

    def attend(self, qkv_TX: Tensor, batch: Batch, pattern: AttentionPattern, dropout: float) -> Tensor:
        """T 3D -> T D."""
        queries, keys, values = pattern.split(qkv_TX, batch).unbind(dim=1)
        mixed_TD = super().attend(qkv_TX, batch, pattern, dropout)
        weights = attention_weights(queries, keys, pattern.window)
        self.records.append((queries, keys, values, weights, mixed_TD))
        return mixed_TD


class Encoder(nn.Module):
    """Embeddings and the stack of layers. ALBERT's has one layer and uses it `depth` times."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        kind = pick(LAYERS, config.parts.norm, "norm")
        distinct = 1 if config.parts.shared_layers else config.depth
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(kind(config, index) for index in range(distinct))
        ends_with_norm = config.parts.norm == "pre"
        eps, bias = config.norm_epsilon, config.parts.bias
        self.norm = nn.LayerNorm(config.width, eps=eps, bias=bias) if ends_with_norm else nn.Identity()

    @property
    def stack(self) -> list[PostNormLayer | PreNormLayer]:
        """The layers in the order of use, `depth` of them."""
        layers: list[PostNormLayer | PreNormLayer] = list(self.layers)  # type: ignore[arg-type]
        return layers * self.config.depth if self.config.parts.shared_layers else layers

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the layers compute in; the embedding tables may have more precision."""
        first: PostNormLayer | PreNormLayer = next(iter(self.layers))  # type: ignore[assignment]
        return first.attention.out.weight.dtype

    def forward(self, batch: Batch, ids: Tensor | None = None, ops: Operations = TORCH) -> Tensor:
        """T D: the last layer's vectors, by the engine's operations; `ids` replace the batch's."""
        prepared, x_TD = self._embedded(batch, ops, ids)
        return ops.finish(self.from_embeddings(x_TD, prepared, ops), batch)

    def hidden_states(self, batch: Batch, depth: int | None = None, ops: Operations = TORCH) -> list[Tensor]:
        """The embeddings and each layer's output up to `depth`, T D each; the last layer's with the final norm."""
        prepared, x_TD = self._embedded(batch, ops)
        depth = self.config.depth if depth is None else depth
        states = [x_TD, *self.outputs(x_TD, prepared, ops, depth)]
        if depth == self.config.depth:
            states[-1] = ops.norm(self.norm, states[-1])
        return [ops.finish(state, batch) for state in states]

    def from_embeddings(self, x_TD: Tensor, batch: Batch, ops: Operations = TORCH) -> Tensor:
        """T D: the last layer's vectors from the first layer's input."""
        [last_TD] = deque(self.outputs(x_TD, batch, ops), maxlen=1)
        return ops.norm(self.norm, last_TD)

    def outputs(self, x_TD: Tensor, batch: Batch, ops: Operations, depth: int | None = None) -> Iterator[Tensor]:
        """Each layer's output in turn, T D: the only loop over the layers, for every engine."""
        for layer in self.stack[:depth]:
            x_TD = layer(x_TD, batch, ops)
            yield x_TD

    def trace(self, batch: Batch) -> Trace:
        """Every layer's queries, keys, values, weights and output for one sequence. Slow; for looking inside."""
        if len(batch.lengths) != 1:
            raise RequestError(f"a trace follows one sequence, not {len(batch.lengths)}")
        recorder = AttentionRecorder()
        _, embeddings = self._embedded(batch, recorder)
        outputs = list(self.outputs(embeddings, batch, recorder))
        layers = [LayerTrace(*record, output) for record, output in zip(recorder.records, outputs, strict=True)]
        return Trace(embeddings, tuple(layers), recorder.norm(self.norm, outputs[-1]))

    def _embedded(self, batch: Batch, ops: Operations, ids: Tensor | None = None) -> tuple[Batch, Tensor]:
        """The batch as the engine computes it, and the first layer's input, T D."""
        self.refuse_too_long(batch)
        prepared = ops.prepare(batch)
        return prepared, self.embeddings(prepared, ids, ops, self.dtype)

    def refuse_too_long(self, batch: Batch) -> None:
        """Refuse a sequence that is longer than the model's positions; nothing is truncated here."""
        if batch.longest > self.config.max_length:
            raise RequestError(
                f"a sequence of {batch.longest} tokens is over this model's {self.config.max_length} positions; "
                "cut it or slide a window over it first"
            )
