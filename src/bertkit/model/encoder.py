"""The encoder: embeddings, then one layer after the other."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.errors import RequestError
from bertkit.model.attention import AttentionPattern, source_weights
from bertkit.model.batch import Batch
from bertkit.model.embeddings import Embeddings
from bertkit.model.layer import LAYERS, AttentionLayer
from bertkit.model.operations import TORCH, Operations, Source
from bertkit.settings import pick

if TYPE_CHECKING:
    from bertkit.model.recurrent.layer import RecurrentLayer

RECURRENT = (
    "this model's layers are recurrent and have no attention heads; see its vectors: bertkit look, bertkit probe"
)


@dataclass(frozen=True)
class LayerTrace:
    """What one layer computed for one sequence of length L. A recurrent layer has no heads: H is 0."""

    queries: Tensor  # L H K
    keys: Tensor  # L H K
    values: Tensor  # L H K
    weights: Tensor  # H L L: row = the token that attends, column = the token it attends to
    mixed: Tensor  # L D: weights @ values, heads side by side, before the output projection
    output: Tensor  # L D
    # H L S: of a decoder's layer, over the tokens of the source; H is 1 for the alignment of a recurrent decoder.
    cross_weights: Tensor | None = None


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
        self.cross_weights: list[Tensor] = []

    def attend(self, qkv_TX: Tensor, batch: Batch, pattern: AttentionPattern, dropout: float) -> Tensor:
        """T 3D -> T D."""
        queries, keys, values = pattern.split(qkv_TX, batch).unbind(dim=1)
        mixed_TD = super().attend(qkv_TX, batch, pattern, dropout)
        weights = pattern.weights(queries, keys, batch.segments)
        self.records.append((queries, keys, values, weights, mixed_TD))
        return mixed_TD

    def attend_source(
        self, query_TD: Tensor, key_value_SX: Tensor, batch: Batch, source: Batch, heads: int, dropout: float
    ) -> Tensor:
        """T D."""
        queries_THK = query_TD.view(len(query_TD), heads, -1)
        keys_SHK = key_value_SX.view(len(key_value_SX), 2, heads, -1)[:, 0]
        self.cross_weights.append(source_weights(queries_THK, keys_SHK))
        return super().attend_source(query_TD, key_value_SX, batch, source, heads, dropout)

    def recur(self, cell: nn.Module, x_TI: Tensor, batch: Batch, source: Source | None = None) -> Tensor:
        """T D."""
        if source is None:
            return super().recur(cell, x_TI, batch)
        steps: list[Tensor] = []  # 1 S for each token of the target
        read_TD: Tensor = cell(x_TI, batch, source, steps)
        self.cross_weights.append(torch.stack(steps, dim=1))
        return read_TD


def _layer_class(config: BertConfig) -> "type[AttentionLayer | RecurrentLayer]":
    """The class of the layers; that of recurrent ones is imported for models that have them."""
    if not config.recurrent:
        return pick(LAYERS, config.parts.norm, "norm")
    from bertkit.model.recurrent.layer import RecurrentLayer

    return RecurrentLayer


class Encoder(nn.Module):
    """Embeddings and the stack of layers. ALBERT's has one layer and uses it `depth` times.

    With `cross` its layers attend to a `source` as well: a Transformer's decoder is such a stack (`decoder.py`).
    """

    def __init__(self, config: BertConfig, *, cross: bool = False) -> None:
        super().__init__()
        kind = _layer_class(config)
        distinct = 1 if config.parts.shared_layers else config.depth
        self.config = config
        self.embeddings = Embeddings(config)
        distance = self.embeddings.distance
        self.layers = nn.ModuleList(kind(config, index, distance, cross=cross) for index in range(distinct))
        ends_with_norm = config.parts.norm == "pre"
        eps, bias = config.norm_epsilon, config.parts.bias
        self.norm = nn.LayerNorm(config.width, eps=eps, bias=bias) if ends_with_norm else nn.Identity()

    @property
    def ordered_layers(self) -> list[nn.Module]:
        """The layers in the order of use, `depth` of them."""
        layers = list(self.layers)
        return layers * self.config.depth if self.config.parts.shared_layers else layers

    @property
    def stack(self) -> list[AttentionLayer]:
        """The same for whoever looks into attention; a recurrent encoder, which has none, is refused."""
        if self.config.recurrent:
            raise RequestError(RECURRENT)
        return self.ordered_layers  # type: ignore[return-value]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the layers compute in; the embedding tables may have more precision."""
        first: AttentionLayer | RecurrentLayer = next(iter(self.layers))  # type: ignore[assignment]
        return first.dtype

    def forward(
        self, batch: Batch, ids: Tensor | None = None, ops: Operations = TORCH, source: Source | None = None
    ) -> Tensor:
        """T D: the last layer's vectors, by the engine's operations; `ids` replace the batch's."""
        prepared, x_TD = self._embedded(batch, ops, ids)
        return ops.finish(self.from_embeddings(x_TD, prepared, ops, source), batch)

    def hidden_states(self, batch: Batch, depth: int | None = None, ops: Operations = TORCH) -> list[Tensor]:
        """The embeddings and each layer's output up to `depth`, T D each; the last layer's with the final norm."""
        prepared, x_TD = self._embedded(batch, ops)
        depth = self.config.depth if depth is None else depth
        states = [x_TD, *self.outputs(x_TD, prepared, ops, depth)]
        if depth == self.config.depth:
            states[-1] = ops.norm(self.norm, states[-1])
        return [ops.finish(state, batch) for state in states]

    def from_embeddings(
        self, x_TD: Tensor, batch: Batch, ops: Operations = TORCH, source: Source | None = None
    ) -> Tensor:
        """T D: the last layer's vectors from the first layer's input."""
        [last_TD] = deque(self.outputs(x_TD, batch, ops, source=source), maxlen=1)
        return ops.norm(self.norm, last_TD)

    def outputs(
        self, x_TD: Tensor, batch: Batch, ops: Operations, depth: int | None = None, source: Source | None = None
    ) -> Iterator[Tensor]:
        """Each layer's output in turn, T D: the only loop over the layers, for every engine."""
        batch = self.embeddings.with_masks_unseen(batch)
        for layer in self.ordered_layers[:depth]:
            x_TD = layer(x_TD, batch, ops) if source is None else layer(x_TD, batch, ops, source)
            yield x_TD

    def trace(self, batch: Batch, source: Source | None = None) -> Trace:
        """Every layer's queries, keys, values, weights and output for one sequence. Slow; for looking inside."""
        if len(batch.lengths) != 1:
            raise RequestError(f"a trace follows one sequence, not {len(batch.lengths)}")
        recorder = AttentionRecorder()
        _, embeddings = self._embedded(batch, recorder)
        outputs = list(self.outputs(embeddings, batch, recorder, source=source))
        crossed: list[Tensor | None] = [*recorder.cross_weights] or [None] * len(outputs)
        length, no_heads = len(embeddings), embeddings.new_zeros(len(embeddings), 0, 0)
        unattended = (no_heads, no_heads, no_heads, embeddings.new_zeros(0, length, length), no_heads.flatten(1))
        rows = zip(recorder.records or [unattended] * len(outputs), outputs, crossed, strict=True)
        layers = [LayerTrace(*record, output, weights) for record, output, weights in rows]
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
