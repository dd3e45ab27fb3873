"""Vectors for retrieval: sparse ones with a weight for each word piece (SPLADE), and one for each token (ColBERT)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, repeat
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertkit.errors import RequestError
from bertkit.model.attention import AttentionPattern, padded
from bertkit.model.batch import Batch
from bertkit.model.operations import Operations
from bertkit.settings import pick

TOKENS_AT_A_TIME = 128  # whose logits exist at one time: 16 MB of a vocabulary of 30,000
QUERY, DOCUMENT = "query", "document"
# The functions of a logit that sentence-transformers has, by their names there.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x.relu().log1p(),
    "log1p_relu": lambda x: x.relu().log1p().log1p(),
}


class SparsePooling(NamedTuple):
    """A row of SPARSE_POOLINGS: how the values of a sequence's tokens become one for each word piece."""

    pool: Callable[[Tensor], Tensor]  # L V -> V
    join: Callable[[Tensor, Tensor], Tensor]  # of two parts of a sequence
    activated_after: bool  # the activation keeps the order, so it is computed once, of the largest logit


SPARSE_POOLINGS: Mapping[str, SparsePooling] = MappingProxyType(
    {
        "max": SparsePooling(lambda x_LV: x_LV.amax(dim=0), torch.maximum, True),
        "sum": SparsePooling(lambda x_LV: x_LV.sum(dim=0), torch.add, False),
    }
)


@dataclass(frozen=True, kw_only=True)
class RetrievalSettings:
    """What sparse and late vectors share: a text is a query or a document, and each side has its prompt."""

    what: ClassVar[str] = "vectors for retrieval"
    made_by: ClassVar[str]  # sentence-transformers' class
    fills: ClassVar[bool] = False  # whether the masked-word head makes them
    query_prefix: str = ""
    document_prefix: str = ""

    def prefix(self, side: str) -> str:
        """What is put before the texts of a side."""
        return {QUERY: self.query_prefix, DOCUMENT: self.document_prefix}[side]


@dataclass(frozen=True, kw_only=True)
class SparseSettings(RetrievalSettings):
    """How the logits of the masked-word head become one sparse vector."""

    what = "sparse vectors"
    made_by = "SparseEncoder"
    fills = True
    pooling: str = "max"
    activation: str = "relu"

    def __post_init__(self) -> None:
        pick(SPARSE_POOLINGS, self.pooling, "pooling of sparse vectors")
        pick(ACTIVATIONS, self.activation, "activation of sparse vectors")


@dataclass(frozen=True)
class Expansion:
    """Queries are filled up with [MASK], whose vectors are compared as those of words are."""

    length: int  # tokens of a query, [CLS] and [SEP] included
    fixed: bool = True  # a longer query is cut to the length; else it is only the least
    attend: bool = False  # whether other tokens see the [MASK]; they see the others in any case
    token: str | None = None  # None: the tokenizer's mask token

    def __post_init__(self) -> None:
        if isinstance(self.length, bool) or not isinstance(self.length, int) or self.length < 3:
            raise RequestError(f"a query expanded to {self.length!r} tokens has no room for a word; give 3 or more")


@dataclass(frozen=True, kw_only=True)
class LateSettings(RetrievalSettings):
    """How a text becomes a vector for each of its tokens, compared by the sum of each query token's best match."""

    what = "token vectors"
    made_by = "MultiVectorEncoder"
    dense: nn.Sequential | None = None  # the projection: linear layers, each with an activation
    normalize: bool = True
    query_length: int | None = None  # tokens at most; None: the model's
    document_length: int | None = None
    expansion: Expansion | None = None
    skipped: tuple[str, ...] = ()  # tokens that get no vector, such as punctuation
    skipped_on: tuple[str, ...] = (DOCUMENT,)  # the sides on which they get none
    mean: bool = False  # scores are divided by the query's tokens

    def width(self, hidden: int) -> int:
        """Width of a token's vector in a model whose hidden states have the width `hidden`."""
        if self.dense is None:
            return hidden
        last = self.dense[-2]
        assert isinstance(last, nn.Linear)  # an activation follows each
        return last.out_features

    def limit(self, side: str, default: int, positions: int) -> int:
        """Tokens of a text at most, in a model that has so many positions."""
        own = {QUERY: self.query_length, DOCUMENT: self.document_length}[side]
        expansion = self.expansion if side == QUERY else None
        if expansion is not None:
            own = expansion.length if expansion.fixed else None if own is None else max(own, expansion.length)
        return min(default if own is None else own, positions)

    def vectors(self, x_TD: Tensor) -> Tensor:
        """float32 T W: the tokens' vectors, projected and normalized."""
        x_TW = x_TD.float()
        if self.dense is not None:
            x_TW = self.dense.to(x_TW.device)(x_TW)
        return F.normalize(x_TW, dim=-1) if self.normalize else x_TW


def word_weights(
    head: nn.Module, x_TD: Tensor, batch: Batch, settings: SparseSettings, *, recompute: bool = False
) -> Tensor:
    """float32 N V: each sequence's weight of every word piece; logits exist for TOKENS_AT_A_TIME tokens at a time.

    With gradients they are kept, or with `recompute` computed again in the backward pass.
    """
    row, activation = SPARSE_POOLINGS[settings.pooling], ACTIVATIONS[settings.activation]

    def pooled_block(x_BD: Tensor, sizes: Sequence[int]) -> Tensor:
        logits_BV = head(x_BD).float()
        values_BV = logits_BV if row.activated_after else activation(logits_BV)
        return torch.stack([row.pool(part_LV) for part_LV in values_BV.split(list(sizes))])

    def recomputed(x_BD: Tensor, sizes: Sequence[int]) -> Tensor:
        pooled_NV: Tensor = checkpoint(pooled_block, x_BD, sizes, use_reentrant=False)
        return pooled_NV

    compute = recomputed if recompute else pooled_block
    pooled: dict[int, Tensor] = {}
    for start, sequences, sizes in _blocks(batch.lengths):
        found_NV = compute(x_TD[start : start + sum(sizes)], sizes)
        for number, values_V in zip(sequences, found_NV, strict=True):
            pooled[number] = row.join(pooled[number], values_V) if number in pooled else values_V
    weights_NV = torch.stack(list(pooled.values()))
    return activation(weights_NV) if row.activated_after else weights_NV


def _blocks(lengths: Sequence[int]) -> list[tuple[int, list[int], list[int]]]:
    """(first token, sequences, their tokens) of each block of TOKENS_AT_A_TIME tokens."""
    row_of = [row for row, length in enumerate(lengths) for row in repeat(row, length)]
    starts = range(0, len(row_of), TOKENS_AT_A_TIME)
    counted = [[(row, len(list(run))) for row, run in groupby(row_of[s : s + TOKENS_AT_A_TIME])] for s in starts]
    return [(s, [row for row, _ in runs], [size for _, size in runs]) for s, runs in zip(starts, counted, strict=True)]


class UnseenTokens(Operations):
    """Torch's operations with tokens that no token sees, though they see all others: ColBERT's [MASK]."""

    def __init__(self, seen_T: Tensor) -> None:
        self.seen_T = seen_T

    def attend(self, qkv_TX: Tensor, batch: Batch, pattern: AttentionPattern, dropout: float) -> Tensor:
        """T 3D -> T D, by the kernel that takes a mask."""
        mixed = padded(pattern.split(qkv_TX, batch), batch, pattern.window, dropout, pattern.bias, self.seen_T)
        return mixed.flatten(1)
