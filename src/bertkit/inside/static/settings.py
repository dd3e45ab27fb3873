"""How static vectors are trained: the four methods, and the numbers of their papers."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from bertkit.errors import RequestError
from bertkit.settings import Range, Share, check_fields, pick, read_pairs

# What each method sets where the user does not: word2vec.c's, fastText's and GloVe's own numbers.
METHODS: dict[str, dict[str, Any]] = {
    "skip-gram": {"rate": 0.025},
    "cbow": {"rate": 0.05},
    "fasttext": {"rate": 0.05, "epochs": 3},  # some twenty rows to move for each word: an epoch is long
    # The paper's rate is 0.05, for 50 epochs and more; after 8 epochs 0.2 answers five times as many analogies.
    "glove": {"rate": 0.2, "epochs": 15, "window": 10, "subsample": 0.0},
}


@dataclass(frozen=True, kw_only=True)
class StaticSettings:
    """What decides the vectors, beside the text. `static_settings` fills in the numbers of a method."""

    method: str = "skip-gram"
    width: Annotated[int, Range(1, 10_000)] = 100  # numbers in a vector
    window: Annotated[int, Range(1, 50)] = 5  # words on each side; nearer ones count for more
    negatives: Annotated[int, Range(1, 100)] = 5  # drawn words for each real pair
    min_count: Annotated[int, Range(1, 10**9)] = 5  # rarer words are left out
    subsample: Share = 1e-3  # frequent words are passed over by chance; 0: never
    epochs: Annotated[int, Range(1, 10_000)] = 5
    rate: Annotated[float, Range(1e-9, 10)] = 0.025  # at the start; it falls evenly to nothing
    seed: Annotated[int, Range(0, 2**62)] = 1
    shortest: Annotated[int, Range(1, 20)] = 3  # fastText's n-grams, in characters, with < and > at a word's ends
    longest: Annotated[int, Range(1, 20)] = 6
    buckets: Annotated[int, Range(1, 2**27)] = 2**18  # rows of the n-gram table; n-grams with the same hash share one

    def __post_init__(self) -> None:
        pick(METHODS, self.method, "method")
        check_fields(self)
        if self.shortest > self.longest:
            raise RequestError(f"shortest={self.shortest} must not be over longest={self.longest}")


def static_settings(method: str = "skip-gram", **numbers: Any) -> StaticSettings:
    """`static_settings("glove", width=50)`: a row of METHODS, then your own numbers."""
    return replace(StaticSettings(method=method, **pick(METHODS, method, "method")), **numbers)


def read_settings(method: str, pairs: Sequence[str]) -> StaticSettings:
    """The same from `["width=50", "epochs=1"]`; unknown names and wrong values stop here."""
    names = [field.name for field in fields(StaticSettings) if field.name != "method"]
    return read_pairs(pairs, static_settings(method), names=names)[0]
