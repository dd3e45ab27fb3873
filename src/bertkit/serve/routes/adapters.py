"""Adapters that come and go: a client loads them by name from one folder, and drops them.

Only a server that was started with such a folder has these routes. A name is that of a folder in it, never a path, so
that clients reach no other file. Whoever may send requests may load and drop.
"""

import asyncio
import os
from pathlib import Path

from pydantic import BaseModel, Field
from starlette.responses import Response

from bertkit.checkpoint.bundled import is_adapter
from bertkit.errors import RequestError
from bertkit.serve.http.endpoint import reply
from bertkit.serve.http.routing import Routes
from bertkit.serve.models import serve_adapter
from bertkit.serve.refusals import Refusal
from bertkit.serve.routes.models import model_card
from bertkit.serve.routes.schema import example
from bertkit.serve.service import Service

NAME = r"^\w[\w.-]*$"  # no separators, and no hidden folders


class LoadAdapterRequest(BaseModel):
    """An adapter to serve."""

    model_config = example(name="questions")

    name: str = Field(pattern=NAME, max_length=100, description="What requests call it (their `model`).")
    folder: str | None = Field(None, pattern=NAME, max_length=100, description="Its folder; by default the name.")


class DropAdapterRequest(BaseModel):
    """An adapter that is no longer served."""

    model_config = example(name="questions")

    name: str = Field(max_length=100)


def adapter_routes(service: Service, root: Path | None) -> Routes:
    """/adapters/load and /adapters/drop, where the server has a folder of adapters."""
    routes, one_at_a_time = Routes(), asyncio.Lock()
    if root is None:
        return routes

    @routes.post("/adapters/load", summary="Serve an adapter of the server's folder", tags=["status"])
    async def load(request: LoadAdapterRequest) -> Response:
        folder = root / (request.folder or request.name)
        async with one_at_a_time:
            service.models.refuse_taken(request.name)
            _refuse_missing(root, folder)
            # In a thread, so that other requests are answered meanwhile.
            try:
                served = await asyncio.to_thread(serve_adapter, service.models.trunks, request.name, folder)
            except RequestError as error:  # clients need not know where the folder is
                raise Refusal(422, str(error).replace(f"{root}{os.sep}", ""), "name") from error
            service.models.add(served)
        return await reply(service, model_card(served))

    @routes.post("/adapters/drop", summary="Serve an adapter no longer", tags=["status"])
    async def drop(request: DropAdapterRequest) -> Response:
        dropped = service.models.drop(request.name)  # whoever has it already is still answered
        return await reply(service, {"dropped": dropped.name, "models": list(service.models.by_name)})

    return routes


def _refuse_missing(root: Path, folder: Path) -> None:
    if not is_adapter(folder):
        found = sorted(path.name for path in root.iterdir() if is_adapter(path))
        raise Refusal(
            404, f"no adapter '{folder.name}' in the server's folder; it has {', '.join(found) or 'none'}", "name"
        )
