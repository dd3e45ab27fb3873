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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bertkit.errors import BertkitError, RequestError

if TYPE_CHECKING:
    import numpy as np

TRY_AGAIN = (408, 425, 429, 502, 503, 504)
TEXTS_AT_ONCE = 256  # in one request; more are sent one request after the other
LONGEST_WAIT = 8.0  # seconds between two tries, unless the server asks for more
MOST_PATIENCE = 60.0  # seconds that a server may ask for


def back_off(attempt: int, asked: str | None, draw: float) -> float:
    """Seconds to wait before try number `attempt` + 1: doubling from 0.1, half of it by chance `draw` of 0..1.

    Clients that were refused together would otherwise come back together. What the server asks for is the least.
    """
    wait = min(LONGEST_WAIT, 0.1 * 2.0**attempt) * (0.5 + draw / 2)
    least = float(asked) if asked is not None and asked.isdigit() else 0.0
    return max(wait, min(least, MOST_PATIENCE))


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
        place = urlsplit(url)
        if place.scheme not in ("http", "https") or not place.hostname:
            raise RequestError(f"{url} is no address of a server; write it as http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self.model = model
        self._place, self._timeout, self._retries = place, timeout, retries
        key = os.environ.get("BERTKIT_API_KEY", "").partition(" ")[0] if key is None else key
        self._headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
        self._own = threading.local()  # each thread has its own connection

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: str | None = None,
        layers: Sequence[int] | None = None,
        normalize: bool | None = None,
        too_long: str | None = None,
        pairs: bool = False,
    ) -> Any:
        """As `Bert.embed`: float32 [texts, width], or [width] for one text; with pooling='none' a list of arrays.

        With `pairs`, a text that holds ||| is two texts, read together.
        """
        import numpy as np

        asked = {"pooling": pooling, "layers": layers, "normalize": normalize, "too_long": too_long, "pairs": pairs}
        given = [texts] if isinstance(texts, str) else list(texts)
        found: list[np.ndarray] = []
        for start in range(0, len(given), TEXTS_AT_ONCE):
            found += self._vectors(given[start : start + TEXTS_AT_ONCE], asked)
        if isinstance(texts, str):
            return found[0]
        return found if pooling == "none" or not found else np.stack(found)

    def fill(self, text: str | Sequence[str], *, top: int = 5, too_long: str = "window") -> Any:
        """The best words for each blank: a list of {word, probability, text, blank}; for several texts, of lists."""
        return self._results("/fill", text, text=text, top=top, too_long=too_long)

    def classify(self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None) -> Any:
        """What `Bert.classify` says, as a dictionary for a text or pair; for several, a list of them."""
        return self._results("/classify", texts, texts=texts, pairs=pairs)

    def tag(self, texts: str | Sequence[str | Sequence[str]]) -> Any:
        """What `Bert.tag` says: words, tags, spans with characters."""
        return self._results("/tag", texts, texts=texts)

    def answer(self, question: str | Sequence[str], passage: str | Sequence[str], *, best: int = 1) -> Any:
        """What `Bert.answer` says: text, start, end, and the best candidates."""
        return self._results("/answer", question, question=question, passage=passage, best=best)

    def choose(self, question: str | Sequence[str], choices: Sequence[Any]) -> Any:
        """What `Bert.choose` says: choice, text, probabilities."""
        return self._results("/choose", question, question=question, choices=choices)

    def attention(
        self, text: str, pair: str | None = None, *, layer: int | None = None, head: int | None = None
    ) -> Any:
        """{tokens, layers: [{layer, weights}]}: what every token looks at, of one layer and head from 1, or of all."""
        return self.post("/attention", {"text": text, "pair": pair, "layer": layer, "head": head, "model": self.model})

    def models(self) -> list[dict[str, Any]]:
        """What the server has, and what each can do."""
        found: list[dict[str, Any]] = self.get("/v1/models")["data"]
        return found

    def get(self, path: str) -> Any:
        """Any route that is only read, such as /info."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Any route of the server: the reply to this JSON, without what is None in it."""
        return self._ask("POST", path, {name: value for name, value in body.items() if value is not None})

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

    def _vectors(self, texts: list[str], asked: dict[str, Any]) -> "list[np.ndarray]":
        import numpy as np

        if asked["pooling"] == "none":
            body = {**asked, "inputs": texts, "model": self.model, "normalize": False}
            return [np.array(rows, dtype=np.float32) for rows in self.post("/embed_all", body)]
        body = {**asked, "input": texts, "model": self.model, "encoding_format": "base64"}
        data = self.post("/v1/embeddings", body)["data"]
        rows = [np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4") for row in data]
        return [row.astype(np.float32) for row in rows]

    def _results(self, path: str, given: object, **body: Any) -> Any:
        """One for one, a list for a list."""
        found = self.post(path, {**body, "model": self.model})["results"]
        return found[0] if isinstance(given, str) else found

    def _ask(self, method: str, path: str, body: Any) -> Any:
        """The reply, after as many tries as it takes."""
        data = None if body is None else json.dumps(body).encode()
        problem, asked = "", None
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(back_off(attempt - 1, asked, random.random()))
            try:
                status, asked, content = self._once(method, path, data)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                problem, asked = f"{type(error).__name__}: {error}", None
                continue
            if status < 300:
                return json.loads(content)
            problem = f"{status}: {_message(content)}"
            if status not in TRY_AGAIN:
                raise (RequestError if status < 500 else BertkitError)(f"{self.url}{path} answered {problem}")
        raise BertkitError(f"{self.url}{path} gave no answer in {self._retries + 1} tries; the last said {problem}")

    def _once(self, method: str, path: str, data: bytes | None) -> tuple[int, str | None, bytes]:
        """Status, Retry-After and body; a connection that the server closed while it was idle is opened again."""
        reused = getattr(self._own, "connection", None) is not None
        try:
            return self._exchange(method, path, data)
        except (ConnectionError, http.client.RemoteDisconnected):
            if not reused:
                raise
            self.close()
            return self._exchange(method, path, data)

    def _exchange(self, method: str, path: str, data: bytes | None) -> tuple[int, str | None, bytes]:
        connection = getattr(self._own, "connection", None) or self._connect()
        self._own.connection = connection
        connection.request(method, self._place.path.rstrip("/") + path, body=data, headers=self._headers)
        response = connection.getresponse()
        return response.status, response.getheader("retry-after"), response.read()

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._place.scheme == "https" else http.client.HTTPConnection
        return kind(str(self._place.hostname), self._place.port, timeout=self._timeout)


class AsyncClient:
    """The same to be awaited: `await client.embed(texts)`. Each request in flight has a thread and a connection."""

    def __init__(self, url: str = "http://127.0.0.1:8000", *, connections: int = 64, **options: Any) -> None:
        self._client = Client(url, **options)
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="bertkit-client")

    async def embed(self, texts: str | Sequence[str], **options: Any) -> Any:
        """As `Client.embed`."""
        return await self._run(self._client.embed, texts, **options)

    async def fill(self, text: str | Sequence[str], **options: Any) -> Any:
        """As `Client.fill`."""
        return await self._run(self._client.fill, text, **options)

    async def classify(self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None) -> Any:
        """As `Client.classify`."""
        return await self._run(self._client.classify, texts, pairs)

    async def tag(self, texts: str | Sequence[str | Sequence[str]]) -> Any:
        """As `Client.tag`."""
        return await self._run(self._client.tag, texts)

    async def answer(self, question: str | Sequence[str], passage: str | Sequence[str], **options: Any) -> Any:
        """As `Client.answer`."""
        return await self._run(self._client.answer, question, passage, **options)

    async def choose(self, question: str | Sequence[str], choices: Sequence[Any]) -> Any:
        """As `Client.choose`."""
        return await self._run(self._client.choose, question, choices)

    async def attention(self, text: str, pair: str | None = None, **options: Any) -> Any:
        """As `Client.attention`."""
        return await self._run(self._client.attention, text, pair, **options)

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


def _message(content: bytes) -> str:
    """The sentence in a refusal, in either of its forms."""
    try:
        error = json.loads(content)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return content[:200].decode("utf-8", errors="replace")
