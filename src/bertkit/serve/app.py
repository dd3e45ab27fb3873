"""The application: all routes in one router, behind the middleware."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from bertkit.engine.recorded import RECORD_AFTER
from bertkit.serve.http.auth import Keys
from bertkit.serve.http.middleware import Middleware
from bertkit.serve.http.openapi import MASK, openapi
from bertkit.serve.http.routing import Routes, starlette_route
from bertkit.serve.http.static import static_routes
from bertkit.serve.models import Models, Served
from bertkit.serve.plans.vectors import Wanted, plan_vectors
from bertkit.serve.refusals import Refusal
from bertkit.serve.routes.heads import head_routes, inside_routes
from bertkit.serve.routes.hugging_face import hugging_face_routes
from bertkit.serve.routes.tei import tei_routes
from bertkit.serve.routes.vectors import vector_routes
from bertkit.serve.service import Service
from bertkit.serve.settings import ServeSettings


def create_app(
    models: Models, settings: ServeSettings | None = None, keys: Keys | None = None, *, local: bool = False
) -> Middleware:
    """The whole server as an ASGI application; a `local` one answers to no host name but localhost."""
    service = Service(models, settings or ServeSettings())

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        await service.start()
        await asyncio.gather(*(warm_up(service, served) for served in models.by_name.values()))
        service.ready = True
        yield
        await service.stop()

    parts = (vector_routes, tei_routes, head_routes, inside_routes, hugging_face_routes, status_routes)
    rows = [row for part in parts for row in part(service).rows]
    document = orjson.dumps(openapi(rows, _mask(models)))

    async def description(_: Request) -> Response:
        return Response(document, media_type="application/json")

    routes = [starlette_route(row, service) for row in rows]
    routes += [Route("/openapi.json", description), *static_routes()]
    return Middleware(Router(routes, redirect_slashes=False, lifespan=lifespan), service, keys, local=local)


def status_routes(service: Service) -> Routes:
    """/health, /ready and /metrics."""
    routes = Routes()

    @routes.get("/health", summary="Whether the server is there", tags=["status"])
    async def health() -> Response:
        return Response(status_code=200)

    @routes.get("/ready", summary="Whether it is warm and not about to stop", tags=["status"])
    async def ready() -> Response:
        return Response(status_code=200 if service.ready else 503)

    @routes.get("/metrics", summary="Numbers for Prometheus", tags=["status"])
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes


async def warm_up(service: Service, served: Served) -> None:
    """Run first passes, which allocate memory and choose or compile kernels, before the first request."""
    wanted = Wanted(settings=served.bert.embed_settings())
    doublings = [1 << each for each in range(served.limit.bit_length() + 1)] * RECORD_AFTER  # a GPU's differ by length
    for words in (1, 64) if service.models.on_cpu else doublings:
        text = "warm " * min(words, served.limit - 2)  # [CLS] and [SEP] count
        with suppress(Refusal):  # where the limits are smaller than this
            await service.answer(partial(plan_vectors, served, [text] * 4, wanted, service.settings))


def _mask(models: Models) -> str:
    """The mask token of the first model that fills, for the examples."""
    filling = [each for each in models.by_name.values() if "fill" in each.abilities]
    return filling[0].bert.tokenizer.mask_token if filling else MASK
