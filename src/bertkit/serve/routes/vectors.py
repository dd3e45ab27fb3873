"""Vectors, as OpenAI's clients and text-embeddings-inference's ask for them."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field, PlainValidator, WithJsonSchema
from starlette.responses import Response

from bertkit.errors import RequestError
from bertkit.poolings import NO_POOLING, TEXT_POOLINGS, NoPooling, PoolingName
from bertkit.serve.http.limits import length_policy, size_of
from bertkit.serve.http.routing import Routes, encoded, length_note, reply
from bertkit.serve.models import Served
from bertkit.serve.plans.vectors import Input, Wanted, plan_vectors
from bertkit.serve.refusals import Refusal
from bertkit.serve.routes.schema import IDS, LENGTH, MODEL, TEXT, kind_of, lenient_example
from bertkit.serve.service import PlanResult, Service
from bertkit.text.length import TooLong


def read_inputs(value: object) -> list[Input]:
    """One text, several, token ids of one, or of several; all ids but the first are checked once they are truncated."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError("give a text, a list of texts, token ids, or a list of token ids; at least one")
    if type(value[0]) is int:
        return [value]
    return [_read_input(item, number) for number, item in enumerate(value)]


def _read_input(item: object, number: int) -> Input:
    if isinstance(item, str):
        return item
    if isinstance(item, list) and item and type(item[0]) is int:
        return item
    raise ValueError(f"item {number} is {kind_of(item)}; give a text or a list of token ids")


MANY = {"type": "array", "minItems": 1}
INPUTS = {"anyOf": [TEXT, {**MANY, "items": TEXT}, IDS, {**MANY, "items": IDS}]}
Inputs = Annotated[Sequence[Input], PlainValidator(read_inputs), WithJsonSchema(INPUTS)]


class VectorChoices(BaseModel):
    """How texts become vectors; what is not said is as the model's folder says."""

    model: str | None = MODEL
    pooling: Literal[PoolingName, NoPooling] | None = Field(
        None, description="One vector for each text, or with 'none' for each token."
    )
    layers: Annotated[list[int], Field(min_length=1, max_length=100)] | None = Field(
        None, description="Put side by side; -1 is the last, 0 the embeddings."
    )
    pairs: bool = Field(False, description="Whether a text with ||| is two texts, read together.")
    too_long: TooLong | None = LENGTH
    dimensions: int | None = Field(None, ge=1, description="Only the first so many numbers, scaled to length 1.")


class OpenAIRequest(VectorChoices):
    """What OpenAI's clients send to /v1/embeddings, and bertkit's own choices."""

    model_config = lenient_example(input=["A cat sat on the mat.", "A dog lay on the rug."])

    input: Inputs
    encoding_format: Literal["float", "base64"] = "float"
    normalize: bool | None = None
    user: str | None = None


class EmbedRequest(VectorChoices):
    """What text-embeddings-inference's clients send to /embed and /embed_all."""

    model_config = lenient_example(inputs=["A cat sat on the mat.", "A dog lay on the rug."])

    inputs: Inputs
    normalize: bool | None = Field(
        True, description="To length 1, by default as text-embeddings-inference does; null is as the folder says."
    )
    truncate: bool | None = Field(None, description="true cuts texts that are too long, false refuses them.")
    truncation_direction: Literal["left", "right", "Left", "Right"] = "right"
    prompt_name: str | None = None
    encoding_format: Literal["float", "base64"] = "float"


def vector_routes(service: Service) -> Routes:
    """/v1/embeddings, /v1/models, /embed and /embed_all."""
    routes = Routes()

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


def _openai(answer: PlanResult, served: Served, how: str) -> dict[str, Any]:
    data = [
        {"object": "embedding", "index": index, "embedding": encoded(vector, how)}
        for index, vector in enumerate(answer.value)
    ]
    used = {"prompt_tokens": answer.plan.tokens, "total_tokens": answer.plan.tokens}
    note = length_note(answer.plan.lengths)
    return {"object": "list", "data": data, "model": served.name, "usage": used, **note}


def _count(answer: PlanResult) -> int:
    vectors: list[np.ndarray] = answer.value
    return sum(vector.size for vector in vectors)


def wanted_vectors(
    served: Served, asked: VectorChoices, normalize: bool | None, too_long: TooLong, pooling: str | None = None
) -> Wanted:
    """The folder's settings with what the request asks for."""
    try:
        layers = None if asked.layers is None else tuple(asked.layers)
        settings = served.embed_settings(pooling=pooling or asked.pooling, layers=layers, normalize=normalize)
    except RequestError as error:
        raise Refusal(422, str(error)) from error
    return Wanted(settings=settings, pairs=asked.pairs, too_long=too_long, dimensions=asked.dimensions)
