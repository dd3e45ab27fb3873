"""Attention weights, the queries and keys that they come from, and the words that each layer would fill in."""

from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field
from starlette.responses import Response

from bertkit.engine.batches import Passage, known_segments
from bertkit.model.encoder import RECURRENT
from bertkit.serve.engine import ReadAttention, Reader, ReadLens, TokenSequence
from bertkit.serve.http.endpoint import check_size, check_texts, encoded, length_note, reply, reported
from bertkit.serve.http.routing import Routes
from bertkit.serve.models import ServedModel
from bertkit.serve.refusals import Refusal
from bertkit.serve.routes.schema import MODEL, example
from bertkit.serve.service import Plan, Service
from bertkit.serve.settings import ServeSettings
from bertkit.text.length import LengthReport, TooLong
from bertkit.text.tokenizer import Encoding

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


class LensRequest(BaseModel):
    """One text or pair whose layers are asked for words."""

    model_config = example(text="Paris is the capital of France.", top=1)

    text: str
    pair: str | None = None
    top: int = Field(3, ge=1, le=10, description="Words for each token and layer.")
    model: str | None = MODEL


def attention_routes(service: Service) -> Routes:
    """/attention, /neuron and /lens."""
    routes, can_fill = Routes(), "fill" in service.models.abilities

    @routes.post("/lens", summary="The words that each layer predicts", tags=["inside"], include_in_schema=can_fill)
    async def lens(request: LensRequest) -> Response:
        served = service.models.able(request.model, "fill")
        plan = partial(plan_lens, served, request.text, request.pair, request.top, service.settings)
        result = await service.answer(plan, len(request.text))
        content = {"model": served.name, **result.value, **length_note(result.plan.report)}
        return await reply(service, content, result.plan, result.plan.result_size)

    @routes.post("/attention", summary="What every token looks at", tags=["inside"])
    async def attention(request: AttentionRequest) -> Response:
        return await _attention_reply(service, request, neurons=False)

    @routes.post("/neuron", summary="The queries and keys behind it", tags=["inside"])
    async def neuron(request: AttentionRequest) -> Response:
        return await _attention_reply(service, request, neurons=True)

    return routes


async def _attention_reply(service: Service, request: AttentionRequest, *, neurons: bool) -> Response:
    served = service.models.named(request.model)
    served.refuse_adapter("its attention")
    chosen = (request.text, request.pair, request.layer, request.head)
    plan = partial(plan_attention, served, *chosen, service.settings, neurons=neurons)
    result = await service.answer(plan, len(request.text))
    numbers = 0
    for layer in result.value["layers"]:
        for name, value in layer.items():
            if isinstance(value, np.ndarray):
                numbers += value.size
                layer[name] = encoded(value, request.encoding_format)
    content = {"model": served.name, **result.value, **length_note(result.plan.report)}
    return await reply(service, content, result.plan, numbers)


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
    encoding, report = _encoded(served, text, pair, limits)
    length = len(encoding)
    check_size(len(layers) * len(heads) * length * (length + 2 * config.head_width * neurons), "name a layer", limits)
    read = ReadAttention(served.shared_encoder.encoder, layers, tuple(number - 1 for number in heads), neurons)
    sequence = _sequence(served, encoding, read)
    tokens = served.bert.tokenizer.shown(encoding, text, pair)
    # Whether positions change the weights in a way that is not in queries and keys.
    relative = read.encoder.stack[0].attention.relative is not None

    def finish(rows: list[list[dict[str, np.ndarray]]]) -> dict[str, Any]:
        [parts] = rows
        by_layer = [{"layer": number, **part} for number, part in zip(layers, parts, strict=True)]
        columns = {"tokens": tokens, "ids": encoding.ids, "segments": encoding.segments, "special": encoding.special}
        return {**columns, "heads": list(heads), "relative": relative, "layers": by_layer}

    return Plan(served.shared_encoder, [sequence], finish, length, report)


def plan_lens(served: ServedModel, text: str, pair: str | None, top: int, limits: ServeSettings) -> Plan:
    """The `top` words of the masked-word head for each token, from the embeddings and from every layer's output."""
    check_texts([text] if pair is None else [text, pair], "text", limits)
    bert, tokenizer = served.bert, served.tokenizer
    encoding, report = _encoded(served, text, pair, limits)
    layers, top = tuple(range(bert.model.config.depth + 1)), min(top, tokenizer.size)
    size = len(encoding) * len(layers) * top
    check_size(size, "ask for fewer words", limits)
    read = ReadLens(bert.model, top, tokenizer.size, layers)
    sequence = _sequence(served, encoding, read)

    def finish(rows: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
        [(probabilities, ids)] = rows
        written = {number: tokenizer.written(number) for number in set(ids.reshape(-1).tolist())}
        words = [[[written[number] for number in best] for best in token] for token in ids.tolist()]
        return {"tokens": tokenizer.shown(encoding, text, pair), "words": words, "probabilities": probabilities}

    return Plan(served.shared_encoder, [sequence], finish, len(encoding), report, result_size=2 * size)


def _encoded(served: ServedModel, text: str, pair: str | None, limits: ServeSettings) -> tuple[Encoding, LengthReport]:
    """The tokens to show: a long text is cut, unless the server refuses such texts; a long pair is refused."""
    limit, whole = min(served.limit, MAX_TOKENS), served.bert.tokenizer.encode(text, pair)
    policy: TooLong = "truncate" if pair is None and limits.too_long != "refuse" else "refuse"
    report = reported([len(whole)], limit, policy, "text", lambda _: "text" if pair is None else "text with pair")
    return whole.truncated(limit), report


def _sequence(served: ServedModel, encoding: Encoding, read: Reader) -> TokenSequence:
    return TokenSequence(Passage(encoding.ids, known_segments(served.bert.model.config, encoding.segments)), read)


def _numbers(number: int | None, count: int, field: str) -> tuple[int, ...]:
    """One number from 1 to `count`, or all of them."""
    if number is None:
        return tuple(range(1, count + 1))
    if not 1 <= number <= count:
        raise Refusal(422, f"{field}={number} must be from 1 to {count}", field)
    return (number,)
