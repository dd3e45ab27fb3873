"""Routes as data: a path, a request model, a function, and what the documentation says about it.

Each becomes a Starlette route that validates the JSON body and calls the function. Bodies over `LARGE` are parsed and
validated in a thread, so that the event loop, and with it /health, does not wait for them.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Protocol, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from bertkit.errors import BertkitError, RequestError
from bertkit.serve.refusals import Refusal, not_json, wrong_field
from bertkit.serve.settings import LARGE

JSON_TYPE = re.compile(rb"application/([^/]+\+)?json")
MAX_FIELDS = 100  # of a request object; pydantic lists every unknown field
Value = TypeVar("Value")
Handler = Callable[..., Awaitable[Response]]


class OffLoop(Protocol):
    """Runs a function in a thread."""

    def __call__(self, work: Callable[[], Value], /) -> Awaitable[Value]:
        """What the function gives."""


@dataclass(frozen=True)
class JsonRoute:
    """One route: its function takes at most one request model, and strings from the path."""

    method: str
    path: str
    handler: Handler
    summary: str
    tags: Sequence[str]
    documented: bool = True

    @property
    def request(self) -> tuple[str, type[BaseModel]] | None:
        """(name of the argument, request model) of a route with a body."""
        kinds = {name: each.annotation for name, each in signature(self.handler).parameters.items()}
        models = [
            (name, kind) for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, BaseModel)
        ]
        if len(models) > 1 or any(kind is not str for name, kind in kinds.items() if (name, kind) not in models):
            raise TypeError(f"{self.path} must take one request model and strings from its path, not {kinds}")
        return models[0] if models else None


class Routes:
    """A list of routes; where two match a path, the first one counts."""

    def __init__(self) -> None:
        self.rows: list[JsonRoute] = []

    def get(self, path: str, *, summary: str, tags: Sequence[str]) -> Callable[[Handler], Handler]:
        """Add a route without a body."""
        return partial(self._add, "GET", path, summary, tags, True)

    def post(
        self, path: str, *, summary: str, tags: Sequence[str], include_in_schema: bool = True
    ) -> Callable[[Handler], Handler]:
        """Add a route that takes a JSON object."""
        return partial(self._add, "POST", path, summary, tags, include_in_schema)

    def _add(
        self, method: str, path: str, summary: str, tags: Sequence[str], documented: bool, handler: Handler
    ) -> Handler:
        self.rows.append(JsonRoute(method, path, handler, summary, tags, documented))
        return handler


def starlette_route(row: JsonRoute, off_loop: OffLoop) -> Route:
    """The route as Starlette's router takes it; `off_loop` parses large bodies."""
    return Route(row.path, JsonEndpoint(row, off_loop), methods=[row.method], include_in_schema=row.documented)


class JsonEndpoint:
    """ASGI application of one route: body to request model to reply."""

    def __init__(self, row: JsonRoute, off_loop: OffLoop) -> None:
        self._row, self._off_loop = row, off_loop
        self._request = row.request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        asked = await self._read(scope, receive)
        if isinstance(asked, Refusal):
            response = asked.response(scope["path"])
        else:
            response = await self._reply(asked, scope)
        del asked  # not kept while the reply is sent
        await response(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive) -> BaseModel | Refusal | None:
        """The request; None for a route without a body."""
        if self._request is None:
            return None
        if not _is_json(scope):
            return wrong_field([{"loc": ()}])
        body: bytes = (await receive())["body"]
        if len(body) <= LARGE:
            return read_body(self._request[1], body)
        work = partial(read_body, self._request[1], body)
        del body
        return await self._off_loop(work)

    async def _reply(self, asked: BaseModel | None, scope: Scope) -> Response:
        body = {} if self._request is None else {self._request[0]: asked}
        try:
            return await self._row.handler(**scope["path_params"], **body)
        except Refusal as refusal:
            return refusal.response(scope["path"])
        except RequestError as error:
            return Refusal(422, str(error)).response(scope["path"])
        except (ConnectionError, TimeoutError) as error:  # the middleware's own mean the client and its deadline
            raise BertkitError(f"{self._row.path} failed: {error}") from error


def read_body(model: type[BaseModel], body: bytes) -> BaseModel | Refusal:
    """The request; or what is wrong with it: not raised, since a traceback would keep all values of the body alive."""
    try:
        value = orjson.loads(body or b"null")
    except orjson.JSONDecodeError as error:
        return not_json(error.pos, error.msg)
    if isinstance(value, dict) and len(value) > MAX_FIELDS:
        return Refusal(422, f"the request has {len(value):,} fields, and no route reads more than {MAX_FIELDS}")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        return wrong_field(error.errors(include_url=False, include_input=False))


def _is_json(scope: Scope) -> bool:
    """Whether the request has exactly one content type, and that is JSON."""
    kinds = [value.partition(b";")[0].strip().lower() for name, value in scope["headers"] if name == b"content-type"]
    return len(kinds) == 1 and JSON_TYPE.fullmatch(kinds[0]) is not None
