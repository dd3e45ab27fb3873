"""A client for `bertkit serve` on the standard library alone: embeddings, predictions, retries.

>>> client = bertkit.Client("http://127.0.0.1:8000")
>>> client.embed(["a text", "another"])     # float32 [2, width]
"""

import asyncio
import base64
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from operator import index
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, cast

from bertkit.calls import (
    BestAnswersCall,
    ChoicesCall,
    FillCall,
    FollowsCall,
    Layers,
    PairsCall,
    RequestEmbedCall,
    TextCall,
    TextsCall,
    TooLong,
    WriteCall,
    WriteOptions,
    overloaded,
)
from bertkit.connection import Connection, TooLarge
from bertkit.errors import RequestError
from bertkit.poolings import NO_POOLING
from bertkit.replies import (
    AnsweredReply,
    AttentionReply,
    ChosenReply,
    ClassifiedReply,
    FilledReply,
    Json,
    JudgedReply,
    ModelReply,
    RatedWordsReply,
    TaggedReply,
    WrittenReply,
)
from bertkit.text_inputs import listed_texts, refuse_unlisted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Later = Coroutine[Any, Any, Result]
MAX_TEXTS = 256  # in one request; more are sent in several requests
MAX_CHARACTERS = 1_000_000  # in one request, unless a single text has more


class Client:
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
        too_long: TooLong | None = None,
        pairs: bool = False,
    ) -> "NDArray[np.float32] | list[NDArray[np.float32]]":
        """As `Bert.embed`: float32 [texts, width], or [width] for one text; with pooling='none' a list of arrays.

        With `pairs`, a text with ||| in it is two texts, read together. Many texts are sent in several requests.
        """
        import numpy as np

        options = {"pooling": pooling, "layers": _layer_list(layers), "normalize": normalize}
        options |= {"too_long": too_long, "pairs": pairs}
        vectors = [vector for batch in _batches(listed_texts(texts)) for vector in self._embed(batch, options)]
        if isinstance(texts, str):
            return vectors[0]
        if pooling == NO_POOLING:
            return vectors
        return np.stack(vectors) if vectors else np.stack(self._embed([""], options))[:0]  # [0, width]

    @overloaded(FillCall[list[FilledReply], list[list[FilledReply]]])
    def fill(
        self, text: str | Sequence[str], *, top: int = 5, too_long: TooLong | None = None
    ) -> list[FilledReply] | list[list[FilledReply]]:
        """The best words for each blank: a list of {word, probability, text, blank}; for several texts, of lists."""
        return self._results("/fill", text, text=text, top=top, too_long=too_long)

    @overloaded(FollowsCall[float, list[float]])
    def follows(self, first: str | Sequence[str], second: str | Sequence[str]) -> float | list[float]:
        """As `Bert.follows`: the probability that the second text follows the first."""
        return self._results("/follows", first, first=first, second=second)

    @overloaded(TextCall[list[JudgedReply], list[list[JudgedReply]]])
    def replaced(self, text: str | Sequence[str]) -> list[JudgedReply] | list[list[JudgedReply]]:
        """As `Bert.replaced`: a list of {word, start, end, probability}; for several texts, of lists."""
        return self._results("/replaced", text, text=text)

    @overloaded(PairsCall[ClassifiedReply, list[ClassifiedReply]])
    def classify(
        self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None
    ) -> ClassifiedReply | list[ClassifiedReply]:
        """As `Bert.classify`: a dictionary for a text or pair; for several, a list of them."""
        return self._results("/classify", texts, texts=texts, pairs=pairs)

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
        return cast("Json", self._request("POST", path, _without_none(body)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self.url}'{'' if self.model is None else f', model={self.model!r}'})"

    def close(self) -> None:
        """Close this thread's connection."""
        self._connection.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _embed(self, texts: list[str], options: dict[str, Any]) -> "list[NDArray[np.float32]]":
        """The texts' embeddings; a batch that is too large for one request is sent in halves."""
        try:
            return self._vectors(texts, options)
        except TooLarge:
            if len(texts) == 1:
                raise
        half = len(texts) // 2
        return self._embed(texts[:half], options) + self._embed(texts[half:], options)

    def _vectors(self, texts: list[str], options: dict[str, Any]) -> "list[NDArray[np.float32]]":
        import numpy as np

        if options["pooling"] == NO_POOLING:
            body = _without_none({**options, "inputs": texts, "model": self.model})
            body["normalize"] = options["normalize"]  # here null, not a missing field, is the folder's setting
            return [np.array(rows, dtype=np.float32) for rows in self._request("POST", "/embed_all", body)]
        body = _without_none({**options, "input": texts, "model": self.model, "encoding_format": "base64"})
        data = self._request("POST", "/v1/embeddings", body)["data"]
        rows = [np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4") for row in data]
        return [row.astype(np.float32) for row in rows]

    def _request(self, method: str, path: str, body: Mapping[str, object] | None) -> Any:
        return self._connection.request(method, path, body)

    def _results(self, path: str, argument: object, **body: Any) -> Any | list[Any]:
        """The predictions of a task: one where the caller's argument is a str, else a list."""
        refuse_unlisted(argument)
        reply = self._request("POST", path, _without_none({**body, "model": self.model}))
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
    classify = overloaded(PairsCall[Later[ClassifiedReply], Later[list[ClassifiedReply]]])(_awaited(Client.classify))
    tag = overloaded(TextsCall[Later[TaggedReply], Later[list[TaggedReply]]])(_awaited(Client.tag))
    answer = overloaded(BestAnswersCall[Later[AnsweredReply], Later[list[AnsweredReply]]])(_awaited(Client.answer))
    choose = overloaded(ChoicesCall[Later[ChosenReply], Later[list[ChosenReply]]])(_awaited(Client.choose))
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


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts of each request: at most MAX_TEXTS, and MAX_CHARACTERS unless it is a single text."""
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and (len(batch) == MAX_TEXTS or size + len(text) > MAX_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def _layer_list(layers: Layers | None) -> list[int] | None:
    """Layers as a list of int: one layer is a list of one, and NumPy integers become int."""
    if layers is None:
        return None
    try:
        return [index(layer) for layer in (layers if isinstance(layers, Iterable) else [layers])]
    except TypeError as error:
        raise RequestError(f"layers={layers!r} must be whole numbers") from error


def _without_none(body: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}
