"""A short way to the routes: what is in order goes straight to its function, all else the whole way through FastAPI.

FastAPI's way from the door to the function and back, with its wrappers, matching and dependencies, was a third of what
the event loop did for one vector, and while it does that, workers wait for the interpreter. FastAPI remains the twin
that says what is wrong with a request, and what the documentation shows.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from inspect import Parameter, iscoroutinefunction, signature
from typing import Any

import orjson
from pydantic import BaseModel
from starlette.responses import Response
from starlette.routing import BaseRoute

from bertkit.errors import BertkitError
from bertkit.serve.gate import Application, Message, Receive, Scope, Send
from bertkit.serve.replies import as_refusal, refusal_reply
from bertkit.serve.routes import StrictRoute

JSON = (b"application/json", b"application/json; charset=utf-8", b"application/json;charset=utf-8")


@dataclass(frozen=True)
class Short:
    """A route that takes one JSON object and nothing else."""

    path: str
    asks: type[BaseModel]
    endpoint: Callable[[BaseModel], Awaitable[Response]]


class ShortWay:
    """An ASGI application before FastAPI's; of two routes with one path the first counts, as there."""

    def __init__(self, app: Application, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._routes: dict[str, Short] = {}
        for route in routes:
            if (short := short_of(route)) is not None:
                self._routes.setdefault(short.path, short)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        route = self._routes.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None or not _is_plainly_json(scope):
            await self._app(scope, receive, send)
            return
        whole = await receive()
        asked = None if whole.get("more_body") else _read(route.asks, whole.get("body", b""))
        if asked is None:
            await self._app(scope, _again(whole, receive), send)
            return
        scope["route"] = route
        response = await self._answered(route, asked, scope)
        await response(scope, receive, send)

    async def _answered(self, route: Short, asked: BaseModel, scope: Scope) -> Response:
        try:
            return await route.endpoint(asked)
        except (ConnectionError, TimeoutError) as error:  # the gate would think of its own connection and clock
            raise BertkitError(f"{route.path} failed: {error}") from error
        except Exception as error:
            refusal = as_refusal(error)
            if refusal is None:
                raise
            return refusal_reply(refusal, scope["path"])


def short_of(route: BaseRoute) -> Short | None:
    """A route as the short way takes it; None where it has more to ask for than one object."""
    if not isinstance(route, StrictRoute) or route.methods != {"POST"} or "{" in route.path or route.dependencies:
        return None
    asked = signature(route.endpoint)
    if not iscoroutinefunction(route.endpoint) or asked.return_annotation is not Response or len(asked.parameters) != 1:
        return None
    [only] = asked.parameters.values()
    plain = only.kind is Parameter.POSITIONAL_OR_KEYWORD and only.default is Parameter.empty
    if not plain or not isinstance(only.annotation, type) or not issubclass(only.annotation, BaseModel):
        return None
    return Short(route.path, only.annotation, route.endpoint)


def _is_plainly_json(scope: Scope) -> bool:
    return [value.lower() in JSON for name, value in scope["headers"] if name == b"content-type"] == [True]


def _read(asks: type[BaseModel], body: bytes) -> BaseModel | None:
    """What is asked; None where something is wrong with it."""
    try:
        return asks.model_validate(orjson.loads(body))
    except ValueError:  # orjson's and pydantic's own are among them
        return None


def _again(message: Message, receive: Receive) -> Receive:
    """What was received, once more, and then what comes after it."""
    left: list[Any] = [message]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay
