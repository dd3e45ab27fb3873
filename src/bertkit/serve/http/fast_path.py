"""A short way to the routes: JSON requests go straight to their function, all others the whole way through FastAPI.

FastAPI's way from the door to the function and back, with its wrappers, matching and dependencies, was a third of what
the event loop did for one vector, and while it does that, workers wait for the interpreter; and it validates on the
event loop, however large a body is. Here large ones are parsed and validated in a thread. FastAPI remains the twin that
the documentation shows and that the tests compare with.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, iscoroutinefunction, signature

import orjson
from pydantic import BaseModel, ValidationError
from starlette.responses import Response
from starlette.routing import BaseRoute

from bertkit.errors import BertkitError
from bertkit.serve.http.middleware import Application, Receive, Scope, Send
from bertkit.serve.refusals import Refusal
from bertkit.serve.replies import as_refusal, not_json, refusal_reply, wrong_field
from bertkit.serve.routes.common import StrictRoute
from bertkit.serve.service import Service
from bertkit.serve.settings import LARGE

JSON = re.compile(rb"application/([^/]+\+)?json")
MOST_FIELDS = 100  # of an object that is a request; pydantic lists every field that nobody knows


@dataclass(frozen=True)
class Short:
    """A route that takes one JSON object, and strings from its path."""

    path: str
    pattern: re.Pattern[str]
    name: str  # of the argument that the object becomes
    asks: type[BaseModel]
    endpoint: Callable[..., Awaitable[Response]]


class ShortWay:
    """An ASGI application before FastAPI's; of two routes that match a path the first counts, as there."""

    def __init__(self, app: Application, routes: Iterable[BaseRoute], service: Service) -> None:
        self._app = app
        self._service = service
        self.routes = [short for route in routes if (short := short_of(route)) is not None]
        self._plain = {route.path: route for route in reversed(self.routes) if "{" not in route.path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["method"] != "POST" or not _is_json(scope):
            await self._app(scope, receive, send)
            return
        route, found = self._match(scope["path"])
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        asked = await self._asked(route, receive)
        response = await self._answered(route, asked, found, scope)
        del asked  # not kept while the reply is sent
        await response(scope, receive, send)

    def _match(self, path: str) -> tuple[Short | None, dict[str, str]]:
        """The route, and what its path has for its arguments."""
        if path in self._plain:
            return self._plain[path], {}
        for route in self.routes:
            if (found := route.pattern.match(path)) is not None:
                return route, found.groupdict()
        return None, {}

    async def _asked(self, route: Short, receive: Receive) -> BaseModel | Refusal:
        body: bytes = (await receive())["body"]
        if len(body) <= LARGE:
            return _read(route.asks, body)
        work = partial(_read, route.asks, body)
        del body
        return await self._service.read_off_loop(work)

    async def _answered(
        self, route: Short, asked: BaseModel | Refusal, found: dict[str, str], scope: Scope
    ) -> Response:
        if isinstance(asked, Refusal):
            return refusal_reply(asked, scope["path"])
        try:
            return await route.endpoint(**found, **{route.name: asked})
        except (ConnectionError, TimeoutError) as error:  # the gate would think of its own connection and clock
            raise BertkitError(f"{route.path} failed: {error}") from error
        except Exception as error:
            refusal = as_refusal(error)
            if refusal is None:
                raise
            return refusal_reply(refusal, scope["path"])


def short_of(route: BaseRoute) -> Short | None:
    """A route as the short way takes it; None where it asks for more than one object and strings of its path."""
    if not isinstance(route, StrictRoute) or route.methods != {"POST"} or route.dependencies:
        return None
    asked = signature(route.endpoint)
    if not iscoroutinefunction(route.endpoint) or asked.return_annotation is not Response:
        return None
    if any(each.kind is not Parameter.POSITIONAL_OR_KEYWORD for each in asked.parameters.values()):
        return None
    kinds = {name: each.annotation for name, each in asked.parameters.items() if each.default is Parameter.empty}
    from_path = {name: kinds.pop(name, None) for name in route.param_convertors}
    if (
        len(kinds) != 1
        or any(kind is not str for kind in from_path.values())
        or len(asked.parameters) > 1 + len(from_path)
    ):
        return None
    [(name, asks)] = kinds.items()
    if not isinstance(asks, type) or not issubclass(asks, BaseModel):
        return None
    return Short(route.path, route.path_regex, name, asks, route.endpoint)


def _is_json(scope: Scope) -> bool:
    """Whether the body is JSON by its one content type."""
    kinds = [value.partition(b";")[0].strip().lower() for name, value in scope["headers"] if name == b"content-type"]
    return len(kinds) == 1 and JSON.fullmatch(kinds[0]) is not None


def _read(asks: type[BaseModel], body: bytes) -> BaseModel | Refusal:
    """What is asked, or what is wrong with it: not raised, for a traceback would keep all of the body's values."""
    try:
        found = orjson.loads(body or b"null")
    except orjson.JSONDecodeError as error:
        return not_json(error.pos, error.msg)
    if isinstance(found, dict) and len(found) > MOST_FIELDS:
        return Refusal(422, f"the request has {len(found):,} fields, and no route reads more than {MOST_FIELDS}")
    try:
        return asks.model_validate(found)
    except ValidationError as error:
        return wrong_field(error.errors(include_url=False, include_input=False))
