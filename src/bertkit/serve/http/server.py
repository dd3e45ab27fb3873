"""A server that runs until it is told to stop, and then answers what it has taken in."""

import contextlib
import resource
import signal
import socket
from collections.abc import Callable

import uvicorn

from bertkit.errors import BertkitError
from bertkit.serve.http.listener import BACKLOG
from bertkit.serve.http.middleware import Gate
from bertkit.serve.http.protocol import PatientProtocol
from bertkit.serve.interpreter import settle

KEEP_ALIVE = 75  # seconds that an idle connection stays open


def make_server(app: Gate, started: Callable[[], None] = lambda: None) -> uvicorn.Server:
    """A server of this application; `started` is called when it listens."""
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(2 * app.service.settings.seconds) + 1,
        backlog=BACKLOG,
    )
    return _Server(config, started)


def serve(app: Gate, listener: socket.socket, started: Callable[[], None] = lambda: None) -> None:
    """Answer requests until SIGTERM or Ctrl-C; then take no more, answer those that are in, and return."""
    _allow_many_connections()
    settle()
    server = make_server(app, started)
    # uvicorn sends itself the signal again when it is done: by then there is nothing left to stop.
    kept = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    if not server.started:
        raise BertkitError("the server did not start; its log says why")


class _Server(uvicorn.Server):
    """uvicorn's, which says when it listens, and whose /ready turns down before the last connection closes."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self.config.app
        if isinstance(app, Gate):
            app.service.ready = False
        await super().shutdown(sockets)


def _allow_many_connections() -> None:
    """As many open files as the machine allows: each connection is one."""
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
