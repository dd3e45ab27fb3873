"""The models of a server and what each can do."""

from typing import Any

from starlette.responses import Response

from bertkit.poolings import TEXT_POOLINGS
from bertkit.serve.http.endpoint import reply
from bertkit.serve.http.routing import Routes
from bertkit.serve.models import ServedModel
from bertkit.serve.service import Service


def model_routes(service: Service) -> Routes:
    """/v1/models."""
    routes = Routes()

    @routes.get("/v1/models", summary="The models of this server", tags=["vectors"])
    async def models() -> Response:
        return await reply(service, {"object": "list", "data": model_cards(service)})

    return routes


def model_cards(service: Service) -> list[dict[str, Any]]:
    """All models, as /v1/models and /info list them."""
    return [model_card(served) for served in service.models.by_name.values()]


def model_card(served: ServedModel) -> dict[str, Any]:
    """A model's abilities, shape and default settings."""
    config, settings = served.bert.model.config, served.embed_settings()
    return {
        "id": served.name,
        "object": "model",
        "created": 0,
        "owned_by": "bertkit",
        "family": config.family,
        "abilities": served.abilities,
        "task": served.task,
        "labels": served.bert.checkpoint.labels,
        "mask": served.tokenizer.mask_token,
        "unknown": served.tokenizer.tokens([served.tokenizer.unknown_id])[0],
        "layers": config.depth,
        "heads": config.attention_heads,
        "width": config.width,
        "parameters": sum(tensor.numel() for tensor in served.own_tensors),
        "bytes": sum(tensor.nbytes for tensor in served.own_tensors),
        "dtype": served.bert.dtype,
        "vocabulary": served.tokenizer.size,
        "max_length": served.limit,
        "pooling": settings.pooling,
        "poolings": list(TEXT_POOLINGS),
        "normalize": settings.normalize,
        "encoder": served.checksum[:16],
        "bundled": served.bundled,
        "adapter_of": served.trunk,
    }
