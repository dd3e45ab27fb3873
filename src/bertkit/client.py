"""A client for `bertkit serve` on the standard library alone: embeddings, predictions, retries.

>>> client = bertkit.Client("http://127.0.0.1:8000")
>>> client.embed(["a text", "another"])     # float32 [2, width]
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypedDict, TypeVar, Unpack, cast

from bertkit.calls import (
    BestAnswersCall,
    ChoicesCall,
    ClassifyCall,
    FillCall,
    FollowsCall,
    GivenLabels,
    Layers,
    RankCall,
    RequestEmbedCall,
    TextCall,
    TextsCall,
    TooLong,
    WriteCall,
    WriteOptions,
    overloaded,
)
from bertkit.connection import ClosedAtExit, Connection, Json, without_none
from bertkit.embedding_requests import embedded, layer_list
from bertkit.text_inputs import refuse_unlisted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Later = Coroutine[Any, Any, Result]


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


class RankedReply(TypedDict):
    """As `Ranked`."""

    index: int
    score: float
    text: str
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


class Client(ClosedAtExit):
    """The models of a server. Failed requests are retried, which is safe since they change nothing on the server.

    Threads may share a client. The default key is that of BERTKIT_API_KEY.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        model: str | None = None,
        key: str | None = None,
        timeout: float = 70.0,
        retries: int = 8,
    ) -> None:
        self._connection = Connection(url, key, timeout, retries)
        self.model = model

    @property
    def url(self) -> str:
        """The server's address."""
        return self._connection.url

    @overloaded(RequestEmbedCall["NDArray[np.float32]", "list[NDArray[np.float32]]"])
    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: str | None = None,
        layers: Layers | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        too_long: TooLong | None = None,
        pairs: bool = False,
    ) -> "NDArray[np.float32] | list[NDArray[np.float32]]":
        """As `Bert.embed`: float32 [texts, width], or [width] for one text; with pooling='none' a list of arrays.

        With `pairs`, a text with ||| in it is two texts, read together. Many texts are sent in several requests.
        """
        options: dict[str, object] = {"pooling": pooling, "layers": layer_list(layers), "normalize": normalize}
        options |= {"dimensions": dimensions, "prompt_name": prompt_name}
        options |= {"too_long": too_long, "pairs": pairs, "model": self.model}
        return embedded(self._connection, texts, options)

    @overloaded(FillCall[list[FilledReply], list[list[FilledReply]]])
    def fill(
        self, text: str | Sequence[str], *, top: int = 5, whole_words: bool = True, too_long: TooLong | None = None
    ) -> list[FilledReply] | list[list[FilledReply]]:
        """The best words for each blank: a list of {word, probability, text, blank}; for several texts, of lists."""
        return self._results("/fill", text, text=text, top=top, whole_words=whole_words, too_long=too_long)

    @overloaded(FollowsCall[float, list[float]])
    def follows(self, first: str | Sequence[str], second: str | Sequence[str]) -> float | list[float]:
        """As `Bert.follows`: the probability that the second text follows the first."""
        return self._results("/follows", first, first=first, second=second)

    @overloaded(TextCall[list[JudgedReply], list[list[JudgedReply]]])
    def replaced(self, text: str | Sequence[str]) -> list[JudgedReply] | list[list[JudgedReply]]:
        """As `Bert.replaced`: a list of {word, start, end, probability}; for several texts, of lists."""
        return self._results("/replaced", text, text=text)

    @overloaded(ClassifyCall[ClassifiedReply, list[ClassifiedReply], ClassifiedReply, list[ClassifiedReply]])
    def classify(
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        *,
        labels: GivenLabels | None = None,
        multi_label: bool | None = None,
        template: str | None = None,
    ) -> ClassifiedReply | list[ClassifiedReply]:
        """As `Bert.classify`: a dictionary for a text or pair; for several, a list of them."""
        given = {"labels": labels, "multi_label": multi_label, "template": template}
        return self._results("/classify", texts, texts=texts, pairs=pairs, **given)

    @overloaded(TextsCall[TaggedReply, list[TaggedReply]])
    def tag(self, texts: str | Sequence[str | Sequence[str]]) -> TaggedReply | list[TaggedReply]:
        """As `Bert.tag`: words, tags, spans with characters."""
        return self._results("/tag", texts, texts=texts)

    @overloaded(BestAnswersCall[AnsweredReply, list[AnsweredReply]])
    def answer(
        self, question: str | Sequence[str], passage: str | Sequence[str], *, best: int = 1
    ) -> AnsweredReply | list[AnsweredReply]:
        """As `Bert.answer`: text, start, end, and the best candidates."""
        return self._results("/answer", question, question=question, passage=passage, best=best)

    @overloaded(ChoicesCall[ChosenReply, list[ChosenReply]])
    def choose(
        self, question: str | Sequence[str], choices: Sequence[str] | Sequence[Sequence[str]]
    ) -> ChosenReply | list[ChosenReply]:
        """As `Bert.choose`: choice, text, probabilities."""
        return self._results("/choose", question, question=question, choices=choices)

    @overloaded(RankCall[list[RankedReply], list[list[RankedReply]]])
    def rank(
        self, query: str | Sequence[str], texts: Sequence[str] | Sequence[Sequence[str]], top: int | None = None
    ) -> list[RankedReply] | list[list[RankedReply]]:
        """As `Bert.rank`: a list of {index, score, text}, best first."""
        return self._results("/rank", query, query=query, texts=texts, top=top)

    @overloaded(TextsCall[RatedWordsReply, list[RatedWordsReply]])
    def rate_words(self, texts: str | Sequence[str | Sequence[str]]) -> RatedWordsReply | list[RatedWordsReply]:
        """As `Bert.rate_words`: words, values, characters."""
        return self._results("/rate-words", texts, texts=texts)

    @overloaded(WriteCall[WrittenReply, list[WrittenReply]])
    def write(self, texts: str | Sequence[str], **options: Unpack[WriteOptions]) -> WrittenReply | list[WrittenReply]:
        """As `Bert.write`: text, tokens, ended."""
        return self._results("/write", texts, texts=texts, **options)

    def attention(
        self, text: str, pair: str | None = None, *, layer: int | None = None, head: int | None = None
    ) -> AttentionReply:
        """{tokens, layers: [{layer, weights}]}: attention weights of one layer and head, from 1, or of all."""
        body = {"text": text, "pair": pair, "layer": layer, "head": head, "model": self.model}
        return cast("AttentionReply", self.post("/attention", body))

    def models(self) -> list[ModelReply]:
        """The server's models, and what each can do."""
        return cast("list[ModelReply]", self._request("GET", "/v1/models", None)["data"])

    def get(self, path: str) -> Json:
        """GET any route, such as /info; a reply that is not JSON, such as that of /metrics, is a str."""
        return cast("Json", self._request("GET", path, None))

    def post(self, path: str, body: Mapping[str, object]) -> Json:
        """POST to any route; fields of the body that are None are left out."""
        return cast("Json", self._request("POST", path, without_none(body)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self.url}'{'' if self.model is None else f', model={self.model!r}'})"

    def close(self) -> None:
        """Close this thread's connection."""
        self._connection.close()

    def _request(self, method: str, path: str, body: Mapping[str, object] | None) -> Any:
        return self._connection.request(method, path, body)

    def _results(self, path: str, argument: object, **body: Any) -> Any | list[Any]:
        """The predictions of a task: one where the caller's argument is a str, else a list."""
        refuse_unlisted(argument)
        reply = self._request("POST", path, without_none({**body, "model": self.model}))
        return reply["results"][0] if isinstance(argument, str) else reply["results"]


def _awaited(
    method: Callable[Concatenate[Any, Arguments], Result],
) -> Callable[Concatenate["AsyncClient", Arguments], Later[Result]]:
    """A method of `Client` for `AsyncClient`, run in one of its threads."""

    @wraps(method)
    async def run(self: "AsyncClient", /, *arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(method, self._client, *arguments, **options))

    return run


class AsyncClient:
    """`Client` for asyncio: `await client.embed(texts)`. Each request in progress has a thread and a connection."""

    def __init__(self, url: str = "http://127.0.0.1:8000", *, connections: int = 64, **options: Any) -> None:
        self._client = Client(url, **options)
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="bertkit-client")

    embed = overloaded(RequestEmbedCall[Later["NDArray[np.float32]"], Later["list[NDArray[np.float32]]"]])(
        _awaited(Client.embed)
    )
    fill = overloaded(FillCall[Later[list[FilledReply]], Later[list[list[FilledReply]]]])(_awaited(Client.fill))
    follows = overloaded(FollowsCall[Later[float], Later[list[float]]])(_awaited(Client.follows))
    replaced = overloaded(TextCall[Later[list[JudgedReply]], Later[list[list[JudgedReply]]]])(_awaited(Client.replaced))
    classify = overloaded(
        ClassifyCall[
            Later[ClassifiedReply], Later[list[ClassifiedReply]], Later[ClassifiedReply], Later[list[ClassifiedReply]]
        ]
    )(_awaited(Client.classify))
    tag = overloaded(TextsCall[Later[TaggedReply], Later[list[TaggedReply]]])(_awaited(Client.tag))
    answer = overloaded(BestAnswersCall[Later[AnsweredReply], Later[list[AnsweredReply]]])(_awaited(Client.answer))
    choose = overloaded(ChoicesCall[Later[ChosenReply], Later[list[ChosenReply]]])(_awaited(Client.choose))
    rank = overloaded(RankCall[Later[list[RankedReply]], Later[list[list[RankedReply]]]])(_awaited(Client.rank))
    rate_words = overloaded(TextsCall[Later[RatedWordsReply], Later[list[RatedWordsReply]]])(
        _awaited(Client.rate_words)
    )
    write = overloaded(WriteCall[Later[WrittenReply], Later[list[WrittenReply]]])(_awaited(Client.write))
    attention = _awaited(Client.attention)
    models = _awaited(Client.models)
    get = _awaited(Client.get)
    post = _awaited(Client.post)

    def __repr__(self) -> str:
        return repr(self._client).replace("Client", "AsyncClient", 1)

    async def close(self) -> None:
        """Wait for the requests in progress, then close."""
        await asyncio.to_thread(self._threads.shutdown)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
