"""Embeddings: requests of OpenAI's and text-embeddings-inference's clients, what is computed for them, the replies."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, Field, PlainValidator, WithJsonSchema
from starlette.responses import Response

from bertkit.engine.batches import Passage, known_segments
from bertkit.engine.embed import Spans, split_text, stitched_vectors
from bertkit.errors import RequestError
from bertkit.model.pooling import EmbedSettings
from bertkit.poolings import NO_POOLING, NoPooling, PoolingName
from bertkit.serve.engine import ReadPooled, ReadTokens, TokenSequence
from bertkit.serve.http.endpoint import check_size, check_texts, encoded, length_note, length_policy, reply, reported
from bertkit.serve.http.routing import Routes
from bertkit.serve.models import ServedModel
from bertkit.serve.refusals import Refusal
from bertkit.serve.routes.schema import IDS, LENGTH, MODEL, TEXT, kind_of, lenient_example
from bertkit.serve.service import Plan, PlanDraft, PlanResult, Service, size_of
from bertkit.serve.settings import ServeSettings
from bertkit.tasks.shared.length import LengthPolicy, select_tokens, sequence_positions
from bertkit.text.length import LengthReport, TooLong
from bertkit.text.tokenizer import Encoding

PAIR_SEPARATOR = "|||"  # between the two texts of a pair, as bert-as-a-service writes it
INLINE_TEXTS = 64  # up to this many, embeddings are finished on the event loop: a thread would take longer
Input = str | list[int]


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


LIST = {"type": "array", "minItems": 1}
INPUTS = {"anyOf": [TEXT, {**LIST, "items": TEXT}, IDS, {**LIST, "items": IDS}]}
Inputs = Annotated[Sequence[Input], PlainValidator(read_inputs), WithJsonSchema(INPUTS)]


class EmbeddingFields(BaseModel):
    """How texts become embeddings; by default as the model's folder says."""

    model: str | None = MODEL
    pooling: Literal[PoolingName, NoPooling] | None = Field(
        None, description="One embedding for each text, or with 'none' one for each token."
    )
    layers: Annotated[list[int], Field(min_length=1, max_length=100)] | None = Field(
        None, description="Layers to concatenate; -1 is the last, 0 the embedding layer."
    )
    pairs: bool = Field(False, description="Whether a text with ||| is two texts, read together.")
    too_long: TooLong | None = LENGTH
    dimensions: int | None = Field(None, ge=1, description="Keep this many leading numbers, scaled to length 1.")
    prompt_name: str | None = Field(None, description="The prompt of the model's folder to put before each text.")


class OpenAIRequest(EmbeddingFields):
    """What OpenAI's clients send to /v1/embeddings, and bertkit's own fields."""

    model_config = lenient_example(input=["A cat sat on the mat.", "A dog lay on the rug."])

    input: Inputs
    encoding_format: Literal["float", "base64"] = "float"
    normalize: bool | None = None
    user: str | None = None


class EmbedRequest(EmbeddingFields):
    """What text-embeddings-inference's clients send to /embed and /embed_all."""

    model_config = lenient_example(inputs=["A cat sat on the mat.", "A dog lay on the rug."])

    inputs: Inputs
    normalize: bool | None = Field(
        True, description="To length 1, by default as text-embeddings-inference does; null is as the folder says."
    )
    truncate: bool | None = Field(None, description="true truncates texts that are too long, false refuses them.")
    truncation_direction: Literal["left", "right", "Left", "Right"] = "right"
    encoding_format: Literal["float", "base64"] = "float"


def embedding_routes(service: Service) -> Routes:
    """/v1/embeddings, /embed and /embed_all."""
    routes = Routes()

    @routes.post("/v1/embeddings", summary="Embeddings, as OpenAI's clients ask for them", tags=["vectors"])
    async def embeddings(request: OpenAIRequest) -> Response:
        served = service.models.embedder(request.model, pooling=request.pooling, layers=request.layers)
        policy = length_policy(request.too_long, None, service.settings)
        options = embedding_options(served, request, request.normalize, policy)
        if options.settings.per_token:
            raise Refusal(422, "pooling 'none' gives many vectors for a text; use /embed_all", "pooling")
        plan = partial(plan_embeddings, served, request.input, options, service.settings, "input")
        result = await service.answer(plan, size_of(request.input))
        content = _openai_content(result, served, request.encoding_format)
        return await reply(service, content, result.plan, _count_numbers(result), served.name)

    @routes.post("/embed", summary="Embeddings, as text-embeddings-inference has it", tags=["vectors"])
    async def embed(request: EmbedRequest) -> Response:
        served = service.models.embedder(request.model, pooling=request.pooling, layers=request.layers)
        return await embed_reply(service, request, served)

    @routes.post("/embed_all", summary="An embedding for each token", tags=["vectors"])
    async def embed_all(request: EmbedRequest) -> Response:
        return await embed_reply(service, request, service.models.named(request.model), per_token=True)

    return routes


async def embed_reply(
    service: Service, request: EmbedRequest, served: ServedModel, *, per_token: bool = False
) -> Response:
    """A list of embeddings; with `per_token` a list for each text, normalized only where the request says so."""
    if request.truncation_direction.lower() == "left":
        raise Refusal(422, "texts are cut at their end; leave truncation_direction out", "truncation_direction")
    policy = length_policy(request.too_long, request.truncate, service.settings)
    normalize = request.normalize if not per_token or "normalize" in request.model_fields_set else False
    options = embedding_options(served, request, normalize, policy, NO_POOLING if per_token else None)
    plan = partial(plan_embeddings, served, request.inputs, options, service.settings)
    result = await service.answer(plan, size_of(request.inputs))
    content = [encoded(vector, request.encoding_format) for vector in result.value]
    return await reply(service, content, result.plan, _count_numbers(result), served.name)


def _openai_content(result: PlanResult, served: ServedModel, encoding_format: str) -> dict[str, Any]:
    data = [
        {"object": "embedding", "index": index, "embedding": encoded(vector, encoding_format)}
        for index, vector in enumerate(result.value)
    ]
    usage = {"prompt_tokens": result.plan.tokens, "total_tokens": result.plan.tokens}
    note = length_note(result.plan.report)
    return {"object": "list", "data": data, "model": served.name, "usage": usage, **note}


def _count_numbers(result: PlanResult) -> int:
    vectors: list[np.ndarray] = result.value
    return sum(vector.size for vector in vectors)


@dataclass(frozen=True, kw_only=True)
class EmbeddingOptions:
    """How the texts of one request become embeddings."""

    settings: EmbedSettings
    pairs: bool = False  # whether a text with ||| is two texts
    too_long: TooLong = "truncate"


def embedding_options(
    served: ServedModel, request: EmbeddingFields, normalize: bool | None, too_long: TooLong, pooling: str | None = None
) -> EmbeddingOptions:
    """The folder's settings with the request's changes."""
    try:
        layers = None if request.layers is None else tuple(request.layers)
        how = {"pooling": pooling or request.pooling, "layers": layers, "normalize": normalize}
        settings = served.embed_settings(**how, dimensions=request.dimensions, prompt_name=request.prompt_name)
    except RequestError as error:
        raise Refusal(422, str(error)) from error
    return EmbeddingOptions(settings=settings, pairs=request.pairs, too_long=too_long)


def plan_embeddings(
    served: ServedModel,
    inputs: Sequence[Input],
    options: EmbeddingOptions,
    limits: ServeSettings,
    field: str = "inputs",
) -> PlanDraft:
    """Embeddings of texts or token ids: [D] each, or with pooling 'none' [L, D]."""
    check_texts(inputs, field, limits)
    return plan_checked_inputs(served, inputs, options, limits, field, f"{field}[{{}}]".format)


def plan_checked_inputs(
    served: ServedModel,
    inputs: Sequence[Input],
    options: EmbeddingOptions,
    limits: ServeSettings,
    field: str,
    name_of: Callable[[int], str],
) -> PlanDraft:
    """The same for inputs whose number and sizes are checked; `name_of(n)` is what messages call input number n."""
    settings = _resolved(options.settings, served)
    width = served.width(settings)
    single = [settings.prefix + text for text in inputs if isinstance(text, str) and not _is_pair(text, options)]

    def complete(tokens: Iterable[Passage]) -> Plan:
        sequences: list[TokenSequence] = []
        windows: list[Spans | None] = []  # of each input; None: it is one sequence
        lengths: list[int] = []
        reader, limit, one_segment = _reader(settings), served.limit, served.first_segment_only
        all_single = len(single) == len(inputs)
        encodings = _with_lengths(tokens) if all_single else _encodings(served, inputs, options, tokens, field)
        for encoding, length in encodings:
            spans = None
            if length <= limit and one_segment and isinstance(encoding, Passage):  # the common case
                sequences.append(TokenSequence(encoding, reader))
            else:
                passages, spans = _passages(served, encoding, options.too_long)
                read = ReadTokens(settings.layers) if spans else reader
                sequences += [TokenSequence(passage, read) for passage in passages]
            windows.append(spans)
            lengths.append(length)
        report = _length_report(lengths, limit, windows, options.too_long, field, name_of)
        rows = sum(map(len, sequences)) if settings.per_token else len(inputs)
        check_size(rows * width, "send fewer texts at a time", limits)
        windowed = any(windows)
        if windowed:
            held = sum(len(sequence) for sequence in sequences if isinstance(sequence.read, ReadTokens))
            _check_held(held * len(settings.layers) * served.bert.model.config.width, limits)
        return Plan(
            served.shared_encoder,
            sequences,
            lambda rows: _finished(rows, windows, options),
            sum(lengths),
            report,
            finish_on_loop=len(inputs) <= INLINE_TEXTS and not windowed,
        )

    return PlanDraft(served.tokenizer, single, complete)


def _resolved(settings: EmbedSettings, served: ServedModel) -> EmbedSettings:
    """Layers counted from the embeddings, 0; a wrong one, or more than the model has, are refused."""
    depth = served.shared_encoder.encoder.config.depth
    try:
        resolved = settings.resolved(depth)
    except RequestError as error:
        raise Refusal(422, str(error), "layers") from error
    if len(resolved.layers) > depth + 1:  # each makes rows wider
        message = f"{len(resolved.layers)} layers are more than the model's {depth + 1}; name each once"
        raise Refusal(422, message, "layers")
    return resolved


def _reader(settings: EmbedSettings) -> ReadPooled | ReadTokens:
    if settings.per_token:
        return ReadTokens(settings.layers, settings.normalize, settings.dimensions)
    return ReadPooled(settings.layers, settings.pooling, settings.normalize, settings.dense, settings.dimensions)


def split_pair(text: str) -> tuple[str, str]:
    """The two texts of a pair that is written as one."""
    first, _, second = text.partition(PAIR_SEPARATOR)
    return first.strip(), second.strip()


def _is_pair(text: str, options: EmbeddingOptions) -> bool:
    return options.pairs and PAIR_SEPARATOR in text


def _with_lengths(passages: Iterable[Passage]) -> Iterator[tuple[Passage, int]]:
    return ((passage, len(passage.ids)) for passage in passages)


def _encodings(
    served: ServedModel, inputs: Sequence[Input], options: EmbeddingOptions, tokens: Iterable[Passage], field: str
) -> Iterator[tuple[Encoding | Passage, int]]:
    """Each input as ids, and how many tokens it has.

    `tokens` are those of the single texts. Pairs are encoded here: both of their texts may be truncated.
    """
    single = _with_lengths(tokens)
    for number, value in enumerate(inputs):
        if not isinstance(value, str):
            yield _from_ids(served, value, options.too_long, f"{field}[{number}]", field)
        elif _is_pair(value, options):
            first, second = split_pair(value)
            encoding = served.bert.tokenizer.encode(options.settings.prefix + first, second)
            yield encoding, len(encoding.ids)
        else:
            yield next(single)


def _from_ids(served: ServedModel, ids: list[int], too_long: TooLong, name: str, field: str) -> tuple[Passage, int]:
    """Token ids of this model's vocabulary, between [CLS] and [SEP], which are added where they are missing.

    Ids that are truncated are counted and not checked.
    """
    tokenizer, limit = served.bert.tokenizer, served.limit
    framed = ids[0] == tokenizer.cls_id
    length = len(ids) if framed else len(ids) + 2
    if length > limit and too_long != "window":
        ids = [*ids[: limit - 1], ids[-1]] if framed else ids[: limit - 2]
    known = range(served.bert.model.config.vocab_size)
    for number, token in enumerate(ids):
        if type(token) is not int or token not in known:
            fault = f"token {number} is {token if type(token) is int else 'no whole number'}"
            raise Refusal(422, f"{name}: {fault}; this model has ids up to {len(known) - 1}", field)
    if not framed:
        ids = [tokenizer.cls_id, *ids, tokenizer.sep_id]
    return Passage(ids, (0,) * len(ids)), length


def _passages(
    served: ServedModel, encoding: Encoding | Passage, too_long: TooLong
) -> tuple[list[Passage], Spans | None]:
    """The sequences of one input, and the spans of its windows; of a long pair the longer text is truncated first."""
    if isinstance(encoding, Encoding) and len(encoding.ids) > served.limit:
        kept = sequence_positions(encoding, served.limit, LengthPolicy("head"))
        passages, spans = [Passage(*select_tokens(encoding, positions)) for positions in kept], None
    else:
        passages, spans = split_text(Passage(encoding.ids, encoding.segments), served.limit, too_long)
    return [Passage(p.ids, known_segments(served.bert.model.config, p.segments)) for p in passages], spans


def _length_report(
    lengths: Sequence[int],
    limit: int,
    windows: Sequence[Spans | None],
    too_long: TooLong,
    field: str,
    name_of: Callable[[int], str],
) -> LengthReport:
    """Which inputs are over the limit. Pairs have no windows, so that a long one is reported as truncated."""
    if max(lengths) <= limit:
        return LengthReport(limit, too_long)
    truncated = [length if spans is None else 0 for length, spans in zip(lengths, windows, strict=True)]
    if too_long == "window" and max(truncated) > limit:
        return reported(truncated, limit, "truncate", field, name_of)
    return reported(lengths, limit, too_long, field, name_of)


def _check_held(numbers: int, limits: ServeSettings) -> None:
    """Refuse a request whose windows would fill the memory before they are pooled."""
    if numbers > limits.max_held:
        raise Refusal(
            413,
            f"long texts through windows would keep {numbers:,} numbers, over {limits.max_held:,}; send fewer or "
            "shorter texts at a time, or ask for fewer layers",
        )


def _finished(rows: list[Any], windows: Sequence[Spans | None], options: EmbeddingOptions) -> list[np.ndarray]:
    """An embedding for each input, from the rows of its sequences."""
    vectors, remaining = [], iter(rows)
    for spans in windows:
        if spans is None:
            vector = next(remaining)
        else:
            parts = [torch.from_numpy(next(remaining)) for _ in spans]
            vector = stitched_vectors(parts, spans, options.settings).numpy()
        vectors.append(vector)
    return vectors
