"""Limits on connections: time and size of request heads, trailers and chunk framing. Bodies: `middleware.py`."""

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

HEADER_SECONDS = 10.0  # for the request line and the headers, from the first byte on
MAX_HEAD = 64 << 10  # bytes of the request line and the headers; and of trailers or chunk framing
MAX_TRAILERS = 64  # fields after a chunked body
FEED_BYTES = 32 << 10  # parsed before the head is measured again
LINGER_SECONDS = 2.0  # before closing, for a client to read why its head was refused
FRAMING_HEADERS = (b"content-length", b"transfer-encoding", b"connection")  # they say where a body ends


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with limits on headers and trailers, which uvicorn does not have.

    An `Upgrade` header is ignored, as RFC 9110 allows: the request is answered as HTTP/1.1.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadline: asyncio.TimerHandle | None = None  # while a head is expected
        self._head_bytes = 0  # without those of the first read
        self._refused = False  # whether all further bytes are dropped
        self._in_request = False  # whether a request has begun and is not complete
        self._trailers = 0  # fields after the body
        self._framing_bytes = 0  # since the last byte of the body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection: a request is expected."""
        super().connection_made(transport)
        self._start_deadline()

    def data_received(self, data: bytes) -> None:
        """As uvicorn's, with the limits and without upgrades."""
        self._unset_keepalive_if_required()
        if len(data) <= FEED_BYTES:
            self._feed(data)
            return
        for start in range(0, len(data), FEED_BYTES):
            self._feed(data[start : start + FEED_BYTES])

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._in_request = True
        self._trailers = self._framing_bytes = 0
        super().on_message_begin()
        self._start_deadline()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; or a trailer, which is dropped."""
        if self._deadline is None:
            self._trailers += 1
        else:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._stop_deadline()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._in_request = False
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._stop_deadline()
        super().connection_lost(exc)

    def _feed(self, data: bytes) -> None:
        if self._refused:
            return
        before, rest = self._deadline, data
        self._framing_bytes += len(data)
        try:
            while rest:
                rest = self._parse(rest)
        except httptools.HttpParserError:
            self._refused = True
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._trailers > MAX_TRAILERS or (
            self._in_request and self._deadline is None and self._framing_bytes > MAX_HEAD
        ):
            self._refuse_trailers()
        elif self._deadline is not None:
            self._measure(len(data), before)
        elif not self._in_request and (self.cycle is None or self.cycle.response_complete):
            self._start_deadline()  # an empty line, after which uvicorn would wait without a timeout

    def _parse(self, data: bytes) -> bytes:
        """Parse up to the end of a request with an upgrade; returns the bytes after it."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade()
            return data[upgrade.args[0] :]
        return b""

    def _measure(self, size: int, before: asyncio.TimerHandle | None) -> None:
        """Count the bytes of an incomplete head; not the first read, which may hold mostly the previous request."""
        if self._deadline is before:
            self._head_bytes += size
            if self._head_bytes > MAX_HEAD:
                self._refuse("headers are")

    def _refuse_trailers(self) -> None:
        """Close where the reply has begun; else reply 431, and tell the application that the client disconnected."""
        if self.cycle.response_started:
            self._refused = True
            self.transport.close()
            return
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        self._refuse(f"trailers are more than {MAX_TRAILERS}, or")

    def _refuse(self, what: str) -> None:
        message = f"The {what} over {MAX_HEAD:,} bytes; send fewer of them.".encode()
        lines = [b"content-type: text/plain; charset=utf-8", b"content-length: %d" % len(message), b"connection: close"]
        self.transport.write(STATUS_LINE[431] + b"\r\n".join([*lines, b"", message]))
        self._refused = True  # not closed yet: many clients read the reply only when they have sent all
        self._start_deadline(LINGER_SECONDS)

    def _ignore_upgrade(self) -> None:
        """Continue with a request that has an `Upgrade` header, at which the parser stops.

        A new parser first reads a head with the same framing headers; its callbacks for that head are dropped.
        """
        lines = [
            name + b": " + value
            for name, value in self.headers
            if name in FRAMING_HEADERS and not _is_upgrade(name, value)
        ]
        forwarding = _Forwarding(self)
        self.parser = httptools.HttpRequestParser(forwarding)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._in_request = self.cycle.more_body = True
        self.cycle.message_event.clear()
        self.parser.feed_data(b"\r\n".join([b"POST / HTTP/1.1", *lines, b"", b""]))
        forwarding.active = True
        if forwarding.complete:
            self.on_message_complete()

    def _start_deadline(self, seconds: float | None = None) -> None:
        self._stop_deadline()
        self._deadline = self.loop.call_later(HEADER_SECONDS if seconds is None else seconds, self._close)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self._head_bytes = 0

    def _close(self) -> None:
        self.transport.close()


class _Forwarding:
    """Forwards a parser's callbacks to a protocol once it is `active`; those of bodies always."""

    def __init__(self, protocol: LimitedProtocol) -> None:
        self._protocol = protocol
        self.active = False
        self.complete = False  # whether the request was complete before it was active

    def on_message_begin(self) -> None:
        if self.active:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self.active:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.active:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.active:
            self._protocol.on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._protocol.on_body(body)

    def on_message_complete(self) -> None:
        self.complete = True
        if self.active:
            self._protocol.on_message_complete()


def _is_upgrade(name: bytes, value: bytes) -> bool:
    return name == b"connection" and b"upgrade" in value.lower()
