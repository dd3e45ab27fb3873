"""The table of poolings: how the vectors of a sequence's tokens become one vector. Importable without torch.

A pooling is a function over `Tokens`, written once: a packed batch and the vectors of one text in NumPy
(`model/pooling.py`) and a padded batch (ONNX export) are three implementations of `Tokens`. To add a pooling, write its
row, and its name in the `Literal` above the table.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol, TypeVar

Array = TypeVar("Array")


class Tokens(Protocol[Array]):
    """The tokens of one or more sequences. `x` holds a vector for each token, `weights` and `scores` a number."""

    @property
    def positions(self) -> Array:
        """Each token's position in its sequence, counted from 1."""

    @property
    def scores(self) -> Array:
        """The output of a trained linear layer for each token; only for rows with `scored`."""

    def first(self, x: Array, /) -> Array:
        """The vector of each sequence's first token."""

    def last(self, x: Array, /) -> Array:
        """The vector of each sequence's last token."""

    def mean(self, x: Array, /) -> Array:
        """The mean over each sequence, in float32."""

    def maximum(self, x: Array, /) -> Array:
        """The largest value of each column in each sequence."""

    def weighted_sum(self, x: Array, weights: Array, /) -> Array:
        """The sum of weight times vector over each sequence, in float32."""

    def shares(self, weights: Array, /) -> Array:
        """Weights divided by their sum over the sequence."""

    def softmax(self, scores: Array, /) -> Array:
        """Scores to weights that sum to 1 over each sequence."""

    def concatenate(self, parts: Sequence[Array], /) -> Array:
        """Pooled vectors side by side."""


class Pool(Protocol):
    """One vector for each sequence of any implementation of `Tokens`."""

    def __call__(self, x: Array, tokens: Tokens[Array], /) -> Array:
        """`x`: a vector for each token."""


@dataclass(frozen=True, kw_only=True)
class Pooling:
    """A row of POOLINGS: the function, and everything else that is particular to a pooling."""

    pool: Pool
    width: int = 1  # of the pooled vector, in widths of a token's vector
    sentence_transformers: tuple[str, str] | None = None  # its pooling_mode there, and the flag of older folders
    head: bool = False  # whether a head that reads one vector per sequence may use it
    scored: bool = False  # it has trained parameters, a linear layer that gives each token a score; only for heads


def _weighted_mean(x: Array, tokens: Tokens[Array]) -> Array:
    """Token i has weight i, as in SGPT: later tokens of a causal model have seen more context (Muennighoff 2022)."""
    return tokens.weighted_sum(x, tokens.shares(tokens.positions))


_FIRST = Pooling(
    pool=lambda x, tokens: tokens.first(x), sentence_transformers=("cls", "pooling_mode_cls_token"), head=True
)
PoolingName = Literal["mean", "cls", "first", "last", "max", "mean-max", "last-max-mean", "weighted-mean"]
HeadPooling = Literal["first", "last", "mean", "max", "last-max-mean", "attention"]
POOLINGS: dict[str, Pooling] = {
    "mean": Pooling(
        pool=lambda x, tokens: tokens.mean(x), sentence_transformers=("mean", "pooling_mode_mean_tokens"), head=True
    ),
    "cls": replace(_FIRST, head=False),  # sentence-transformers' name of it
    "first": _FIRST,
    "last": Pooling(
        pool=lambda x, tokens: tokens.last(x),
        sentence_transformers=("lasttoken", "pooling_mode_lasttoken"),
        head=True,
    ),
    "max": Pooling(
        pool=lambda x, tokens: tokens.maximum(x), sentence_transformers=("max", "pooling_mode_max_tokens"), head=True
    ),
    "mean-max": Pooling(pool=lambda x, tokens: tokens.concatenate([tokens.mean(x), tokens.maximum(x)]), width=2),
    "last-max-mean": Pooling(  # ULMFiT's
        pool=lambda x, tokens: tokens.concatenate([tokens.last(x), tokens.maximum(x), tokens.mean(x)]),
        width=3,
        head=True,
    ),
    "weighted-mean": Pooling(
        pool=_weighted_mean, sentence_transformers=("weightedmean", "pooling_mode_weightedmean_tokens")
    ),
    "attention": Pooling(
        pool=lambda x, tokens: tokens.weighted_sum(x, tokens.softmax(tokens.scores)), head=True, scored=True
    ),
}
# Those that need no training: what `embed` takes. The first is the default.
TEXT_POOLINGS: dict[str, Pooling] = {name: row for name, row in POOLINGS.items() if not row.scored}
DEFAULT_POOLING = next(iter(TEXT_POOLINGS))
NoPooling = Literal["none"]
NO_POOLING: Final = "none"  # instead of a pooling's name: a vector for each token
