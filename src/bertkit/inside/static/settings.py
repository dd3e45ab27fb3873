"""How static vectors are trained: the four methods, and the numbers of their papers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

from bertkit.config import cast_setting, pick
from bertkit.errors import RequestError

# What each method sets where the user does not: word2vec.c's, fastText's and GloVe's own numbers.
METHODS: dict[str, dict[str, Any]] = {
    "skip-gram": {"rate": 0.025},
    "cbow": {"rate": 0.05},
    "fasttext": {"rate": 0.05, "epochs": 3},  # some twenty rows to move for each word: an epoch is long
    # The paper's rate is 0.05, for 50 epochs and more; after 8 epochs 0.2 answers five times as many analogies.
    "glove": {"rate": 0.2, "epochs": 15, "window": 10, "subsample": 0.0},
}
# The smallest and the largest value that makes sense of each setting.
LIMITS = {
    "width": (1, 10_000),
    "window": (1, 50),
    "negatives": (1, 100),
    "min_count": (1, 10**9),
    "subsample": (0, 1),
    "epochs": (1, 10_000),
    "rate": (1e-9, 10),
    "seed": (0, 2**62),
    "shortest": (1, 20),
    "longest": (1, 20),
    "buckets": (1, 2**27),
}


@dataclass(frozen=True, kw_only=True)
class StaticSettings:
    """What decides the vectors, beside the text. `static_settings` fills in the numbers of a method."""

    method: str = "skip-gram"
    width: int = 100  # numbers in a vector
    window: int = 5  # words on each side; nearer ones count for more
    negatives: int = 5  # drawn words for each real pair
    min_count: int = 5  # rarer words are left out
    subsample: float = 1e-3  # frequent words are passed over by chance; 0: never
    epochs: int = 5
    rate: float = 0.025  # at the start; it falls evenly to nothing
    seed: int = 1
    shortest: int = 3  # fastText's n-grams, in characters, with < and > at a word's ends
    longest: int = 6
    buckets: int = 2**18  # rows that the n-grams share; two that fall into one share its vector

    def __post_init__(self) -> None:
        pick(METHODS, self.method, "method")
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise RequestError(f"{name}={value} must be from {least} to {most:,}")
        if self.shortest > self.longest:
            raise RequestError(f"shortest={self.shortest} must not be over longest={self.longest}")


def static_settings(method: str = "skip-gram", **numbers: Any) -> StaticSettings:
    """`static_settings("glove", width=50)`: a row of METHODS, then your own numbers."""
    return replace(StaticSettings(method=method, **pick(METHODS, method, "method")), **numbers)


def read_settings(method: str, pairs: Sequence[str]) -> StaticSettings:
    """The same from `["width=50", "epochs=1"]`; unknown names and wrong values stop here."""
    kinds = get_type_hints(StaticSettings)
    kinds.pop("method")
    numbers = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        kind = pick(kinds, name, "setting")
        if not equals:
            raise RequestError(f"setting '{name}' needs a value: {name}=...")
        numbers[name] = cast_setting(name, text, kind)
    return static_settings(method, **numbers)
