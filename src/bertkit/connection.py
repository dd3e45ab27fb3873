"""JSON over HTTP to a server, with retries, on the standard library alone."""

import http.client
import json
import os
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, TypeAlias
from urllib.parse import SplitResult, urlsplit

from bertkit.errors import BertkitError, RequestError

Json: TypeAlias = "dict[str, Json] | list[Json] | str | float | bool | None"
RETRY_STATUSES = (408, 425, 429, 502, 503, 504)
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


class ClosedAtExit:
    """A context manager that closes itself at the end of the block."""

    def close(self) -> None:
        """Close what is open."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TooLarge(RequestError):
    """The request or its response is over the server's limit; a smaller one may succeed."""


@dataclass(frozen=True)
class HttpResponse:
    """An HTTP response."""

    status: int
    retry_after: str | None
    content_type: str
    content: bytes

    def value(self) -> Json:
        """JSON, parsed; text and an empty body as a str."""
        if not self.content or self.content_type.lower().startswith("text/"):
            return self.content.decode("utf-8", errors="replace")
        value: Json = json.loads(self.content)
        return value

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


class Connection:
    """A server's address and key, and for each thread a connection that is used again."""

    def __init__(self, url: str, key: str | None, timeout: float, retries: int) -> None:
        self.url = url.rstrip("/")
        self._address, self._timeout, self._retries = address_of(url), timeout, retries
        self._headers = {"content-type": b"application/json", **key_header(key)}
        self._local = threading.local()

    def close(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def request(self, method: str, path: str, body: Mapping[str, object] | None) -> Json:
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

    def _value(self, path: str, response: HttpResponse) -> Json:
        try:
            return response.value()
        except ValueError as error:
            raise BertkitError(f"{self.url}{path} answered what is not JSON; is this a bertkit server?") from error

    def _send(self, method: str, path: str, data: bytes | None) -> HttpResponse:
        """One request; over a new connection, if the server closed the old one while it was idle."""
        reused = getattr(self._local, "connection", None) is not None
        try:
            return self._exchange(method, path, data)
        except ConnectionError:  # http.client's RemoteDisconnected is one
            if not reused:
                raise
            self.close()
            return self._exchange(method, path, data)

    def _exchange(self, method: str, path: str, data: bytes | None) -> HttpResponse:
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
        response = HttpResponse(http_response.status, retry_after, content_type, http_response.read())
        if refused_early:
            self.close()
        return response

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._address.scheme == "https" else http.client.HTTPConnection
        return kind(str(self._address.hostname), self._address.port, timeout=self._timeout)


def _json_bytes(body: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(body).encode()
    except (TypeError, ValueError) as error:
        raise RequestError(f"the request cannot be written as JSON: {error}; give texts, numbers and lists") from error


def without_none(body: Mapping[str, object]) -> dict[str, object]:
    """The fields that are given."""
    return {name: value for name, value in body.items() if value is not None}
