"""HTTP connections that are not left open for clients who say nothing."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_SECONDS = 10.0  # for the first line and the headers of a request, once it has begun


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a limit on how long headers may take; bodies have theirs at the gate."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection owes us a request."""
        super().connection_made(transport)
        self._begin()

    def on_message_begin(self) -> None:
        """The next request's first byte."""
        super().on_message_begin()
        self._begin()

    def on_headers_complete(self) -> None:
        """It has said what it wants."""
        self._end()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._end()
        super().connection_lost(exc)

    def _begin(self) -> None:
        self._end()
        self._patience = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _end(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        self.transport.close()
