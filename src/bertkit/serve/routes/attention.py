"""Attention weights, and the queries and keys that they come from."""

from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field
from starlette.responses import Response

from bertkit.engine.batches import Passage, known_segments
from bertkit.model.encoder import RECURRENT
from bertkit.serve.engine import ReadAttention, TokenSequence
from bertkit.serve.http.endpoint import check_size, check_texts, encoded, reply
from bertkit.serve.http.routing import Routes
from bertkit.serve.models import ServedModel
from bertkit.serve.refusals import Refusal
from bertkit.serve.routes.schema import MODEL, example
from bertkit.serve.service import Plan, Service
from bertkit.serve.settings import ServeSettings

MAX_TOKENS = 512  # weights grow with the square of the length


class AttentionRequest(BaseModel):
    """One text or pair to look at."""

    model_config = example(text="The animal was tired.", layer=1, head=1)

    text: str
    pair: str | None = None
    layer: int | None = Field(None, ge=1, description="From 1; without it all.")
    head: int | None = Field(None, ge=1, description="From 1; without it all.")
    encoding_format: Literal["float", "base64"] = "float"
    model: str | None = MODEL


def attention_routes(service: Service) -> Routes:
    """/attention and /neuron."""
    routes = Routes()

    @routes.post("/attention", summary="What every token looks at", tags=["inside"])
    async def attention(request: AttentionRequest) -> Response:
        return await _attention_reply(service, request, neurons=False)

    @routes.post("/neuron", summary="The queries and keys behind it", tags=["inside"])
    async def neuron(request: AttentionRequest) -> Response:
        return await _attention_reply(service, request, neurons=True)

    return routes


async def _attention_reply(service: Service, request: AttentionRequest, *, neurons: bool) -> Response:
    served = service.models.named(request.model)
    chosen = (request.text, request.pair, request.layer, request.head)
    plan = partial(plan_attention, served, *chosen, service.settings, neurons=neurons)
    result = await service.answer(plan, len(request.text))
    numbers = 0
    for layer in result.value["layers"]:
        for name, value in layer.items():
            if isinstance(value, np.ndarray):
                numbers += value.size
                layer[name] = encoded(value, request.encoding_format)
    return await reply(service, {"model": served.name, **result.value}, numbers=numbers)


def plan_attention(
    served: ServedModel,
    text: str,
    pair: str | None,
    layer: int | None,
    head: int | None,
    limits: ServeSettings,
    *,
    neurons: bool = False,
) -> Plan:
    """Tokens, and the attention weights of one layer and head, each counted from 1, or of all of them."""
    check_texts([text] if pair is None else [text, pair], "text", limits)
    config = served.bert.model.config
    if config.recurrent:
        raise Refusal(422, RECURRENT, "model")
    layers = _numbers(layer, config.depth, "layer")
    heads = _numbers(head, config.heads, "head")
    encoding = served.bert.tokenizer.encode(text, pair)
    length, limit = len(encoding), min(served.limit, MAX_TOKENS)
    if length > limit:
        raise Refusal(413, f"the text has {length} tokens, over the {limit} that can be shown; shorten it", "text")
    check_size(len(layers) * len(heads) * length * (length + 2 * config.head_width * neurons), "name a layer", limits)
    read = ReadAttention(served.shared_encoder.encoder, layers, tuple(number - 1 for number in heads), neurons)
    sequence = TokenSequence(Passage(encoding.ids, known_segments(served.bert.model.config, encoding.segments)), read)
    tokens = served.bert.tokenizer.shown(encoding, text, pair)
    # Whether positions change the weights in a way that is not in queries and keys.
    relative = read.encoder.stack[0].attention.relative is not None

    def finish(rows: list[list[dict[str, np.ndarray]]]) -> dict[str, Any]:
        [parts] = rows
        by_layer = [{"layer": number, **part} for number, part in zip(layers, parts, strict=True)]
        columns = {"tokens": tokens, "ids": encoding.ids, "segments": encoding.segments, "special": encoding.special}
        return {**columns, "heads": list(heads), "relative": relative, "layers": by_layer}

    return Plan(served.shared_encoder, [sequence], finish, length)


def _numbers(number: int | None, count: int, field: str) -> tuple[int, ...]:
    """One number from 1 to `count`, or all of them."""
    if number is None:
        return tuple(range(1, count + 1))
    if not 1 <= number <= count:
        raise Refusal(422, f"{field}={number} must be from 1 to {count}", field)
    return (number,)
