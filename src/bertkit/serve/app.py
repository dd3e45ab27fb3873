"""The application: routes behind the door, errors as one sentence, documentation that works offline."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.telemetry import TelemetryConfig
from starlette.exceptions import HTTPException

from bertkit._version import __version__
from bertkit.errors import RequestError
from bertkit.serve.http.auth import Keys
from bertkit.serve.http.fast_path import ShortWay
from bertkit.serve.http.middleware import Gate
from bertkit.serve.http.static import static_routes
from bertkit.serve.models import Models
from bertkit.serve.refusals import Refusal, failure
from bertkit.serve.replies import as_refusal, refusal_reply
from bertkit.serve.routes.heads import head_routes, inside_routes
from bertkit.serve.routes.hugging_face import hugging_face_routes
from bertkit.serve.routes.tei import tei_routes
from bertkit.serve.routes.vectors import vector_routes
from bertkit.serve.service import Service
from bertkit.serve.settings import ServeSettings

# Whatever the environment says: what this server counts, it counts for its own /metrics.
SILENT: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
MASK = "[MASK]"  # as examples write it
OTHER_REPLIES: dict[int | str, dict[str, Any]] = {
    status: {"description": said}
    for status, said in {
        401: "A key is needed.",
        404: "No such model, or none that can do this.",
        413: "Too large.",
        422: "A field is wrong; the reply names it.",
        429: "The queue is full; Retry-After says for how long.",
        504: "No answer in time.",
    }.items()
}


def create_app(
    models: Models, settings: ServeSettings | None = None, keys: Keys | None = None, *, local: bool = False
) -> Gate:
    """The whole server as an ASGI application; a `local` one is asked for by no name but localhost."""
    service = Service(models, settings or ServeSettings())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="bertkit",
        version=__version__,
        description="Vectors, heads and the inside of BERT models.",
        docs_url=None,  # FastAPI's pages load scripts from elsewhere; ours is at /docs
        redoc_url=None,
        lifespan=lifespan,
        responses=OTHER_REPLIES,
        redirect_slashes=False,
        telemetry=SILENT,
    )
    parts = (vector_routes, tei_routes, head_routes, inside_routes, hugging_face_routes, status_routes)
    routers = [*(routes(service) for routes in parts), static_routes()]
    for routes in routers:
        app.include_router(routes)
    for kind in (Refusal, RequestError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _refused)
    _fit_examples(app, service)
    short = ShortWay(app, [route for routes in routers for route in routes.routes], service)
    return Gate(short, service, keys or Keys(), local=local)


def status_routes(service: Service) -> APIRouter:
    """/health, /ready and /metrics."""
    routes = APIRouter(tags=["status"])

    @routes.get("/health", summary="Whether the server is there")
    async def health() -> Response:
        return Response(status_code=200)

    @routes.get("/ready", summary="Whether it is warm and not about to stop")
    async def ready() -> Response:
        return Response(status_code=200 if service.ready else 503)

    @routes.get("/metrics", summary="Numbers for Prometheus")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes


async def _refused(request: Request, error: Exception) -> Response:
    """Any refusal as JSON; of a failure, which goes on to the gate and into its log, the id alone is told."""
    return refusal_reply(as_refusal(error) or failure(request.scope["bertkit_id"]), request.scope["path"])


def _fit_examples(app: FastAPI, service: Service) -> None:
    """Write the blank of the first model that fills into the examples."""
    filling = [each for each in service.models.by_name.values() if "fill" in each.abilities]
    mask = filling[0].bert.tokenizer.mask_token if filling else MASK
    plain = app.openapi

    def fitted() -> dict[str, Any]:
        schema: dict[str, Any] = plain()
        fill = schema.get("components", {}).get("schemas", {}).get("FillRequest", {})
        if "example" in fill:
            fill["example"] = {**fill["example"], "text": fill["example"]["text"].replace(MASK, mask)}
        return schema

    app.openapi = fitted  # type: ignore[method-assign]
