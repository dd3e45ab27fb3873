"""BERT's forward pass in float64, written out from a model's tensors.

Nothing here calls the model's code: facts compare the results of the model with these formulas.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from bertkit.config import BertConfig
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder


@dataclass(frozen=True)
class HandHeads:
    """The heads of one layer for a sequence of length L; names as in `model.encoder.LayerTrace`."""

    queries: Tensor  # L H K
    keys: Tensor  # L H K
    values: Tensor  # L H K
    weights: Tensor  # H L L
    mixed: Tensor  # L D


@dataclass(frozen=True)
class Arithmetic:
    """Variants of the computation: the defaults are BERT's, other values are mistakes that facts must detect."""

    output_projection: bool = True  # W_O
    feed_forward_from: int = 0  # the first layer that has a feed-forward
    positions_everywhere: bool = False  # position vectors are added before every layer


BERT = Arithmetic()


def scores_by_hand(queries: Tensor, keys: Tensor) -> Tensor:
    """H L L: q . k / sqrt(K)."""
    products = [q @ k.T for q, k in zip(queries.unbind(1), keys.unbind(1), strict=True)]
    return torch.stack(products) / math.sqrt(queries.shape[-1])


def heads_by_hand(encoder: Encoder, number: int, x: Tensor) -> HandHeads:
    """The heads of layer `number` (from 0) on the layer's input L D."""
    heads, width = encoder.config.heads, encoder.config.width
    head_width = width // heads
    joined = x.double() @ _tensor(encoder, number, "attention.qkv.weight").T
    if encoder.config.parts.attention_bias:
        joined = joined + _tensor(encoder, number, "attention.qkv.bias")
    queries, keys, values = (
        joined[:, first : first + width].reshape(-1, heads, head_width) for first in (0, width, 2 * width)
    )
    scores = scores_by_hand(queries, keys)
    if encoder.config.parts.relative == "transformer_xl":
        scores = scores + relative_scores_by_hand(encoder, number, queries, keys)
    raw = scores.exp()
    raw = raw.tril() if encoder.config.parts.causal else raw
    weights = raw / raw.sum(dim=-1, keepdim=True)
    mixed = torch.cat([weights[head] @ values[:, head] for head in range(heads)], dim=1)
    return HandHeads(queries, keys, values, weights, mixed)


def relative_scores_by_hand(encoder: Encoder, number: int, queries: Tensor, keys: Tensor) -> Tensor:
    """H L L: what XLNet adds to q . k / sqrt(K): terms of a bias and the key, the query and the distance, the segments.

    The first token is read as the last one, and in a segment of its own.
    """
    (length, heads, head_width), width = queries.shape, encoder.config.width
    content, position, segment = (
        _tensor(encoder, number, f"attention.relative.{name}").reshape(heads, head_width)
        for name in ("content", "position", "segment")
    )
    segments = _tensor(encoder, number, "attention.relative.segments")  # the same one, another one
    distance_keys = _tensor(encoder, number, "attention.relative.key.weight")
    places = [length, *range(1, length)]
    scores = torch.zeros(heads, length, length, dtype=torch.float64)
    for i, j in product(range(length), repeat=2):
        sinusoid = _sinusoid(places[i] - places[j], width)
        distance = distance_keys @ torch.tensor(sinusoid[0::2] + sinusoid[1::2], dtype=torch.float64)
        apart = int((i == 0) != (j == 0))
        terms = content * keys[j] + (queries[i] + position) * distance.reshape(heads, head_width)
        scores[:, i, j] = (terms + (queries[i] + segment) * segments[apart]).sum(dim=-1)
    return scores / math.sqrt(head_width)


def layer_by_hand(encoder: Encoder, number: int, x: Tensor, variant: Arithmetic = BERT) -> Tensor:
    """L D: the output of layer `number`: heads, W_O, norm, feed-forward, norm."""

    def linear(x: Tensor, name: str) -> Tensor:
        projected = x @ _tensor(encoder, number, f"{name}.weight").T
        plain = name.startswith("attention") and not encoder.config.parts.attention_bias
        return projected if plain else projected + _tensor(encoder, number, f"{name}.bias")

    def norm(x: Tensor, name: str) -> Tensor:
        weight, bias = (_tensor(encoder, number, f"{name}.{part}") for part in ("weight", "bias"))
        return _layer_norm(x, weight, bias, encoder.config)

    mixed = heads_by_hand(encoder, number, x).mixed
    attended = linear(mixed, "attention.out") if variant.output_projection else mixed
    middle = norm(x.double() + attended, "attention_norm")
    if number < variant.feed_forward_from:
        return middle
    inner = _gelu(linear(middle, "feed_forward.up"), encoder.config)
    return norm(middle + linear(inner, "feed_forward.down"), "feed_forward_norm")


def states_by_hand(
    encoder: Encoder, ids: Sequence[int], segments: Sequence[int] | None = None, variant: Arithmetic = BERT
) -> list[Tensor]:
    """The embeddings and every layer's output, L D each, of one sequence."""
    states = [_embeddings(encoder, ids, segments)]
    for number in range(encoder.config.depth):
        x = states[-1] + _positions(encoder, len(ids)) if variant.positions_everywhere and number else states[-1]
        states.append(layer_by_hand(encoder, number, x, variant))
    return states


def largest_gap(
    encoder: Encoder, ids: Sequence[int], segments: Sequence[int] | None = None, variant: Arithmetic = BERT
) -> float:
    """The largest difference between the model's vectors and those by hand, in forward, hidden_states and trace."""
    by_hand = states_by_hand(encoder, ids, segments, variant)
    batch = Batch.pack([ids], None if segments is None else [segments])
    trace = encoder.trace(batch)
    pairs = [(encoder(batch), by_hand[-1]), (trace.embeddings, by_hand[0])]
    pairs += zip(encoder.hidden_states(batch), by_hand, strict=True)
    pairs += zip((layer.output for layer in trace.layers), by_hand[1:], strict=True)
    return max(gap(model, hand) for model, hand in pairs)


def gap(one: Tensor, other: Tensor) -> float:
    """The largest absolute difference between two tensors."""
    return float((one.double() - other.double()).abs().max())


def _embeddings(encoder: Encoder, ids: Sequence[int], segments: Sequence[int] | None) -> Tensor:
    tensors = {name: tensor.double() for name, tensor in encoder.embeddings.state_dict().items()}
    x: Tensor = tensors["word.weight"][list(ids)] + _positions(encoder, len(ids))
    if "segment.weight" in tensors:
        x = x + tensors["segment.weight"][list(segments or [0] * len(ids))]
    if encoder.config.parts.embedding_norm:
        x = _layer_norm(x, tensors["norm.weight"], tensors["norm.bias"], encoder.config)
    return x @ tensors["widen.weight"].T + tensors["widen.bias"] if "widen.weight" in tensors else x


def _positions(encoder: Encoder, length: int) -> Tensor:
    """L E: the position vectors; RoBERTa's start after the row of the padding id."""
    config = encoder.config
    if config.parts.position == "none":
        return torch.zeros(length, config.table_width, dtype=torch.float64)
    if config.parts.position == "sinusoidal":
        return sinusoids_by_hand(length, config.table_width)
    first = config.pad_id + 1 if config.parts.position == "offset" else 0
    return encoder.get_parameter("embeddings.position.weight")[first : first + length].double()


def sinusoids_by_hand(length: int, width: int) -> Tensor:
    """L D: sin and cos of position / 10000^(2i/D), interleaved."""
    rows = [_sinusoid(position, width) for position in range(length)]
    return torch.tensor(rows, dtype=torch.float64)


def _sinusoid(position: int, width: int) -> list[float]:
    return [(math.cos if i % 2 else math.sin)(position / 10000 ** ((i - i % 2) / width)) for i in range(width)]


def _tensor(encoder: Encoder, number: int, name: str) -> Tensor:
    """A tensor of a layer; a model with a shared layer has layer 0 only."""
    stored = 0 if encoder.config.parts.shared_layers else number
    return encoder.get_parameter(f"layers.{stored}.{name}").double()


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, config: BertConfig) -> Tensor:
    """Each row normalized to mean 0 and variance 1, times `weight`, plus `bias`."""
    centered = x - x.mean(dim=-1, keepdim=True)
    variance = (centered**2).mean(dim=-1, keepdim=True)
    return centered / (variance + config.norm_epsilon).sqrt() * weight + bias


def _gelu(x: Tensor, config: BertConfig) -> Tensor:
    """GELU: x times the normal cumulative distribution at x, or its approximation with tanh."""
    if config.parts.activation == "gelu_tanh":
        cumulative = (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    else:
        cumulative = (1 + torch.erf(x / math.sqrt(2))) / 2
    return x * cumulative
