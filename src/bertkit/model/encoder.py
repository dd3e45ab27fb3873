"""Embeddings, then layer upon layer: every token's vector, informed by all others."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.embeddings import Embeddings
from bertkit.model.layer import LAYERS, PostNormLayer, PreNormLayer
from bertkit.settings import pick


@dataclass(frozen=True)
class LayerTrace:
    """What one layer did with one sequence of length L."""

    queries: Tensor  # L H K
    keys: Tensor  # L H K
    values: Tensor  # L H K
    weights: Tensor  # H L L: row = the token that looks, column = what it looks at
    mixed: Tensor  # L D: weights @ values, heads side by side, before the output map
    output: Tensor  # L D


@dataclass(frozen=True)
class Trace:
    """Everything one sequence went through."""

    embeddings: Tensor  # L D
    layers: tuple[LayerTrace, ...]
    output: Tensor  # L D: the last layer's output, normalized where the family ends with a norm


class Encoder(nn.Module):
    """The stack. ALBERT's holds one layer and uses it `depth` times."""

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
        return [layers[index % len(layers)] for index in range(self.config.depth)]

    @property
    def dtype(self) -> torch.dtype:
        """What the layers compute in; the embeddings may be kept in more."""
        return self.stack[0].attention.out.weight.dtype

    def forward(self, batch: Batch, ids: Tensor | None = None) -> Tensor:
        """T D: the last layer's vectors; `ids` are read in place of the batch's."""
        self.refuse_too_long(batch)
        x_TD = self.embeddings(batch, ids).to(self.dtype)
        for layer in self.stack:
            x_TD = layer(x_TD, batch)
        out: Tensor = self.norm(x_TD)
        return out

    def hidden_states(self, batch: Batch, depth: int | None = None) -> list[Tensor]:
        """The embeddings and each layer's output up to `depth`, T D each; the last of all is as in forward."""
        self.refuse_too_long(batch)
        depth = self.config.depth if depth is None else depth
        states = [self.embeddings(batch)]
        for layer in self.stack[:depth]:
            states.append(layer(states[-1], batch))
        if depth == self.config.depth:
            states[-1] = self.norm(states[-1])
        return states

    def trace(self, batch: Batch) -> Trace:
        """Every layer's queries, keys, values, weights and output for one sequence. Slow; for looking inside."""
        if len(batch.lengths) != 1:
            raise RequestError(f"a trace follows one sequence, not {len(batch.lengths)}")
        self.refuse_too_long(batch)
        x_TD = embeddings = self.embeddings(batch)
        layers = []
        for layer in self.stack:
            layers.append(_trace_layer(layer, x_TD, batch))
            x_TD = layers[-1].output
        return Trace(embeddings, tuple(layers), self.norm(x_TD))

    def refuse_too_long(self, batch: Batch) -> None:
        """Nothing longer than the model's positions reaches it, and nothing is cut here."""
        if batch.longest > self.config.max_length:
            raise RequestError(
                f"a sequence of {batch.longest} tokens is over this model's {self.config.max_length} positions; "
                "cut it or slide a window over it first"
            )


def _trace_layer(layer: PostNormLayer | PreNormLayer, x_TD: Tensor, batch: Batch) -> LayerTrace:
    """Run one layer and write down what its attention saw."""
    seen_TD = layer.attention_input(x_TD)
    queries, keys, values = layer.attention.project(seen_TD, batch)
    [weights] = layer.attention.weights(seen_TD, batch)
    mixed = layer.attention.mix(seen_TD, batch)
    return LayerTrace(queries, keys, values, weights, mixed, layer(x_TD, batch))
