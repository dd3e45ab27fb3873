"""The types of a server's replies, as the clients give them: dictionaries with these keys."""

from typing import TypeAlias, TypedDict

Json: TypeAlias = "dict[str, Json] | list[Json] | str | float | bool | None"


class SeenReply(TypedDict):
    """How much of a text the model read."""

    tokens: int
    cut: int
    windows: int


class FilledReply(TypedDict):
    """As `Filled`."""

    word: str
    probability: float
    text: str
    blank: int


class JudgedReply(TypedDict):
    """As `JudgedWord`."""

    word: str
    start: int
    end: int
    probability: float


class ClassifiedReply(TypedDict, total=False):
    """As `Classified`, `Labeled` (labels) or `Rated` (value): as the model was fine-tuned."""

    label: str | None
    probability: float
    probabilities: dict[str, float]
    labels: list[str]
    value: float
    seen: SeenReply


class SpanReply(TypedDict):
    """A span of a `TaggedReply`."""

    label: str
    words: list[int]
    text: str
    probability: float
    characters: list[int] | None


class TaggedReply(TypedDict):
    """As `Tagged`."""

    words: list[str]
    tags: list[str]
    probabilities: list[float]
    spans: list[SpanReply]
    seen: SeenReply


class CandidateReply(TypedDict):
    """A candidate of an `AnsweredReply`."""

    text: str
    start: int
    end: int
    score: float
    probability: float


class AnsweredReply(TypedDict):
    """As `Answered`, without its id."""

    text: str
    start: int | None
    end: int | None
    probability: float
    no_answer: float
    candidates: list[CandidateReply]
    seen: SeenReply


class ChosenReply(TypedDict):
    """As `Chosen`."""

    choice: int | None
    text: str | None
    probability: float
    probabilities: list[float]
    seen: SeenReply


class RatedWordsReply(TypedDict):
    """As `RatedWords`."""

    words: list[str]
    values: list[float]
    characters: list[list[int]] | None
    seen: SeenReply


class WrittenReply(TypedDict):
    """As `Written`."""

    text: str
    tokens: int
    ended: bool
    seen: SeenReply


class LayerReply(TypedDict):
    """The attention weights of a layer: [heads][tokens][tokens]."""

    layer: int
    weights: list[list[list[float]]]


class AttentionReply(TypedDict):
    """The tokens of a text, and the attention weights of some layers."""

    model: str
    tokens: list[str]
    ids: list[int]
    segments: list[int]
    special: list[bool]
    heads: list[int]
    relative: bool
    layers: list[LayerReply]


class ModelReply(TypedDict):
    """A model of the server; newer servers may add keys."""

    id: str
    family: str
    abilities: list[str]
    task: str | None
    labels: list[str]
    mask: str
    layers: int
    heads: int
    width: int
    max_length: int
    pooling: str
    poolings: list[str]
    normalize: bool
