"""What all routes share: bodies read by a fast and strict parser, and the settings of their vectors."""

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from bertkit.errors import RequestError
from bertkit.serve.models import Served
from bertkit.serve.plans.vectors import Wanted
from bertkit.serve.refusals import Refusal
from bertkit.serve.routes.schema import VectorChoices
from bertkit.serve.settings import LARGE, ServeSettings
from bertkit.text.length import TooLong

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class StrictRequest(Request):
    """A request whose body is JSON as the standard has it: UTF-8, no NaN, no lone surrogates, no endless nesting."""

    async def json(self) -> Any:
        """The body; orjson's errors are json's. The short way takes large ones, unless their content type is odd."""
        body = await self.body()
        if len(body) > LARGE:
            raise HTTPException(422, "a large body must have one 'Content-Type: application/json'")
        return orjson.loads(body)


class StrictRoute(APIRoute):
    """A route that reads its requests so."""

    def get_route_handler(self) -> Handler:
        """FastAPI's own, over our request."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(StrictRequest(request.scope, request.receive))

        return strict


def router() -> APIRouter:
    """An empty list of routes."""
    return APIRouter(route_class=StrictRoute)


def wanted_vectors(
    served: Served, asked: VectorChoices, normalize: bool | None, too_long: TooLong, pooling: str | None = None
) -> Wanted:
    """The folder's settings with what the request asks for."""
    try:
        settings = served.bert.embed_settings(
            pooling=pooling or asked.pooling, layers=asked.layers, normalize=normalize
        )
    except RequestError as error:
        raise Refusal(422, str(error)) from error
    return Wanted(settings=settings, pairs=asked.pairs, too_long=too_long, dimensions=asked.dimensions)


def length_policy(asked: TooLong | None, truncate: bool | None, limits: ServeSettings) -> TooLong:
    """The request's policy; truncate=true and false are text-embeddings-inference's words for two of them."""
    if asked is not None:
        return asked
    if truncate is not None:
        return "truncate" if truncate else "refuse"
    return limits.too_long


def fill_policy(asked: TooLong | None, limits: ServeSettings) -> TooLong:
    """The same for texts with blanks, which are read through windows rather than cut, for a blank may be anywhere."""
    return asked or ("refuse" if limits.too_long == "refuse" else "window")


def size_of(texts: Iterable[Any]) -> int:
    """About how much there is to read, counted until it is a lot: a million short texts are counted on the loop."""
    size = 0
    for text in texts:
        size += max(1, len(text)) if isinstance(text, str | list | tuple) else 1
        if size > LARGE:
            break
    return size
