"""A client for `bertkit serve` on the standard library alone: embeddings, predictions, retries.

>>> client = bertkit.Client("http://127.0.0.1:8000")
>>> client.embed(["a text", "another"])     # float32 [2, width]
"""

import asyncio
import base64
import http.client
import json
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, wraps
from operator import index
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, cast
from urllib.parse import SplitResult, urlsplit

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
from bertkit.errors import BertkitError, RequestError
from bertkit.poolings import NO_POOLING
from bertkit.text_inputs import listed_texts, refuse_unlisted

if TYPE_CHECKING:
    import numpy as np

Reply = dict[str, Any]  # a prediction as a JSON object
Json = dict[str, Any] | list[Any] | str | float | bool | None
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Later = Coroutine[Any, Any, Result]
RETRY_STATUSES = (408, 425, 429, 502, 503, 504)
MAX_TEXTS = 256  # in one request; more are sent in several requests
MAX_CHARACTERS = 1_000_000  # in one request, unless a single text has more
KEY_VARIABLE = "BERTKIT_API_KEY"
MAX_BACK_OFF = 8.0  # seconds between two attempts, unless the server's Retry-After is longer
MAX_RETRY_AFTER = 60.0  # seconds; a longer Retry-After is cut to it


def back_off(attempt: int, retry_after: str | None, jitter: float) -> float:
    """Seconds to wait before attempt number `attempt` + 1: exponential from 0.1, half of it random (`jitter`, 0..1).

    The jitter keeps clients that were refused together from retrying together. Retry-After is the minimum.
    """
    wait = min(MAX_BACK_OFF, 0.1 * 2.0**attempt) * (0.5 + jitter / 2)
    minimum = float(retry_after) if retry_after is not None and retry_after.isdigit() else 0.0
    return max(wait, min(minimum, MAX_RETRY_AFTER))


def address_of(url: str) -> SplitResult:
    """The parts of a server's URL, which is checked."""
    try:
        address = urlsplit(url)
        valid = address.scheme in ("http", "https") and bool(address.hostname)
        str(address.hostname).encode("idna")  # raises for a name that cannot be looked up
        _ = address.port  # raises for one over 65535
    except ValueError:
        valid = False
    if not valid:
        raise RequestError(f"{url} is no address of a server; write it as http://127.0.0.1:8000")
    return address


def key_header(key: str | None) -> dict[str, bytes]:
    """The header for an API key; None is the first key of BERTKIT_API_KEY. Without a key there is no header."""
    keys = (os.environ.get(KEY_VARIABLE, "") if key is None else key).split()
    if not keys:
        return {}
    if key is not None and len(keys) > 1:
        raise RequestError("a key has no spaces in it; give one key")
    # As bytes, since http.client would encode a str in latin-1; bytes of the environment that are not UTF-8 are kept.
    return {"authorization": b"Bearer " + keys[0].encode("utf-8", "surrogateescape")}


class TooLarge(RequestError):
    """The request or its response is over the server's limit; a smaller one may succeed."""


@dataclass(frozen=True)
class _Response:
    """An HTTP response."""

    status: int
    retry_after: str | None
    content_type: str
    content: bytes

    def value(self) -> Any:
        """JSON, parsed; text and an empty body as a str."""
        if not self.content or self.content_type.lower().startswith("text/"):
            return self.content.decode("utf-8", errors="replace")
        return json.loads(self.content)

    def refusal(self) -> tuple[str, str | None]:
        """The message of an error reply, in OpenAI's or text-embeddings-inference's form, and the field it is about."""
        try:
            body = json.loads(self.content)
            error = body["error"]
            if isinstance(error, dict):
                return str(error["message"]), error.get("param")
            return str(error), body.get("field")
        except (ValueError, KeyError, TypeError, AttributeError):
            return self.content[:200].decode("utf-8", errors="replace"), None


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
        self.url = url.rstrip("/")
        self.model = model
        self._address, self._timeout, self._retries = address_of(url), timeout, retries
        self._headers = {"content-type": b"application/json", **key_header(key)}
        self._local = threading.local()  # each thread has its own connection

    @overloaded(RequestEmbedCall["np.ndarray", "list[np.ndarray]"])
    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: str | None = None,
        layers: Layers | None = None,
        normalize: bool | None = None,
        too_long: TooLong | None = None,
        pairs: bool = False,
    ) -> "np.ndarray | list[np.ndarray]":
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

    @overloaded(FillCall[list[Reply], list[list[Reply]]])
    def fill(
        self, text: str | Sequence[str], *, top: int = 5, too_long: TooLong | None = None
    ) -> list[Reply] | list[list[Reply]]:
        """The best words for each blank: a list of {word, probability, text, blank}; for several texts, of lists."""
        results = self._results("/fill", text, text=text, top=top, too_long=too_long)
        return cast("list[Reply] | list[list[Reply]]", results)

    @overloaded(FollowsCall[float, list[float]])
    def follows(self, first: str | Sequence[str], second: str | Sequence[str]) -> float | list[float]:
        """As `Bert.follows`: the probability that the second text follows the first."""
        return cast("float | list[float]", self._results("/follows", first, first=first, second=second))

    @overloaded(TextCall[list[Reply], list[list[Reply]]])
    def replaced(self, text: str | Sequence[str]) -> list[Reply] | list[list[Reply]]:
        """As `Bert.replaced`: a list of {word, start, end, probability}; for several texts, of lists."""
        return cast("list[Reply] | list[list[Reply]]", self._results("/replaced", text, text=text))

    @overloaded(PairsCall[Reply, list[Reply]])
    def classify(self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None) -> Reply | list[Reply]:
        """As `Bert.classify`: a dictionary for a text or pair; for several, a list of them."""
        return self._results("/classify", texts, texts=texts, pairs=pairs)

    @overloaded(TextsCall[Reply, list[Reply]])
    def tag(self, texts: str | Sequence[str | Sequence[str]]) -> Reply | list[Reply]:
        """As `Bert.tag`: words, tags, spans with characters."""
        return self._results("/tag", texts, texts=texts)

    @overloaded(BestAnswersCall[Reply, list[Reply]])
    def answer(
        self, question: str | Sequence[str], passage: str | Sequence[str], *, best: int = 1
    ) -> Reply | list[Reply]:
        """As `Bert.answer`: text, start, end, and the best candidates."""
        return self._results("/answer", question, question=question, passage=passage, best=best)

    @overloaded(ChoicesCall[Reply, list[Reply]])
    def choose(
        self, question: str | Sequence[str], choices: Sequence[str] | Sequence[Sequence[str]]
    ) -> Reply | list[Reply]:
        """As `Bert.choose`: choice, text, probabilities."""
        return self._results("/choose", question, question=question, choices=choices)

    @overloaded(TextsCall[Reply, list[Reply]])
    def rate_words(self, texts: str | Sequence[str | Sequence[str]]) -> Reply | list[Reply]:
        """As `Bert.rate_words`: words, values, characters."""
        return self._results("/rate-words", texts, texts=texts)

    @overloaded(WriteCall[Reply, list[Reply]])
    def write(self, texts: str | Sequence[str], **options: Unpack[WriteOptions]) -> Reply | list[Reply]:
        """As `Bert.write`: text, tokens, ended."""
        return self._results("/write", texts, texts=texts, **options)

    def attention(
        self, text: str, pair: str | None = None, *, layer: int | None = None, head: int | None = None
    ) -> Reply:
        """{tokens, layers: [{layer, weights}]}: attention weights of one layer and head, from 1, or of all."""
        body = {"text": text, "pair": pair, "layer": layer, "head": head, "model": self.model}
        return cast("Reply", self.post("/attention", body))

    def models(self) -> list[dict[str, Any]]:
        """The server's models, and what each can do."""
        return cast("list[dict[str, Any]]", self._request("GET", "/v1/models", None)["data"])

    def get(self, path: str) -> Json:
        """GET any route, such as /info; a reply that is not JSON, such as that of /metrics, is a str."""
        return cast("Json", self._request("GET", path, None))

    def post(self, path: str, body: dict[str, Any]) -> Json:
        """POST to any route; fields of the body that are None are left out."""
        return cast("Json", self._request("POST", path, _without_none(body)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self.url}'{'' if self.model is None else f', model={self.model!r}'})"

    def close(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _embed(self, texts: list[str], options: dict[str, Any]) -> "list[np.ndarray]":
        """The texts' embeddings; a batch that is too large for one request is sent in halves."""
        try:
            return self._vectors(texts, options)
        except TooLarge:
            if len(texts) == 1:
                raise
        half = len(texts) // 2
        return self._embed(texts[:half], options) + self._embed(texts[half:], options)

    def _vectors(self, texts: list[str], options: dict[str, Any]) -> "list[np.ndarray]":
        import numpy as np

        if options["pooling"] == NO_POOLING:
            body = _without_none({**options, "inputs": texts, "model": self.model})
            body["normalize"] = options["normalize"]  # here null, not a missing field, is the folder's setting
            return [np.array(rows, dtype=np.float32) for rows in self._request("POST", "/embed_all", body)]
        body = _without_none({**options, "input": texts, "model": self.model, "encoding_format": "base64"})
        data = self._request("POST", "/v1/embeddings", body)["data"]
        rows = [np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4") for row in data]
        return [row.astype(np.float32) for row in rows]

    def _results(self, path: str, argument: object, **body: Any) -> Reply | list[Reply]:
        """The predictions of a task: one where the caller's argument is a str, else a list."""
        refuse_unlisted(argument)
        results: list[Reply] = self._request("POST", path, _without_none({**body, "model": self.model}))["results"]
        return results[0] if isinstance(argument, str) else results

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        """The reply, with retries."""
        data = None if body is None else _json_bytes(body)
        problem, retry_after = "", None
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(back_off(attempt - 1, retry_after, random.random()))
            try:
                response = self._send(method, path, data)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                problem, retry_after = f"{type(error).__name__}: {error}", None
                continue
            if response.status < 300:
                return self._value(path, response)
            message, field = response.refusal()
            problem, retry_after = f"{response.status}: {message}", response.retry_after
            if response.status not in RETRY_STATUSES:
                # A 413 without a field is about the whole request: one with fewer texts may succeed.
                refused = TooLarge if response.status == 413 and field is None else RequestError
                raise (refused if response.status < 500 else BertkitError)(f"{self.url}{path} answered {problem}")
        raise BertkitError(f"{self.url}{path} gave no answer in {self._retries + 1} tries; the last said {problem}")

    def _value(self, path: str, response: _Response) -> Any:
        try:
            return response.value()
        except ValueError as error:
            raise BertkitError(f"{self.url}{path} answered what is not JSON; is this a bertkit server?") from error

    def _send(self, method: str, path: str, data: bytes | None) -> _Response:
        """One request; over a new connection, if the server closed the old one while it was idle."""
        reused = getattr(self._local, "connection", None) is not None
        try:
            return self._exchange(method, path, data)
        except ConnectionError:  # http.client's RemoteDisconnected is one
            if not reused:
                raise
            self.close()
            return self._exchange(method, path, data)

    def _exchange(self, method: str, path: str, data: bytes | None) -> _Response:
        connection = getattr(self._local, "connection", None) or self._connect()
        self._local.connection = connection
        refused_early = False
        try:
            connection.request(method, self._address.path.rstrip("/") + path, body=data, headers=self._headers)
        except (BrokenPipeError, ConnectionResetError):
            if connection.sock is None:  # there was no connection yet
                raise
            refused_early = True  # the server stopped reading; its response says why
        http_response = connection.getresponse()
        headers = http_response.headers
        retry_after, content_type = headers.get("retry-after"), headers.get("content-type", "")
        response = _Response(http_response.status, retry_after, content_type, http_response.read())
        if refused_early:
            self.close()
        return response

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._address.scheme == "https" else http.client.HTTPConnection
        return kind(str(self._address.hostname), self._address.port, timeout=self._timeout)


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

    embed = overloaded(RequestEmbedCall[Later["np.ndarray"], Later["list[np.ndarray]"]])(_awaited(Client.embed))
    fill = overloaded(FillCall[Later[list[Reply]], Later[list[list[Reply]]]])(_awaited(Client.fill))
    follows = overloaded(FollowsCall[Later[float], Later[list[float]]])(_awaited(Client.follows))
    replaced = overloaded(TextCall[Later[list[Reply]], Later[list[list[Reply]]]])(_awaited(Client.replaced))
    classify = overloaded(PairsCall[Later[Reply], Later[list[Reply]]])(_awaited(Client.classify))
    tag = overloaded(TextsCall[Later[Reply], Later[list[Reply]]])(_awaited(Client.tag))
    answer = overloaded(BestAnswersCall[Later[Reply], Later[list[Reply]]])(_awaited(Client.answer))
    choose = overloaded(ChoicesCall[Later[Reply], Later[list[Reply]]])(_awaited(Client.choose))
    rate_words = overloaded(TextsCall[Later[Reply], Later[list[Reply]]])(_awaited(Client.rate_words))
    write = overloaded(WriteCall[Later[Reply], Later[list[Reply]]])(_awaited(Client.write))
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


def _without_none(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def _json_bytes(body: dict[str, Any]) -> bytes:
    try:
        return json.dumps(body).encode()
    except (TypeError, ValueError) as error:
        raise RequestError(f"the request cannot be written as JSON: {error}; give texts, numbers and lists") from error
