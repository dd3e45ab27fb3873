"""Vectors, as OpenAI's clients and text-embeddings-inference's ask for them."""

from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, Response

from bertkit.poolings import NO_POOLING, TEXT_POOLINGS
from bertkit.serve.models import Served
from bertkit.serve.plans.vectors import plan_vectors
from bertkit.serve.refusals import Refusal
from bertkit.serve.replies import encoded, length_note, reply
from bertkit.serve.routes.common import length_policy, router, size_of, wanted_vectors
from bertkit.serve.routes.schema import EmbedRequest, OpenAIRequest
from bertkit.serve.service import Answer, Service


def vector_routes(service: Service) -> APIRouter:
    """/v1/embeddings, /v1/models, /embed and /embed_all."""
    routes = router()

    @routes.post("/v1/embeddings", summary="Vectors, as OpenAI's clients ask for them", tags=["vectors"])
    async def embeddings(asked: OpenAIRequest) -> Response:
        served = service.models.named(asked.model)
        policy = length_policy(asked.too_long, None, service.settings)
        wanted = wanted_vectors(served, asked, asked.normalize, policy)
        if wanted.settings.per_token:
            raise Refusal(422, "pooling 'none' gives many vectors for a text; use /embed_all", "pooling")
        plan = partial(plan_vectors, served, asked.input, wanted, service.settings, "input")
        answer = await service.answer(plan, size_of(asked.input))
        return await reply(service, _openai(answer, served, asked.encoding_format), answer.plan, _count(answer))

    @routes.get("/v1/models", summary="The models of this server", tags=["vectors"])
    async def models() -> Response:
        return await reply(service, {"object": "list", "data": [model_card(each) for each in _all(service)]})

    @routes.post("/embed", summary="Vectors, as text-embeddings-inference has it", tags=["vectors"])
    async def embed(asked: EmbedRequest) -> Response:
        return await embed_reply(service, asked, service.models.named(asked.model))

    @routes.post("/embed_all", summary="A vector for each token", tags=["vectors"])
    async def embed_all(asked: EmbedRequest) -> Response:
        return await embed_reply(service, asked, service.models.named(asked.model), every=True)

    return routes


async def embed_reply(service: Service, asked: EmbedRequest, served: Served, *, every: bool = False) -> Response:
    """A list of vectors, or with `every` of lists of them, which are normalized only if that is asked for."""
    if asked.truncation_direction.lower() == "left":
        raise Refusal(422, "texts are cut at their end; leave truncation_direction out", "truncation_direction")
    if asked.prompt_name is not None:
        raise Refusal(422, "prompts have no names here; write the prompt before the text", "prompt_name")
    policy = length_policy(asked.too_long, asked.truncate, service.settings)
    normalize = asked.normalize if not every or "normalize" in asked.model_fields_set else False
    wanted = wanted_vectors(served, asked, normalize, policy, NO_POOLING if every else None)
    plan = partial(plan_vectors, served, asked.inputs, wanted, service.settings)
    answer = await service.answer(plan, size_of(asked.inputs))
    content = [encoded(vector, asked.encoding_format) for vector in answer.value]
    return await reply(service, content, answer.plan, _count(answer))


def model_card(served: Served) -> dict[str, Any]:
    """What /v1/models and /info say about a model."""
    config, settings = served.bert.model.config, served.bert.embed_settings()
    return {
        "id": served.name,
        "object": "model",
        "created": 0,
        "owned_by": "bertkit",
        "family": config.family,
        "abilities": served.abilities,
        "task": served.task,
        "labels": served.bert.checkpoint.labels,
        "mask": served.bert.tokenizer.mask_token,
        "layers": config.depth,
        "heads": config.heads,
        "width": config.width,
        "max_length": served.limit,
        "pooling": settings.pooling,
        "poolings": list(TEXT_POOLINGS),
        "normalize": settings.normalize,
        "encoder": served.checksum[:16],
    }


def _all(service: Service) -> list[Served]:
    return list(service.models.by_name.values())


def _openai(answer: Answer, served: Served, how: str) -> dict[str, Any]:
    data = [
        {"object": "embedding", "index": index, "embedding": encoded(vector, how)}
        for index, vector in enumerate(answer.value)
    ]
    used = {"prompt_tokens": answer.plan.tokens, "total_tokens": answer.plan.tokens}
    note = length_note(answer.plan.lengths)
    return {"object": "list", "data": data, "model": served.name, "usage": used, **note}


def _count(answer: Answer) -> int:
    vectors: list[np.ndarray] = answer.value
    return sum(vector.size for vector in vectors)
