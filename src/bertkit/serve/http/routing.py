"""JSON routes as data: a path, a request model, a function, and what the documentation says about it.

Each becomes a Starlette route that validates the JSON body and calls the function. Bodies over `LARGE` are parsed and
validated in a thread, so that the event loop, and with it /health, does not wait for them.
"""

import base64
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
import orjson
from pydantic import BaseModel, ValidationError
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from bertkit.errors import BertkitError, RequestError
from bertkit.serve.refusals import Refusal, not_json, wrong_field
from bertkit.serve.service import Plan, Service
from bertkit.serve.settings import LARGE
from bertkit.text.length import LengthReport

JSON_TYPE = re.compile(rb"application/([^/]+\+)?json")
MAX_FIELDS = 100  # of a request object; pydantic lists every unknown field
ORJSON_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
MAX_LISTED = 20  # of the texts that were too long
Handler = Callable[..., Awaitable[Response]]


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


def starlette_route(row: JsonRoute, service: Service) -> Route:
    """The route as Starlette's router takes it."""
    return Route(row.path, JsonEndpoint(row, service), methods=[row.method])


class JsonEndpoint:
    """ASGI application of one route: body to request model to reply."""

    def __init__(self, row: JsonRoute, service: Service) -> None:
        self._row, self._service = row, service
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
        return await self._service.read_off_loop(work)

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


async def reply(service: Service, content: Any, plan: Plan | None = None, numbers: int = 0) -> Response:
    """The content as JSON, made in a thread where there is much of it; texts that were cut are in the headers."""
    dump = partial(orjson.dumps, content, default=_default, option=ORJSON_OPTIONS)
    body = await service.off_loop(dump, numbers) if numbers > LARGE else dump()
    return Response(body, media_type="application/json", headers=length_headers(plan.lengths if plan else None))


def length_headers(report: LengthReport | None) -> dict[str, str]:
    """How many texts were over the limit, and in a sentence what was done."""
    if report is None or not report.long:
        return {}
    return {"bertkit-long-texts": str(len(report.long)), "bertkit-length-note": str(report)}


def length_note(report: LengthReport | None) -> dict[str, Any]:
    """The same for the reply itself; nothing where every text was read whole."""
    if report is None or not report.long:
        return {}
    texts = [{"index": index, "tokens": tokens} for index, tokens in report.long[:MAX_LISTED]]
    note = {"limit": report.limit, "policy": report.policy, "count": len(report.long), "texts": texts}
    return {"long_texts": note}


def encoded(array: np.ndarray, how: str) -> np.ndarray | str:
    """Numbers as they are, or their float32 bytes, little-endian, in base64."""
    if how == "float":
        return np.ascontiguousarray(array, dtype=np.float32)
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode("ascii")


def _default(value: Any) -> Any:
    """What orjson does not know by itself: arrays that are not contiguous."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON")
