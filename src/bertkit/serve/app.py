"""The application: all routes in one router, behind the middleware."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from bertkit.engine.recorded import RECORD_AFTER
from bertkit.serve.http.auth import Keys
from bertkit.serve.http.endpoint import JsonEndpoint
from bertkit.serve.http.middleware import Middleware
from bertkit.serve.http.openapi import MASK, openapi
from bertkit.serve.http.routing import Routes
from bertkit.serve.http.static import static_routes
from bertkit.serve.models import Models, ServedModel
from bertkit.serve.refusals import Refusal
from bertkit.serve.routes.adapters import adapter_routes
from bertkit.serve.routes.attention import attention_routes
from bertkit.serve.routes.embeddings import EmbeddingOptions, embedding_routes, plan_embeddings
from bertkit.serve.routes.fill import fill_routes
from bertkit.serve.routes.hugging_face import hugging_face_routes
from bertkit.serve.routes.models import model_routes
from bertkit.serve.routes.questions import question_routes
from bertkit.serve.routes.rerank import rerank_routes
from bertkit.serve.routes.tasks import task_routes
from bertkit.serve.routes.tei import tei_routes
from bertkit.serve.routes.why import Explain, why_routes
from bertkit.serve.routes.write import write_routes
from bertkit.serve.service import Service
from bertkit.serve.settings import ServeSettings


def create_app(
    models: Models,
    settings: ServeSettings | None = None,
    keys: Keys | None = None,
    *,
    local: bool = False,
    explain: Explain | None = None,
    adapters: Path | None = None,
) -> Middleware:
    """The server as an ASGI application; a `local` one accepts no Host but localhost and IP addresses.

    With `explain`, such as `bertkit.why`, it has the route /why; with `adapters`, a folder, those that load from it.
    """
    service = Service(models, settings or ServeSettings())

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        await service.start()
        await asyncio.gather(*(warm_up(service, served) for served in models.by_name.values()))
        service.ready = True
        yield
        await service.stop()

    parts = (
        embedding_routes,
        model_routes,
        tei_routes,
        rerank_routes,
        fill_routes,
        question_routes,
        write_routes,
        task_routes,
    )
    rows = [row for part in (*parts, attention_routes) for row in part(service).rows]
    rows += why_routes(service, explain).rows + adapter_routes(service, adapters).rows
    rows += [row for part in (hugging_face_routes, status_routes) for row in part(service).rows]
    document = orjson.dumps(openapi(rows, _mask_token(models)))

    async def description(_: Request) -> Response:
        return Response(document, media_type="application/json")

    routes = [Route(row.path, JsonEndpoint(row, service), methods=[row.method]) for row in rows]
    routes += [Route("/openapi.json", description), *static_routes()]
    return Middleware(Router(routes, redirect_slashes=False, lifespan=lifespan), service, keys, local=local)


def status_routes(service: Service) -> Routes:
    """/health, /ready and /metrics."""
    routes = Routes()

    @routes.get("/health", summary="Whether the server is running", tags=["status"])
    async def health() -> Response:
        return Response(status_code=200)

    @routes.get("/ready", summary="Whether it is warmed up and not shutting down", tags=["status"])
    async def ready() -> Response:
        return Response(status_code=200 if service.ready else 503)

    @routes.get("/metrics", summary="Metrics for Prometheus", tags=["status"])
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes


async def warm_up(service: Service, served: ServedModel) -> None:
    """Run first passes, which allocate memory and choose or compile kernels, before the first request."""
    options = EmbeddingOptions(settings=served.embed_settings())
    powers = [
        1 << power for power in range(served.limit.bit_length() + 1)
    ] * RECORD_AFTER  # a GPU's kernels differ by length
    for words in (1, 64) if service.models.on_cpu else powers:
        text = "warm " * min(words, served.limit - 2)  # [CLS] and [SEP] count
        with suppress(Refusal):  # where the limits are smaller than this
            await service.answer(partial(plan_embeddings, served, [text] * 4, options, service.settings))


def _mask_token(models: Models) -> str:
    """The mask token of the first model that fills, for the examples."""
    filling = [served for served in models.by_name.values() if "fill" in served.abilities]
    return filling[0].bert.tokenizer.mask_token if filling else MASK
