"""uvicorn with our limits: runs until a signal, then answers the requests it has accepted."""

import contextlib
import resource
import signal
import socket
from collections.abc import Callable

import uvicorn

from bertkit.errors import BertkitError
from bertkit.serve.http.listener import BACKLOG
from bertkit.serve.http.middleware import Middleware
from bertkit.serve.http.protocol import LimitedProtocol
from bertkit.serve.memory import tune_gc

KEEP_ALIVE_SECONDS = 75  # after which an idle connection is closed


def make_server(app: Middleware, started: Callable[[], None] = lambda: None) -> uvicorn.Server:
    """A server of this application; `started` is called when it listens."""
    config = uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(2 * app.service.settings.seconds) + 1,
        backlog=BACKLOG,
    )
    return _Server(config, started)


def serve(app: Middleware, listener: socket.socket, started: Callable[[], None] = lambda: None) -> None:
    """Answer requests until SIGTERM or Ctrl-C; then accept no more, answer those in progress, and return."""
    _raise_file_limit()
    tune_gc()
    server = make_server(app, started)
    # uvicorn raises the signal again after its shutdown, which would end the process with an error.
    handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if not server.started:
        raise BertkitError("the server did not start; its log says why")


class _Server(uvicorn.Server):
    """Calls back when it listens, and turns /ready to 503 before the last connection closes."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self.config.app
        if isinstance(app, Middleware):
            app.service.ready = False
        await super().shutdown(sockets)


def _raise_file_limit() -> None:
    """As many open files as the system allows: each connection is one."""
    with contextlib.suppress(OSError, ValueError):
        _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
