"""The door: who may come in, how much may come in at once, how long an answer may take; and the log of it all.

It stands before everything else, so that what is refused costs next to nothing: the key and the size are looked at
before a byte of the body is read.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson
from starlette.exceptions import HTTPException

from bertkit.serve.http.auth import Keys
from bertkit.serve.http.limits import Bodies, Body, too_large
from bertkit.serve.http.listener import names_this_machine
from bertkit.serve.http.logs import log, log_failure, request_id
from bertkit.serve.refusals import Refusal, failure
from bertkit.serve.service import Service

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LINGER_SECONDS = 2.0  # for the rest of a request that was refused: its client reads the reply when all is sent
LINGER_BYTES = 64 << 20
FREE = {("GET", "/health"), ("HEAD", "/health")}  # requests without a key: no body, and a reply that says nothing
NOWHERE = "default-src 'none'; frame-ancestors 'none'"
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Exchange:
    """One request and its reply, as the log will tell of it."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope = scope
        self.started = time.perf_counter()
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.id = request_id(self.headers.get(b"x-request-id"))
        self.status = 0
        self.refused = False  # with the rest of the request still to come
        self._send = send

    @property
    def route(self) -> str:
        """The pattern that matched, never the path itself: that may say anything."""
        return str(getattr(self.scope.get("route"), "path", "other"))

    async def send(self, message: Message) -> None:
        """Pass on, with the headers that every reply has."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", []), (b"x-request-id", self.id.encode()), *HEADERS]
            if not any(name == b"content-security-policy" for name, _ in headers):
                headers.append((b"content-security-policy", NOWHERE.encode()))
            message = {**message, "headers": headers}
        await self._send(message)

    async def refuse(self, refusal: Refusal, *, close: bool = False) -> None:
        """The reply that says why there is none; `close` where the rest of the request is not wanted either."""
        body = orjson.dumps(refusal.content(self.scope["path"]))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()]
        headers += [(b"connection", b"close")] if close else []
        await self.send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        self.refused = close
        await self.send({"type": "http.response.body", "body": body, "more_body": close})

    async def hang_up(self, receive: Receive) -> None:
        """Drop what still comes of a refused request, for a while, and close: a reply is lost where bytes are left."""
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                more = True
                while more and size < LINGER_BYTES:
                    message = await receive()
                    size += len(message.get("body", b""))
                    more = message.get("more_body", False)
        await self.send({"type": "http.response.body", "body": b""})


class Gate:
    """The whole server as an ASGI application: the door, and behind it the routes."""

    def __init__(self, app: Application, service: Service, keys: Keys, *, local: bool = False) -> None:
        self.app = app
        self.service = service
        self._keys, self._local = keys, local
        self._limits = service.settings
        self._bodies = Bodies(self._limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(scope, send)
        try:
            await self._answer(exchange, receive)
        except Refusal as refusal:
            if not exchange.status:  # else it was read too slowly: uvicorn closes what is not complete
                await exchange.refuse(refusal, close=refusal.status in (401, 408, 413, 421))
        except HTTPException as error:  # the router's 404 and 405
            await exchange.refuse(Refusal(error.status_code, error.detail, headers=error.headers or {}))
        except ConnectionError:  # the client is gone, and nobody reads a reply
            self.service.metrics.client_gone()
        except Exception as error:
            log_failure("failure", error, id=exchange.id, route=exchange.route)
            if not exchange.status:
                await exchange.refuse(failure(exchange.id))
        finally:
            self._told(exchange)
        if exchange.refused:
            await exchange.hang_up(receive)

    async def _answer(self, exchange: Exchange, receive: Receive) -> None:
        scope = exchange.scope
        scope["app"] = self.app  # so that Starlette's router raises its 404 and 405
        if self._local and not names_this_machine(exchange.headers.get(b"host", b"localhost").decode("latin-1")):
            raise Refusal(421, "without a key this server is asked for as localhost or by its address alone")
        if (scope["method"], scope["path"]) not in FREE and not self._keys.admit(scope["headers"]):
            raise Refusal(401, "a key is needed: send it as 'Authorization: Bearer KEY'", headers=_offers(exchange))
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):  # uvicorn leaves the body of a reply to HEAD out
            await self.app(scope, receive, exchange.send)
            return
        self._refuse_when_full()
        with self._bodies.body() as body:
            await self._read(exchange, receive, body)
            self._refuse_when_full()
            self.service.inside += 1
            try:
                await self._within_time(exchange, body, receive)
            finally:
                self.service.inside -= 1

    def _refuse_when_full(self) -> None:
        if self.service.inside >= self._limits.max_queue:
            seconds = str(self.service.workers.seconds_behind)
            message = f"{self.service.inside} requests are being answered, as many as this server takes"
            raise Refusal(429, f"{message}; try again in {seconds} s", headers={"Retry-After": seconds})

    async def _read(self, exchange: Exchange, receive: Receive, body: Body) -> None:
        """The whole body; one that is too large, or too slow, is not waited for."""
        stated = exchange.headers.get(b"content-length", b"0")
        if stated.isdigit() and int(stated[:20]) > self._limits.max_body:
            raise too_large(self._limits)
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

    async def _within_time(self, exchange: Exchange, body: Body, receive: Receive) -> None:
        """The routes' answer, given up when its time is over or its client has gone."""
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                await asyncio.Event().wait()  # as ASGI has it: after the body, until the client disconnects
            given = True
            return {"type": "http.request", "body": body.whole(), "more_body": False}

        own = asyncio.current_task()
        assert own is not None  # an application runs in one
        gone = asyncio.ensure_future(receive())  # comes back when the client hangs up, or when all is sent
        gone.add_done_callback(lambda _: None if exchange.status or gone.cancelled() else own.cancel())
        try:
            async with asyncio.timeout(self._limits.seconds):
                await self.app(exchange.scope, replay, exchange.send)
        except TimeoutError as error:
            seconds = self._limits.seconds
            raise Refusal(504, f"no answer within {seconds:g} s; send fewer texts, or try again later") from error
        except asyncio.CancelledError:
            if not gone.done() or exchange.status:
                raise
            own.uncancel()
            raise ConnectionResetError from None
        finally:
            gone.cancel()

    def _told(self, exchange: Exchange) -> None:
        """The log and the metrics of a request that is over; 499 where nobody waited for the reply."""
        seconds = time.perf_counter() - exchange.started
        status = exchange.status or 499
        self.service.metrics.request_done(exchange.route, status, seconds)
        log(
            "request",
            id=exchange.id,
            method=exchange.scope["method"],
            route=exchange.route,
            status=status,
            seconds=round(seconds, 6),
        )


def _offers(exchange: Exchange) -> dict[str, str]:
    """How a key may be sent. What a page's script asks for is not offered a password: the page asks for it itself."""
    if exchange.headers.get(b"sec-fetch-dest") == b"empty":
        return {"WWW-Authenticate": "Bearer"}
    # Two headers of one name: of several offers in one, Chromium reads none.
    return {"WWW-Authenticate": "Bearer", "www-authenticate": 'Basic realm="bertkit: the key is the password"'}
