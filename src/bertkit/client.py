"""A client for `bertkit serve` on the standard library alone: vectors, heads, retries.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload
from urllib.parse import SplitResult, urlsplit

from bertkit.errors import BertkitError, RequestError
from bertkit.given import listed_texts, refuse_unlisted
from bertkit.poolings import NO_POOLING

if TYPE_CHECKING:
    import numpy as np

Reply = dict[str, Any]  # a prediction, as JSON has it
Json = dict[str, Any] | list[Any] | str | float | bool | None
TRY_AGAIN = (408, 425, 429, 502, 503, 504)
TEXTS_AT_ONCE = 256  # in one request; more are sent one request after the other
CHARACTERS_AT_ONCE = 1_000_000  # in one request, unless a single text has more
KEY_VARIABLE = "BERTKIT_API_KEY"
LONGEST_WAIT = 8.0  # seconds between two tries, unless the server asks for more
MOST_PATIENCE = 60.0  # seconds that a server may ask for


def back_off(attempt: int, asked: str | None, draw: float) -> float:
    """Seconds to wait before try number `attempt` + 1: doubling from 0.1, half of it by chance `draw` of 0..1.

    Clients that were refused together would otherwise come back together. What the server asks for is the least.
    """
    wait = min(LONGEST_WAIT, 0.1 * 2.0**attempt) * (0.5 + draw / 2)
    least = float(asked) if asked is not None and asked.isdigit() else 0.0
    return max(wait, min(least, MOST_PATIENCE))


def address_of(url: str) -> SplitResult:
    """The parts of a server's address, all of them in order."""
    try:
        place = urlsplit(url)
        right = place.scheme in ("http", "https") and bool(place.hostname)
        str(place.hostname).encode("idna")  # a name that cannot be looked up
        _ = place.port  # from 0 to 65535
    except ValueError:
        right = False
    if not right:
        raise RequestError(f"{url} is no address of a server; write it as http://127.0.0.1:8000")
    return place


def key_header(key: str | None) -> dict[str, bytes]:
    """What a key is sent as; the first of BERTKIT_API_KEY unless given, and nothing where there is none."""
    words = (os.environ.get(KEY_VARIABLE, "") if key is None else key).split()
    if not words:
        return {}
    if key is not None and len(words) > 1:
        raise RequestError("a key has no spaces in it; give one key")
    # As bytes: http.client would write latin-1; and what the environment holds goes out as it is there.
    return {"authorization": b"Bearer " + words[0].encode("utf-8", "surrogateescape")}


class TooLarge(RequestError):
    """More than the server takes, or gives, in one request; less of it may be asked again."""


@dataclass(frozen=True)
class _Reply:
    """What came back over the wire."""

    status: int
    wait: str | None  # Retry-After
    kind: str  # of the content
    content: bytes

    def value(self) -> Any:
        """JSON as what it says; text, and nothing at all, as text."""
        if not self.content or self.kind.lower().startswith("text/"):
            return self.content.decode("utf-8", errors="replace")
        return json.loads(self.content)

    def refusal(self) -> tuple[str, str | None]:
        """The sentence in a refusal, in either of its forms, and the field that it is about."""
        try:
            said = json.loads(self.content)
            error = said["error"]
            if isinstance(error, dict):
                return str(error["message"]), error.get("param")
            return str(error), said.get("field")
        except (ValueError, KeyError, TypeError, AttributeError):
            return self.content[:200].decode("utf-8", errors="replace"), None


class Client:
    """A server's models from Python. Refused and failed requests are tried again: every one may be repeated safely.

    Threads may share one. The key is that of BERTKIT_API_KEY unless given.
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
        self._place, self._timeout, self._retries = address_of(url), timeout, retries
        self._headers = {"content-type": b"application/json", **key_header(key)}
        self._own = threading.local()  # each thread has its own connection

    @overload
    def embed(  # type: ignore[overload-overlap]
        self,
        texts: str,
        *,
        pooling: str | None = None,
        layers: Sequence[int] | int | None = None,
        normalize: bool | None = None,
        too_long: str | None = None,
        pairs: bool = False,
    ) -> "np.ndarray": ...

    @overload
    def embed(  # type: ignore[overload-overlap]
        self,
        texts: Sequence[str],
        *,
        pooling: Literal["none"],
        layers: Sequence[int] | int | None = None,
        normalize: bool | None = None,
        too_long: str | None = None,
        pairs: bool = False,
    ) -> "list[np.ndarray]": ...

    @overload
    def embed(
        self,
        texts: Sequence[str],
        *,
        pooling: str | None = None,
        layers: Sequence[int] | int | None = None,
        normalize: bool | None = None,
        too_long: str | None = None,
        pairs: bool = False,
    ) -> "np.ndarray": ...

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: str | None = None,
        layers: Sequence[int] | int | None = None,
        normalize: bool | None = None,
        too_long: str | None = None,
        pairs: bool = False,
    ) -> "np.ndarray | list[np.ndarray]":
        """As `Bert.embed`: float32 [texts, width], or [width] for one text; with pooling='none' a list of arrays.

        With `pairs`, a text that holds ||| is two texts, read together. Many texts go in several requests.
        """
        import numpy as np

        asked = {"pooling": pooling, "layers": _numbers(layers), "normalize": normalize}
        asked |= {"too_long": too_long, "pairs": pairs}
        found = [vector for portion in _portions(listed_texts(texts)) for vector in self._embedded(portion, asked)]
        if isinstance(texts, str):
            return found[0]
        if pooling == NO_POOLING:
            return found
        return np.stack(found) if found else np.stack(self._embedded([""], asked))[:0]  # whose width the server knows

    @overload
    def fill(  # type: ignore[overload-overlap]
        self, text: str, *, top: int = 5, too_long: str | None = None
    ) -> list[Reply]: ...

    @overload
    def fill(self, text: Sequence[str], *, top: int = 5, too_long: str | None = None) -> list[list[Reply]]: ...

    def fill(
        self, text: str | Sequence[str], *, top: int = 5, too_long: str | None = None
    ) -> list[Reply] | list[list[Reply]]:
        """The best words for each blank: a list of {word, probability, text, blank}; for several texts, of lists."""
        found: list[Reply] | list[list[Reply]] = self._results("/fill", text, text=text, top=top, too_long=too_long)
        return found

    @overload
    def classify(self, texts: str, pairs: str | None = None) -> Reply: ...  # type: ignore[overload-overlap]

    @overload
    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Reply]: ...

    def classify(self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None) -> Reply | list[Reply]:
        """What `Bert.classify` says, as a dictionary for a text or pair; for several, a list of them."""
        found: Reply | list[Reply] = self._results("/classify", texts, texts=texts, pairs=pairs)
        return found

    @overload
    def tag(self, texts: str) -> Reply: ...  # type: ignore[overload-overlap]

    @overload
    def tag(self, texts: Sequence[str | Sequence[str]]) -> list[Reply]: ...

    def tag(self, texts: str | Sequence[str | Sequence[str]]) -> Reply | list[Reply]:
        """What `Bert.tag` says: words, tags, spans with characters."""
        found: Reply | list[Reply] = self._results("/tag", texts, texts=texts)
        return found

    @overload
    def answer(self, question: str, passage: str, *, best: int = 1) -> Reply: ...  # type: ignore[overload-overlap]

    @overload
    def answer(self, question: Sequence[str], passage: Sequence[str], *, best: int = 1) -> list[Reply]: ...

    def answer(
        self, question: str | Sequence[str], passage: str | Sequence[str], *, best: int = 1
    ) -> Reply | list[Reply]:
        """What `Bert.answer` says: text, start, end, and the best candidates."""
        found: Reply | list[Reply] = self._results("/answer", question, question=question, passage=passage, best=best)
        return found

    @overload
    def choose(self, question: str, choices: Sequence[str]) -> Reply: ...  # type: ignore[overload-overlap]

    @overload
    def choose(self, question: Sequence[str], choices: Sequence[Sequence[str]]) -> list[Reply]: ...

    def choose(
        self, question: str | Sequence[str], choices: Sequence[str] | Sequence[Sequence[str]]
    ) -> Reply | list[Reply]:
        """What `Bert.choose` says: choice, text, probabilities."""
        found: Reply | list[Reply] = self._results("/choose", question, question=question, choices=choices)
        return found

    @overload
    def rate_words(self, texts: str) -> Reply: ...  # type: ignore[overload-overlap]

    @overload
    def rate_words(self, texts: Sequence[str | Sequence[str]]) -> list[Reply]: ...

    def rate_words(self, texts: str | Sequence[str | Sequence[str]]) -> Reply | list[Reply]:
        """What `Bert.rate_words` says: words, values, characters."""
        found: Reply | list[Reply] = self._results("/rate-words", texts, texts=texts)
        return found

    def attention(
        self, text: str, pair: str | None = None, *, layer: int | None = None, head: int | None = None
    ) -> Reply:
        """{tokens, layers: [{layer, weights}]}: what every token looks at, of one layer and head from 1, or of all."""
        asked = {"text": text, "pair": pair, "layer": layer, "head": head, "model": self.model}
        found: Reply = self._ask("POST", "/attention", _said(asked))
        return found

    def models(self) -> list[dict[str, Any]]:
        """What the server has, and what each can do."""
        found: list[dict[str, Any]] = self._ask("GET", "/v1/models", None)["data"]
        return found

    def get(self, path: str) -> Json:
        """Any route that is only read, such as /info; what is no JSON, such as /metrics, comes as text."""
        found: Json = self._ask("GET", path, None)
        return found

    def post(self, path: str, body: dict[str, Any]) -> Json:
        """Any route of the server: the reply to this JSON, without what is None in it."""
        found: Json = self._ask("POST", path, _said(body))
        return found

    def close(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self._own, "connection", None)
        if connection is not None:
            connection.close()
            self._own.connection = None

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _embedded(self, texts: list[str], asked: dict[str, Any]) -> "list[np.ndarray]":
        """Vectors of the texts, in halves where they are too much for one request."""
        try:
            return self._vectors(texts, asked)
        except TooLarge:
            if len(texts) == 1:
                raise
        half = len(texts) // 2
        return self._embedded(texts[:half], asked) + self._embedded(texts[half:], asked)

    def _vectors(self, texts: list[str], asked: dict[str, Any]) -> "list[np.ndarray]":
        import numpy as np

        if asked["pooling"] == NO_POOLING:
            body = _said({**asked, "inputs": texts, "model": self.model})
            body["normalize"] = asked["normalize"]  # said, though it may be None: as the folder says
            return [np.array(rows, dtype=np.float32) for rows in self._ask("POST", "/embed_all", body)]
        body = {**asked, "input": texts, "model": self.model, "encoding_format": "base64"}
        data = self._ask("POST", "/v1/embeddings", _said(body))["data"]
        rows = [np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4") for row in data]
        return [row.astype(np.float32) for row in rows]

    def _results(self, path: str, given: object, **body: Any) -> Any:
        """One for one, a list for a list."""
        refuse_unlisted(given)
        found = self._ask("POST", path, _said({**body, "model": self.model}))["results"]
        return found[0] if isinstance(given, str) else found

    def _ask(self, method: str, path: str, body: Any) -> Any:
        """The reply, after as many tries as it takes."""
        data = None if body is None else _written(body)
        problem, wait = "", None
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(back_off(attempt - 1, wait, random.random()))
            try:
                reply = self._once(method, path, data)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                problem, wait = f"{type(error).__name__}: {error}", None
                continue
            if reply.status < 300:
                return self._value(path, reply)
            said, field = reply.refusal()
            problem, wait = f"{reply.status}: {said}", reply.wait
            if reply.status not in TRY_AGAIN:
                # Of a 413 without a field no single text is guilty.
                wrong = TooLarge if reply.status == 413 and field is None else RequestError
                raise (wrong if reply.status < 500 else BertkitError)(f"{self.url}{path} answered {problem}")
        raise BertkitError(f"{self.url}{path} gave no answer in {self._retries + 1} tries; the last said {problem}")

    def _value(self, path: str, reply: _Reply) -> Any:
        try:
            return reply.value()
        except ValueError as error:
            raise BertkitError(f"{self.url}{path} answered what is not JSON; is this a bertkit server?") from error

    def _once(self, method: str, path: str, data: bytes | None) -> _Reply:
        """One exchange; a connection that the server closed while it was idle is opened again."""
        reused = getattr(self._own, "connection", None) is not None
        try:
            return self._exchange(method, path, data)
        except ConnectionError:  # http.client's RemoteDisconnected is one
            if not reused:
                raise
            self.close()
            return self._exchange(method, path, data)

    def _exchange(self, method: str, path: str, data: bytes | None) -> _Reply:
        connection = getattr(self._own, "connection", None) or self._connect()
        self._own.connection = connection
        broken = False
        try:
            connection.request(method, self._place.path.rstrip("/") + path, body=data, headers=self._headers)
        except (BrokenPipeError, ConnectionResetError):
            if connection.sock is None:  # there was no connection yet
                raise
            broken = True  # a server that takes no more of the request has said why
        response = connection.getresponse()
        kind = response.getheader("content-type", "")
        reply = _Reply(response.status, response.getheader("retry-after"), kind, response.read())
        if broken:
            self.close()
        return reply

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._place.scheme == "https" else http.client.HTTPConnection
        return kind(str(self._place.hostname), self._place.port, timeout=self._timeout)


class AsyncClient:
    """The same to be awaited: `await client.embed(texts)`. Each request in flight has a thread and a connection."""

    def __init__(self, url: str = "http://127.0.0.1:8000", *, connections: int = 64, **options: Any) -> None:
        self._client = Client(url, **options)
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="bertkit-client")

    async def embed(self, texts: str | Sequence[str], **options: Any) -> "np.ndarray | list[np.ndarray]":
        """As `Client.embed`."""
        found: np.ndarray | list[np.ndarray] = await self._run(self._client.embed, texts, **options)
        return found

    async def fill(self, text: str | Sequence[str], **options: Any) -> list[Reply] | list[list[Reply]]:
        """As `Client.fill`."""
        found: list[Reply] | list[list[Reply]] = await self._run(self._client.fill, text, **options)
        return found

    @overload
    async def classify(self, texts: str, pairs: str | None = None) -> Reply: ...  # type: ignore[overload-overlap]

    @overload
    async def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Reply]: ...

    async def classify(
        self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None
    ) -> Reply | list[Reply]:
        """As `Client.classify`."""
        found: Reply | list[Reply] = await self._run(self._client.classify, texts, pairs)
        return found

    @overload
    async def tag(self, texts: str) -> Reply: ...  # type: ignore[overload-overlap]

    @overload
    async def tag(self, texts: Sequence[str | Sequence[str]]) -> list[Reply]: ...

    async def tag(self, texts: str | Sequence[str | Sequence[str]]) -> Reply | list[Reply]:
        """As `Client.tag`."""
        found: Reply | list[Reply] = await self._run(self._client.tag, texts)
        return found

    @overload
    async def answer(self, question: str, passage: str, *, best: int = 1) -> Reply: ...  # type: ignore[overload-overlap]

    @overload
    async def answer(self, question: Sequence[str], passage: Sequence[str], *, best: int = 1) -> list[Reply]: ...

    async def answer(
        self, question: str | Sequence[str], passage: str | Sequence[str], *, best: int = 1
    ) -> Reply | list[Reply]:
        """As `Client.answer`."""
        found: Reply | list[Reply] = await self._run(self._client.answer, question, passage, best=best)
        return found

    @overload
    async def choose(self, question: str, choices: Sequence[str]) -> Reply: ...  # type: ignore[overload-overlap]

    @overload
    async def choose(self, question: Sequence[str], choices: Sequence[Sequence[str]]) -> list[Reply]: ...

    async def choose(
        self, question: str | Sequence[str], choices: Sequence[str] | Sequence[Sequence[str]]
    ) -> Reply | list[Reply]:
        """As `Client.choose`."""
        found: Reply | list[Reply] = await self._run(self._client.choose, question, choices)
        return found

    @overload
    async def rate_words(self, texts: str) -> Reply: ...  # type: ignore[overload-overlap]

    @overload
    async def rate_words(self, texts: Sequence[str | Sequence[str]]) -> list[Reply]: ...

    async def rate_words(self, texts: str | Sequence[str | Sequence[str]]) -> Reply | list[Reply]:
        """As `Client.rate_words`."""
        found: Reply | list[Reply] = await self._run(self._client.rate_words, texts)
        return found

    async def attention(self, text: str, pair: str | None = None, **options: Any) -> Reply:
        """As `Client.attention`."""
        found: Reply = await self._run(self._client.attention, text, pair, **options)
        return found

    async def get(self, path: str) -> Json:
        """As `Client.get`."""
        found: Json = await self._run(self._client.get, path)
        return found

    async def post(self, path: str, body: dict[str, Any]) -> Json:
        """As `Client.post`."""
        found: Json = await self._run(self._client.post, path, body)
        return found

    async def models(self) -> list[dict[str, Any]]:
        """As `Client.models`."""
        found: list[dict[str, Any]] = await self._run(self._client.models)
        return found

    async def close(self) -> None:
        """Wait for what is in flight, and close."""
        await asyncio.to_thread(self._threads.shutdown)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: work(*arguments, **options))


def _portions(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts for one request after the other: not too many, and not too much of them."""
    portion: list[str] = []
    size = 0
    for text in texts:
        if portion and (len(portion) == TEXTS_AT_ONCE or size + len(text) > CHARACTERS_AT_ONCE):
            yield portion
            portion, size = [], 0
        portion.append(text)
        size += len(text)
    if portion:
        yield portion


def _numbers(layers: Sequence[int] | int | None) -> list[int] | None:
    """Layers as JSON has them: one is a list of one, and an array's numbers are plain ones."""
    if layers is None:
        return None
    try:
        return [index(layer) for layer in (layers if isinstance(layers, Iterable) else [layers])]
    except TypeError as error:
        raise RequestError(f"layers={layers!r} must be whole numbers") from error


def _said(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def _written(body: Any) -> bytes:
    try:
        return json.dumps(body).encode()
    except (TypeError, ValueError) as error:
        raise RequestError(f"the request cannot be written as JSON: {error}; give texts, numbers and lists") from error
