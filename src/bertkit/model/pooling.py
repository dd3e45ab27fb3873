"""Pooling of packed batches and of the vectors of one text, and the settings of an embedding."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.calls import Layers as Layers
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.poolings import DEFAULT_POOLING, NO_POOLING, POOLINGS, TEXT_POOLINGS
from bertkit.settings import pick

# Names of prompts for the two sides of a search; the first that a folder has is used, as in sentence-transformers.
QUERY, DOCUMENT = ("query",), ("document", "passage", "corpus")
POOLING_CHOICES = dict.fromkeys((*TEXT_POOLINGS, NO_POOLING))


@dataclass(frozen=True, kw_only=True)
class EmbedSettings:
    """How a text becomes one vector."""

    pooling: str = DEFAULT_POOLING  # a row of TEXT_POOLINGS, or none: a vector for each token
    layers: tuple[int, ...] = (-1,)  # concatenated; -1 is the last, 0 the embeddings
    normalize: bool = False  # to length 1
    prefix: str = ""  # the default prompt: put before every text, as some sentence models need
    prompts: tuple[tuple[str, str], ...] = ()  # name and text of each prompt
    dimensions: int | None = None  # leading numbers that are kept of a vector, before it is normalized; None: all
    trained_dimensions: tuple[int, ...] = ()  # that the model was trained to be cut to
    # Linear layers, each with an activation, between pooling and normalization: sentence-transformers' Dense modules.
    dense: nn.Sequential | None = None

    def __post_init__(self) -> None:
        valid = isinstance(self.pooling, str) and isinstance(self.prefix, str) and isinstance(self.normalize, bool)
        counts = (*self.trained_dimensions, *([] if self.dimensions is None else [self.dimensions]))
        valid = valid and all(isinstance(part, str) for prompt in self.prompts for part in prompt)
        if not valid or not all(isinstance(number, int) for number in (*self.layers, *counts)):
            raise RequestError(f"embedding settings of the wrong kind: {self}")
        pick(POOLING_CHOICES, self.pooling, "pooling")

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> "EmbedSettings":
        """The settings that `as_json` wrote; without the dense layers, whose weights are in files of their own."""
        layers = tuple(saved["layers"])
        trained, prompts = tuple(saved.get("trained_dimensions", ())), tuple(dict(saved.get("prompts", {})).items())
        return cls(**{**saved, "layers": layers, "trained_dimensions": trained, "prompts": prompts})

    def as_json(self) -> dict[str, Any]:
        """Every field but the dense layers."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "dense"}
        return {**values, "prompts": dict(self.prompts)}

    @property
    def per_token(self) -> bool:
        """Whether a text gets a vector for each of its tokens instead of one."""
        return self.pooling == NO_POOLING

    def width(self, hidden: int) -> int:
        """Width of the vectors of a model whose hidden states have width `hidden`; `dimensions` over it are refused."""
        whole = self._whole_width(hidden)
        if self.dimensions is not None and not 1 <= self.dimensions <= whole:
            raise RequestError(f"dimensions={self.dimensions} must be from 1 to the model's {whole}")
        return self.dimensions or whole

    def _whole_width(self, hidden: int) -> int:
        if self.dense is not None:
            linear = self.dense[-2]
            assert isinstance(linear, nn.Linear)  # an activation follows each
            return linear.out_features
        return hidden * len(self.layers) * (1 if self.per_token else POOLINGS[self.pooling].width)

    def changed(
        self,
        *,
        pooling: str | None = None,
        layers: Layers | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        prompt_name: str | None = None,
    ) -> "EmbedSettings":
        """A copy with the settings that are not None; dense layers are for the pooling and layers they came with.

        With `dimensions`, vectors are normalized unless that is refused: their prefixes have other lengths.
        """
        if dimensions is not None and normalize is None:
            normalize = True
        prompted = self if prompt_name is None else self.prompted(prompt_name)
        other = replace(
            prompted,
            pooling=self.pooling if pooling is None else pooling,
            layers=self.layers if layers is None else _layer_numbers(layers),
            normalize=self.normalize if normalize is None else normalize,
            dimensions=self.dimensions if dimensions is None else dimensions,
        )
        same = (other.pooling, other.layers) == (self.pooling, self.layers)
        return other if same or self.dense is None else replace(other, dense=None)

    def prompted(self, name: str) -> "EmbedSettings":
        """With the named prompt before every text; those for queries and documents are empty unless the folder has one.

        So it is in sentence-transformers.
        """
        return replace(self, prefix=pick({QUERY[0]: "", DOCUMENT[0]: "", **dict(self.prompts)}, name, "prompt name"))

    def side(self, names: Sequence[str]) -> "EmbedSettings":
        """With the first of the named prompts; if the folder has some for queries or documents, else the default."""
        prompts = dict(self.prompts)
        if not any(name in prompts for name in (*QUERY, *DOCUMENT)):
            return self
        return replace(self, prefix=next((prompts[name] for name in names if name in prompts), ""))

    def resolved(self, depth: int) -> "EmbedSettings":
        """With layers counted from the bottom, 0 the embeddings, `depth` the last; a layer out of range is refused."""
        return _resolved(self, depth)

    def vectors(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """`vectors_of` by these settings."""
        how: dict[str, Any] = {"normalize": self.normalize, "dense": self.dense, "dimensions": self.dimensions}
        return vectors_of(x_TD, batch, self.pooling, **how)

    def one_vector(self) -> "EmbedSettings":
        """These settings; refused if they give a vector for each token."""
        pick(TEXT_POOLINGS, self.pooling, "pooling of one vector per text")
        return self


@lru_cache(maxsize=1024)  # a server calls it for every request
def _resolved(settings: EmbedSettings, depth: int) -> EmbedSettings:
    layers = tuple(depth + 1 + layer if layer < 0 else layer for layer in settings.layers)
    if not layers or not all(0 <= layer <= depth for layer in layers):
        raise RequestError(
            f"layers {settings.layers[:20]} must be from 0 (embeddings) to {depth}, or -1 (last) to {-depth - 1}"
        )
    return replace(settings, layers=layers)


def _layer_numbers(layers: Layers) -> tuple[int, ...]:
    try:
        return tuple(map(index, layers if isinstance(layers, Iterable) else [layers]))
    except TypeError as error:
        raise RequestError(f"layers={layers!r} must be whole numbers") from error


def pool(x_TD: Tensor, batch: Batch, name: str, scores_T: Tensor | None = None) -> Tensor:
    """N D (or N 2D): each sequence pooled by the row called `name`; `scores_T` are for rows that are `scored`."""
    row = POOLINGS.get(name) or pick(POOLINGS, name, "pooling")
    return row.pool(x_TD, PackedTokens(batch, scores_T))


def vectors_of(
    x_TD: Tensor,
    batch: Batch,
    pooling: str,
    *,
    normalize: bool,
    dense: nn.Sequential | None = None,
    dimensions: int | None = None,
) -> Tensor:
    """float32 N D: a vector for each sequence of a batch; without pooling T D, one for each token."""
    vectors = (x_TD if pooling == NO_POOLING else pool(x_TD, batch, pooling)).float()
    if dense is not None:
        vectors = dense.to(vectors.device)(vectors)
    return cut_vectors(vectors, dimensions, normalize=normalize)  # in half precision, lengths would be 0.25 % off


def cut_vectors(vectors: Tensor, dimensions: int | None, *, normalize: bool) -> Tensor:
    """The leading numbers of vectors, at length 1 with `normalize`."""
    kept = vectors if dimensions is None else vectors[..., :dimensions]
    return F.normalize(kept, dim=-1) if normalize else kept


def pool_array(x_LD: np.ndarray, name: str) -> np.ndarray:
    """D (or 2D): the vectors of one text, pooled in NumPy."""
    return pick(POOLINGS, name, "pooling").pool(x_LD, TextTokens(x_LD))


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """The tokens of a batch end to end, as `Tokens`: x is T D, weights and scores are T."""

    batch: Batch
    token_scores: Tensor | None = None  # T; for rows with `scored`

    @property
    def positions(self) -> Tensor:
        """T."""
        return self.batch.positions + 1

    @property
    def scores(self) -> Tensor:
        """T."""
        assert self.token_scores is not None  # only rows with `scored` read them
        return self.token_scores

    def first(self, x_TD: Tensor) -> Tensor:
        """N D: [CLS]."""
        return self.batch.first(x_TD)

    def last(self, x_TD: Tensor) -> Tensor:
        """N D: [SEP]."""
        return x_TD[self.batch.offsets[1:].long() - 1]

    def mean(self, x_TD: Tensor) -> Tensor:
        """N D, over all tokens, [CLS] and [SEP] among them."""
        if len(self.batch.lengths) == 1 and not self.batch.fixed:  # one text: half the time of what follows
            return x_TD.float().mean(dim=0, keepdim=True).to(x_TD.dtype)
        return self._reduce(x_TD, "mean").to(x_TD.dtype)

    def maximum(self, x_TD: Tensor) -> Tensor:
        """N D."""
        return self._reduce(x_TD, "max").to(x_TD.dtype)

    def weighted_sum(self, x_TD: Tensor, weights_T: Tensor) -> Tensor:
        """N D."""
        return self._reduce(weights_T[:, None] * x_TD.float(), "sum").to(x_TD.dtype)

    def shares(self, weights_T: Tensor) -> Tensor:
        """T float32."""
        totals_N = self._reduce(weights_T, "sum")
        return weights_T / totals_N.repeat_interleave(self.batch.offsets.diff(), output_size=len(weights_T))

    def softmax(self, scores_T: Tensor) -> Tensor:
        """T float32."""
        return self.batch.unpad(self.batch.pad(scores_T.float(), fill=float("-inf")).softmax(dim=1))

    def concatenate(self, parts: Sequence[Tensor]) -> Tensor:
        """N (D + D + ...)."""
        return torch.cat(list(parts), dim=-1)

    def _reduce(self, x_T: Tensor, how: str) -> Tensor:
        """Reduced in float32: a mean of 512 bfloat16 values, summed in bfloat16, would be a third off."""
        # Unsafe: lengths are not checked again, which would synchronize a GPU.
        return torch.segment_reduce(x_T.float(), how, lengths=self.batch.offsets.diff(), unsafe=True)


@dataclass(frozen=True, slots=True)
class TextTokens:
    """The tokens of one text, as `Tokens`: x is L D, weights and scores are L."""

    x_LD: np.ndarray

    @property
    def positions(self) -> np.ndarray:
        """L."""
        return np.arange(1, len(self.x_LD) + 1, dtype=np.float32)

    @property
    def scores(self) -> np.ndarray:
        """Not available: only heads have scores, and they compute in torch."""
        raise NotImplementedError

    def first(self, x_LD: np.ndarray) -> np.ndarray:
        """D."""
        first: np.ndarray = x_LD[0]
        return first

    def last(self, x_LD: np.ndarray) -> np.ndarray:
        """D."""
        last: np.ndarray = x_LD[-1]
        return last

    def mean(self, x_LD: np.ndarray) -> np.ndarray:
        """D: np.mean without its overhead."""
        mean: np.ndarray = np.add.reduce(x_LD) / np.float32(len(x_LD))
        return mean

    def maximum(self, x_LD: np.ndarray) -> np.ndarray:
        """D."""
        maximum: np.ndarray = np.maximum.reduce(x_LD)
        return maximum

    def weighted_sum(self, x_LD: np.ndarray, weights_L: np.ndarray) -> np.ndarray:
        """D."""
        total: np.ndarray = weights_L @ x_LD
        return total

    def shares(self, weights_L: np.ndarray) -> np.ndarray:
        """L."""
        shares: np.ndarray = weights_L / np.add.reduce(weights_L)
        return shares

    def softmax(self, scores_L: np.ndarray) -> np.ndarray:
        """L."""
        return self.shares(np.exp(scores_L - np.maximum.reduce(scores_L)))

    def concatenate(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """D + D + ..."""
        return np.concatenate(parts)
