"""ASGI middleware before all routes: host name, key, size and memory of bodies, timeouts, errors, and the request log.

Refusing a request is cheap: its key and its Content-Length are checked before a byte of the body is read.
"""

import asyncio
import contextlib
import random
import re
import time
from collections.abc import Iterator
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertkit.serve.http.auth import Keys
from bertkit.serve.http.listener import is_local_name
from bertkit.serve.http.logs import LOGGER
from bertkit.serve.http.static import missing_page
from bertkit.serve.refusals import Refusal, failure, not_routed
from bertkit.serve.service import Service
from bertkit.serve.settings import OFF_LOOP_SIZE, ServeSettings

LINGER_SECONDS = 2.0  # for the rest of a refused request: many clients read the reply only when they have sent all
LINGER_BYTES = 64 << 20
WITHOUT_KEY = {("GET", "/health"), ("HEAD", "/health")}  # no body, and an empty reply
CLOSING_STATUSES = (401, 408, 413, 421)  # refusals after which the rest of the request is not read
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")  # a client's own id that may go into the log
NO_CONTENT_POLICY = "default-src 'none'; frame-ancestors 'none'"
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

VALUE_BYTES = 64  # of memory for a number or a short text: 24 to 56 for the object, 8 for the reference to it
WIDE_BYTES = 4  # of memory for each character of a text with one emoji in it
CONTAINER_VALUES = 16  # values that a list, an object or a key counts as: parsing and freeing one takes as long


class HttpExchange:
    """One request and its reply."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope = scope
        self.started = time.perf_counter()
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.id = _request_id(self.headers.get(b"x-request-id"))
        self.status = 0
        self.closing = False  # whether it was refused before all of the request was read
        self.left = False  # whether the client has disconnected
        self._send = send

    @property
    def route(self) -> str:
        """The path pattern that matched; not the path, which may hold anything."""
        return str(getattr(self.scope.get("route"), "path", "other"))

    async def send(self, message: Message) -> None:
        """Send a message, with the headers that every reply has; a client that left is an error, for long replies."""
        if self.left and not self.closing:
            raise ConnectionResetError
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", []), (b"x-request-id", self.id.encode()), *SECURITY_HEADERS]
            if not any(name == b"content-security-policy" for name, _ in headers):
                headers.append((b"content-security-policy", NO_CONTENT_POLICY.encode()))
            message = {**message, "headers": headers}
        await self._send(message)

    async def refuse(self, refusal: Refusal, *, close: bool = False) -> None:
        """Reply with the error; with `close` the connection is closed after it, with the rest of the request unread."""
        page = missing_page(self.scope["method"], self.headers) if refusal.status == 404 else None
        response = page or refusal.response(self.scope["path"])
        headers = [*response.raw_headers, *([(b"connection", b"close")] if close else [])]
        await self.send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        self.closing = close
        await self.send({"type": "http.response.body", "body": response.body, "more_body": close})

    def leave(self, task: "asyncio.Task[Any]") -> None:
        """The client has disconnected, or has the whole reply: stop before the reply, or when more of it is sent."""
        self.left = True
        if not self.status:
            task.cancel()

    async def linger(self, receive: Receive) -> None:
        """Discard the rest of a refused request for a while, then close: closing on unread bytes loses the reply."""
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                more = True
                while more and size < LINGER_BYTES:
                    message = await receive()
                    size += len(message.get("body", b""))
                    more = message.get("more_body", False)
        await self.send({"type": "http.response.body", "body": b""})


class BodyMemory:
    """Counts the memory of all requests in progress; a request beyond the limit is refused with 429."""

    def __init__(self, limits: ServeSettings) -> None:
        self.limits = limits
        self.bytes = 0

    @contextlib.contextmanager
    def body(self) -> Iterator["RequestBody"]:
        """A new body; its memory counts until the block ends."""
        body = RequestBody(self)
        try:
            yield body
        finally:
            self.bytes -= body.bytes


class RequestBody:
    """One body, received part by part, and refused as soon as it is too large."""

    def __init__(self, memory: BodyMemory) -> None:
        self.bytes = 0  # of memory
        self._memory = memory
        self._data = bytearray()
        self._counted = 0  # bytes whose values are counted
        self._values = ValueCounter()

    def add(self, part: bytes) -> None:
        """Append the next part."""
        limits = self._memory.limits
        self._data += part
        if len(self._data) > limits.max_body:
            raise _too_large(limits)
        self._allocate(len(part))
        if len(self._data) > OFF_LOOP_SIZE:
            self._count_values()

    def end(self) -> None:
        """The body is complete: count the memory that parsing it takes."""
        self._allocate(VALUE_BYTES * self._values.total + (WIDE_BYTES - 1) * len(self._data) * self._values.wide)

    def whole(self) -> bytes:
        """All bytes; they are not kept here any longer."""
        data, self._data = self._data, bytearray()
        return bytes(data)

    def _count_values(self) -> None:
        max_values = self._memory.limits.max_values
        self._values.add(bytes(self._data[self._counted :]))
        self._counted = len(self._data)
        if self._values.total > max_values:
            message = f"a request may have {max_values:,} JSON values, where each list, object or key counts as"
            raise Refusal(413, f"{message} {CONTAINER_VALUES}; send fewer texts at a time")

    def _allocate(self, size: int) -> None:
        self.bytes += size
        self._memory.bytes += size
        if self._memory.bytes > self._memory.limits.max_bodies:
            raise Refusal(429, "too much is being sent at once; try again", headers={"Retry-After": "1"})


class ValueCounter:
    """Counts the values of a JSON text that arrives in parts, without parsing it."""

    def __init__(self) -> None:
        self.total = 0
        self.wide = False  # whether a character is not ASCII, so that Python stores the text in wide characters
        self._in_string = False
        self._escape = b""  # a backslash at the end of a part: its character is in the next one

    def add(self, part: bytes) -> None:
        """Count one more part."""
        part = self._escape + part
        odd = (len(part) - len(part.rstrip(b"\\"))) % 2
        self._escape = part[len(part) - odd :]
        part = part[: len(part) - odd]
        if b"\\" in part:
            part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        self.wide = self.wide or not part.isascii() or b"\\u" in part
        pieces = part.split(b'"')
        outside = b"".join(pieces[self._in_string :: 2])
        self._in_string ^= len(pieces) % 2 == 0
        self.total += outside.count(b",") + CONTAINER_VALUES * sum(map(outside.count, (b"[", b"{", b":")))


class Middleware:
    """The server as an ASGI application: checks and limits, then the routes."""

    def __init__(self, app: ASGIApp, service: Service, keys: Keys | None = None, *, local: bool = False) -> None:
        self.app = app
        self.service = service
        self._keys, self._local = keys or None, local
        self._limits = service.settings
        self._memory = BodyMemory(self._limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = HttpExchange(scope, send)
        try:
            await self._answer(exchange, receive)
        except Refusal as refusal:
            if not exchange.status:  # else the client read the reply too slowly: uvicorn closes the connection
                await exchange.refuse(refusal, close=refusal.status in CLOSING_STATUSES)
        except HTTPException as error:  # the router's 404 and 405
            await exchange.refuse(not_routed(error.status_code, scope["method"], error.headers or {}))
        except ConnectionError:  # the client has disconnected
            self.service.metrics.client_disconnected()
        except Exception as error:
            fields = {"id": exchange.id, "route": exchange.route}
            LOGGER.error("failure", exc_info=error, extra={"fields": fields})
            if not exchange.status:
                await exchange.refuse(failure(exchange.id))
        finally:
            self._log(exchange)
        if exchange.closing:
            await exchange.linger(receive)

    async def _answer(self, exchange: HttpExchange, receive: Receive) -> None:
        scope = exchange.scope
        scope["app"] = self.app  # so that Starlette's router raises its 404 and 405
        if self._local and not is_local_name(exchange.headers.get(b"host", b"localhost").decode("latin-1")):
            raise Refusal(421, "without a key this server accepts only localhost or an IP address as its Host")
        if self._keys is not None and (scope["method"], scope["path"]) not in WITHOUT_KEY:
            self._check_key(self._keys, exchange)
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):  # uvicorn sends no body in reply to HEAD
            await self.app(scope, receive, exchange.send)
            return
        self._refuse_when_full()
        with self._memory.body() as body:
            await self._read(exchange, receive, body)
            self._refuse_when_full()
            self.service.in_progress += 1
            try:
                await self._call_routes(exchange, body, receive)
            finally:
                self.service.in_progress -= 1

    def _check_key(self, keys: Keys, exchange: HttpExchange) -> None:
        if not keys.admit(exchange.scope["headers"]):
            offers = _authentication_offers(exchange)
            raise Refusal(401, "a key is needed: send it as 'Authorization: Bearer KEY'", headers=offers)

    def _refuse_when_full(self) -> None:
        if self.service.in_progress >= self._limits.max_queue:
            seconds = str(self.service.workers.seconds_behind)
            message = f"{self.service.in_progress} requests are being answered, as many as this server takes"
            raise Refusal(429, f"{message}; try again in {seconds} s", headers={"Retry-After": seconds})

    async def _read(self, exchange: HttpExchange, receive: Receive, body: RequestBody) -> None:
        """Read the whole body, unless it is too large or too slow."""
        stated = exchange.headers.get(b"content-length", b"0")
        if stated.isdigit() and int(stated[:20]) > self._limits.max_body:
            raise _too_large(self._limits)
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ConnectionResetError
                    body.add(message.get("body", b""))
                    if not message.get("more_body"):
                        body.end()
                        return
        except TimeoutError as error:
            seconds = self._limits.body_seconds
            raise Refusal(408, f"the request did not come in within {seconds:g} s; send it again") from error

    async def _call_routes(self, exchange: HttpExchange, body: RequestBody, receive: Receive) -> None:
        """Call the routes; cancelled at the timeout, or when the client disconnects."""
        received = False

        async def replay() -> Message:
            nonlocal received
            if received:
                await asyncio.Event().wait()  # ASGI: receive() after the body blocks until the client disconnects
            received = True
            return {"type": "http.request", "body": body.whole(), "more_body": False}

        task = asyncio.current_task()
        assert task is not None  # an ASGI application runs in a task
        ended = asyncio.ensure_future(receive())  # done when the client disconnects, or when the reply is sent
        ended.add_done_callback(lambda _: None if ended.cancelled() else exchange.leave(task))
        try:
            async with asyncio.timeout(self._limits.seconds):
                await self.app(exchange.scope, replay, exchange.send)
        except TimeoutError as error:
            seconds = self._limits.seconds
            raise Refusal(504, f"no answer within {seconds:g} s; send fewer texts, or try again later") from error
        except asyncio.CancelledError:
            if not ended.done() or exchange.status:
                raise
            task.uncancel()
            raise ConnectionResetError from None
        finally:
            ended.cancel()

    def _log(self, exchange: HttpExchange) -> None:
        """Log and count a finished request; status 499 where the client disconnected before the reply."""
        seconds, status, route = time.perf_counter() - exchange.started, exchange.status or 499, exchange.route
        self.service.metrics.request_done(route, status, seconds)
        fields = {"id": exchange.id, "method": exchange.scope["method"], "route": route}
        LOGGER.info("request", extra={"fields": {**fields, "status": status, "seconds": round(seconds, 6)}})


def _too_large(limits: ServeSettings) -> Refusal:
    """The refusal of a body over the limit."""
    return Refusal(413, f"a request may have {limits.max_body:,} bytes; send fewer texts at a time")


def _authentication_offers(exchange: HttpExchange) -> dict[str, str]:
    """WWW-Authenticate headers: scripts are not offered Basic, for which browsers would open a dialog over the page."""
    if exchange.headers.get(b"sec-fetch-dest") == b"empty":
        return {"WWW-Authenticate": "Bearer"}
    # Two headers of one name: Chromium reads none of several offers in one header.
    return {"WWW-Authenticate": "Bearer", "www-authenticate": 'Basic realm="bertkit: the key is the password"'}


def _request_id(header: bytes | None) -> str:
    """The client's own id where it is safe to log, else a new one."""
    text = (header or b"").decode("latin-1")
    # It need not be secret: os.urandom is a system call, which would release the interpreter's lock.
    return text if REQUEST_ID.fullmatch(text) else f"{random.getrandbits(128):032x}"
