"""Settings of static vectors: four methods, with the defaults of their papers."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from bertkit.errors import RequestError
from bertkit.settings import Range, Share, check_fields, pick, read_pairs

# The defaults of each method, as in word2vec.c, fastText and GloVe.
METHODS: dict[str, dict[str, Any]] = {
    "skip-gram": {"rate": 0.025},
    "cbow": {"rate": 0.05},
    "fasttext": {"rate": 0.05, "epochs": 3},  # about twenty rows are updated per word, so an epoch is slow
    # The paper's rate is 0.05, for 50 or more epochs; after 8 epochs, 0.2 solves five times as many analogies.
    "glove": {"rate": 0.2, "epochs": 15, "window": 10, "subsample": 0.0},
}


@dataclass(frozen=True, kw_only=True)
class StaticSettings:
    """Training settings; `static_settings` adds the defaults of a method."""

    method: str = "skip-gram"
    width: Annotated[int, Range(1, 10_000)] = 100  # of a vector
    window: Annotated[int, Range(1, 50)] = 5  # words on each side; nearer ones have more weight
    negatives: Annotated[int, Range(1, 100)] = 5  # negative samples for each real pair
    min_count: Annotated[int, Range(1, 10**9)] = 5  # rarer words are left out
    subsample: Share = 1e-3  # frequent words are skipped at random; 0: never
    epochs: Annotated[int, Range(1, 10_000)] = 5
    rate: Annotated[float, Range(1e-9, 10)] = 0.025  # learning rate at the start; it decays linearly
    seed: Annotated[int, Range(0, 2**62)] = 1
    shortest: Annotated[int, Range(1, 20)] = 3  # fastText's n-grams, in characters, with < and > at a word's ends
    longest: Annotated[int, Range(1, 20)] = 6
    buckets: Annotated[int, Range(1, 2**27)] = 2**18  # rows of the n-gram table; n-grams with the same hash share one

    def __post_init__(self) -> None:
        pick(METHODS, self.method, "method")
        check_fields(self)
        if self.shortest > self.longest:
            raise RequestError(f"shortest={self.shortest} must not be over longest={self.longest}")


def static_settings(method: str = "skip-gram", **settings: Any) -> StaticSettings:
    """The defaults of a method with changes, such as `static_settings("glove", width=50)`."""
    return replace(StaticSettings(method=method, **pick(METHODS, method, "method")), **settings)


def read_settings(method: str, pairs: Sequence[str]) -> StaticSettings:
    """The settings from texts such as `["width=50", "epochs=1"]`; unknown names and wrong values are refused."""
    names = [field.name for field in fields(StaticSettings) if field.name != "method"]
    return read_pairs(pairs, static_settings(method), names=names)[0]
