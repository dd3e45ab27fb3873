"""HTTP connections that are not left open for clients who say nothing, or too much before they say what they want."""

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

HEADER_SECONDS = 10.0  # for the first line and the headers of a request, once it has begun
MOST_HEAD = 64 << 10  # bytes of them; and of trailers or chunk framing
MOST_TRAILERS = 64  # fields after a body in chunks
AT_ONCE = 32 << 10  # bytes that are parsed before the head is measured again
REFUSED_SECONDS = 2.0  # in which a client may read why its head was refused
FRAMING = (b"content-length", b"transfer-encoding", b"connection")  # what says where a body ends


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on how long headers and trailers may be; bodies have theirs at the gate.

    An offer to go on in another protocol is ignored, as RFC 9110 allows: the request is answered as HTTP/1.1.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._patience: asyncio.TimerHandle | None = None
        self._head = 0  # bytes of a head after those that it began with
        self._refused = False  # whether all that still comes is dropped
        self._inside = False  # whether a request has begun that has not come to its end
        self._trailers = 0  # fields that came after the headers of a request
        self._between = 0  # bytes since the last one of its body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection owes us a request."""
        super().connection_made(transport)
        self._begin()

    def data_received(self, data: bytes) -> None:
        """As uvicorn's, but for the limits and for offers of other protocols."""
        self._unset_keepalive_if_required()
        if len(data) <= AT_ONCE:
            self._feed(data)
            return
        for start in range(0, len(data), AT_ONCE):
            self._feed(data[start : start + AT_ONCE])

    def on_message_begin(self) -> None:
        """The next request's first byte."""
        self._inside = True
        self._trailers = self._between = 0
        super().on_message_begin()
        self._begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; or a trailer, which is dropped: the request is being answered by its headers."""
        if self._patience is None:
            self._trailers += 1
        else:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """It has said what it wants."""
        self._end()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some of its body."""
        self._between = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of it has come."""
        self._inside = False
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._end()
        super().connection_lost(exc)

    def _feed(self, data: bytes) -> None:
        if self._refused:
            return
        begun, rest = self._patience, data
        self._between += len(data)
        try:
            while rest:
                rest = self._parse(rest)
        except httptools.HttpParserError:
            self._refused = True
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._trailers > MOST_TRAILERS or (self._inside and self._patience is None and self._between > MOST_HEAD):
            self._refuse_trailers()
        elif self._patience is not None:
            self._measure(len(data), begun)
        elif not self._inside and (self.cycle is None or self.cycle.response_complete):
            self._begin()  # an empty line, after which uvicorn would wait for ever

    def _parse(self, data: bytes) -> bytes:
        """Parse it, up to an offer of another protocol; returns what comes after that."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline()
            return data[offer.args[0] :]
        return b""

    def _measure(self, size: int, begun: asyncio.TimerHandle | None) -> None:
        """Count what came of a head that goes on; what it began with may have been another request's for the most."""
        if self._patience is begun:
            self._head += size
            if self._head > MOST_HEAD:
                self._refuse("headers are")

    def _refuse_trailers(self) -> None:
        """Where the reply has begun, nothing can be said; else the application hears that the client is gone."""
        if self.cycle.response_started:
            self._refused = True
            self.transport.close()
            return
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        self._refuse(f"trailers are more than {MOST_TRAILERS}, or")

    def _refuse(self, what: str) -> None:
        said = f"The {what} over {MOST_HEAD:,} bytes; send fewer of them.".encode()
        lines = [b"content-type: text/plain; charset=utf-8", b"content-length: %d" % len(said), b"connection: close"]
        self.transport.write(STATUS_LINE[431] + b"\r\n".join([*lines, b"", said]))
        self._refused = True  # and not closed yet: a client reads the reply when all is sent
        self._begin(REFUSED_SECONDS)

    def _decline(self) -> None:
        """Go on with a request that offers another protocol: the parser thinks that its body is in that one.

        A new parser is told how long the body is, and not heard while it reads that.
        """
        lines = [name + b": " + value for name, value in self.headers if name in FRAMING and not _is_offer(name, value)]
        again = _Forwarding(self)
        self.parser = httptools.HttpRequestParser(again)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._inside = self.cycle.more_body = True
        self.cycle.message_event.clear()
        self.parser.feed_data(b"\r\n".join([b"POST / HTTP/1.1", *lines, b"", b""]))
        again.hears = True
        if again.ended:
            self.on_message_complete()

    def _begin(self, seconds: float | None = None) -> None:
        self._end()
        self._patience = self.loop.call_later(HEADER_SECONDS if seconds is None else seconds, self._give_up)

    def _end(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
            self._head = 0

    def _give_up(self) -> None:
        self.transport.close()


class _Forwarding:
    """A parser's calls to a protocol, from the moment that it `hears`."""

    def __init__(self, protocol: PatientProtocol) -> None:
        self._protocol = protocol
        self.hears = False
        self.ended = False  # whether a message did meanwhile

    def on_message_begin(self) -> None:
        if self.hears:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self.hears:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.hears:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.hears:
            self._protocol.on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._protocol.on_body(body)

    def on_message_complete(self) -> None:
        self.ended = True
        if self.hears:
            self._protocol.on_message_complete()


def _is_offer(name: bytes, value: bytes) -> bool:
    return name == b"connection" and b"upgrade" in value.lower()
