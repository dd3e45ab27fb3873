"""Other routes of text-embeddings-inference: classification, reranking, similarity, tokens, server info."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, FailFast, Field, PlainValidator, WithJsonSchema
from starlette.responses import Response

from bertkit._version import __version__
from bertkit.serve.http.endpoint import check_count, check_texts, length_policy, reply
from bertkit.serve.http.routing import Routes
from bertkit.serve.models import ServedModel
from bertkit.serve.refusals import Refusal
from bertkit.serve.routes.embeddings import PAIR_SEPARATOR, EmbeddingOptions, plan_checked_inputs, split_pair
from bertkit.serve.routes.models import model_cards
from bertkit.serve.routes.schema import IDS, MODEL, TEXT, Texts, lenient_example, one_or_several
from bertkit.serve.routes.tasks import converted, plan_task
from bertkit.serve.service import PlanDraft, PlanResult, Service, size_of
from bertkit.serve.settings import ServeSettings
from bertkit.tasks.classify import Classified
from bertkit.tasks.multilabel import Labeled
from bertkit.tasks.regress import Rated
from bertkit.text.length import TooLong

Label = dict[str, Any]
Pairs = list[tuple[str, str | None]]  # the second text is None where the input is a single text
SIMILARITY_FIELDS = ("inputs.source_sentence", "inputs.sentences")


def read_pairs(value: object) -> tuple[bool, Pairs]:
    """(whether it is a single input, the inputs): a text; [text] or [text, text]; or a list of these two."""
    if isinstance(value, str):
        return True, [(value, None)]
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value) and len(value) <= 2:
        return True, [_pair(value, 0)]
    if isinstance(value, list) and value and all(isinstance(item, list) for item in value):
        return False, [_pair(item, number) for number, item in enumerate(value)]
    raise ValueError("give a text, a pair [text, text], or a list of [text] and [text, text]")


def _pair(item: list[Any], number: int) -> tuple[str, str | None]:
    if not 1 <= len(item) <= 2 or not all(isinstance(part, str) for part in item):
        raise ValueError(f"item {number} is no [text] or [text, text]")
    return item[0], item[1] if len(item) == 2 else None


def read_ids(value: object) -> list[list[int]]:
    """Token ids of one text, or of several."""
    lists = [value] if isinstance(value, list) and value and type(value[0]) is int else value
    if not isinstance(lists, list) or not lists:
        raise ValueError("give token ids, or a list of token ids; at least one")
    for number, item in enumerate(lists):
        if not isinstance(item, list) or not all(type(token) is int for token in item):
            raise ValueError(f"item {number} is no list of token ids")
    return lists


PAIR_SCHEMA = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 2}
PairsInput = Annotated[
    tuple[bool, Pairs],
    PlainValidator(read_pairs),
    WithJsonSchema({"anyOf": [TEXT, PAIR_SCHEMA, {"type": "array", "items": PAIR_SCHEMA, "minItems": 1}]}),
]
TextList = Annotated[list[str], Field(min_length=1), FailFast()]  # pydantic would list each of a million wrong items
IdsInput = Annotated[list[list[int]], PlainValidator(read_ids), WithJsonSchema(one_or_several(IDS))]


class PredictRequest(BaseModel):
    """Texts or pairs for a model with classes."""

    model_config = lenient_example(inputs="a fine film")

    inputs: PairsInput
    raw_scores: bool = False
    truncate: bool | None = None
    model: str | None = MODEL


class RerankRequest(BaseModel):
    """A query and the texts to rank by it."""

    model_config = lenient_example(query="pets", texts=["Interest rates rose.", "A dog lay on the rug."])

    query: str
    texts: TextList
    raw_scores: bool = False
    return_text: bool = False
    truncate: bool | None = None
    model: str | None = MODEL


class SimilarityInputs(BaseModel):
    """One sentence and those that it is compared with."""

    source_sentence: str
    sentences: TextList


class SimilarityRequest(BaseModel):
    """Cosines between one sentence and others."""

    model_config = lenient_example(
        inputs={"source_sentence": "A cat sat.", "sentences": ["A dog lay.", "Interest rates rose."]}
    )

    inputs: SimilarityInputs
    parameters: dict[str, Any] | None = None
    model: str | None = MODEL


class TokenizeRequest(BaseModel):
    """Texts to tokenize."""

    model_config = lenient_example(inputs="embeddings of tokens")

    inputs: Texts
    add_special_tokens: bool = True
    pairs: bool = Field(False, description="Whether a text with ||| is two texts, read together.")
    model: str | None = MODEL


class DecodeRequest(BaseModel):
    """Token ids to decode."""

    model_config = lenient_example(ids=[[5, 6, 7]])

    ids: IdsInput
    skip_special_tokens: bool = True
    model: str | None = MODEL


def tei_routes(service: Service) -> Routes:
    """/predict, /rerank, /similarity, /tokenize, /decode and /info."""
    routes, models = Routes(), service.models
    can_classify = "classify" in models.abilities

    @routes.post("/predict", summary="Classes with scores", tags=["heads"], include_in_schema=can_classify)
    async def predict(request: PredictRequest) -> Response:
        served = models.able(request.model, "classify")
        single, pairs = request.inputs
        policy = length_policy(None, request.truncate, service.settings)
        result = await predict_labels(service, served, pairs, policy, raw=request.raw_scores)
        return await reply(service, result.value[0] if single else result.value, result.plan, result.plan.tokens)

    @routes.post("/rerank", summary="Texts by how well they fit a query", tags=["vectors"])
    async def rerank(request: RerankRequest) -> Response:
        served = models.embedder(request.model)
        policy = length_policy(None, request.truncate, service.settings)
        result = await rank(service, served, request.query, request.texts, policy, raw=request.raw_scores)
        scores = result.value
        order = sorted(range(len(scores)), key=lambda i: -scores[i])
        rows: list[dict[str, Any]] = [{"index": i, "score": scores[i]} for i in order]
        if request.return_text:
            rows = [{**row, "text": request.texts[row["index"]]} for row in rows]
        return await reply(service, rows, result.plan, model=served.name)

    @routes.post("/similarity", summary="Cosines with one sentence", tags=["vectors"])
    async def similarity(request: SimilarityRequest) -> Response:
        served, inputs = models.embedder(request.model), request.inputs
        policy = length_policy(None, None, service.settings)
        result = await cosines(service, served, inputs.source_sentence, inputs.sentences, policy, SIMILARITY_FIELDS)
        return await reply(service, result.value, result.plan, model=served.name)

    @routes.post("/tokenize", summary="Texts as tokens", tags=["tokens"])
    async def tokenize(request: TokenizeRequest) -> Response:
        served = models.named(request.model)
        check_texts(request.inputs, "inputs", service.settings)
        work = partial(_tokens, served, request.inputs, request.add_special_tokens, request.pairs)
        size = size_of(request.inputs)
        return await reply(service, await service.off_loop(work, size), numbers=size)

    @routes.post("/decode", summary="Token ids as texts", tags=["tokens"])
    async def decode(request: DecodeRequest) -> Response:
        served = models.named(request.model)
        check_texts(request.ids, "ids", service.settings)
        work = partial(_decoded, served, request.ids, request.skip_special_tokens)
        return await reply(service, await service.off_loop(work, size_of(request.ids)))

    @routes.get("/info", summary="What this server is", tags=["status"])
    async def info() -> Response:
        return await reply(service, _info(service))

    return routes


async def predict_labels(
    service: Service,
    served: ServedModel,
    pairs: Pairs,
    policy: TooLong,
    names: tuple[str, str] = ("inputs", "inputs"),
    *,
    raw: bool = False,
) -> PlanResult:
    """Every label with its probability, or with `raw` its logit, best first, for each text or pair.

    `names`: the request's fields of the first and the second texts.
    """
    check_count(pairs, names[1], service.settings)
    if len({second is None for _, second in pairs}) > 1:
        raise Refusal(422, "texts and pairs do not go together in one request; send them apart", "inputs")
    texts = [first for first, _ in pairs]
    seconds = [second for _, second in pairs if second is not None]
    logits = raw and served.task != "regress"  # whose logit is its score
    options: dict[str, Any] = {"refuse_long": policy == "refuse", "raw": logits}
    inputs, request_names = {"texts": texts, "pairs": seconds or None}, {"texts": names[0], "pairs": names[1]}
    plan = partial(plan_task, served, inputs, service.settings, request_names, **options)
    as_labels = partial(converted, plan, partial(_labels, served=served, raw=raw))
    return await service.answer(as_labels, size_of(texts) + size_of(seconds))


def _labels(prediction: Classified | Labeled | Rated | np.ndarray, served: ServedModel, *, raw: bool) -> list[Label]:
    if isinstance(prediction, Rated):
        name = served.bert.checkpoint.labels[0] if served.bert.checkpoint.labels else "score"
        return [{"score": prediction.value if raw else _sigmoid(prediction.value), "label": name}]
    if isinstance(prediction, np.ndarray):
        scores = dict(zip(served.bert.checkpoint.labels, prediction.tolist(), strict=True))
    else:
        return ranked_labels(prediction)
    return _ranked(scores)


def ranked_labels(prediction: Classified | Labeled) -> list[Label]:
    """Every label with its probability, best first."""
    return _ranked(prediction.probabilities)


def _ranked(scores: Mapping[str, float]) -> list[Label]:
    return [{"score": score, "label": label} for label, score in sorted(scores.items(), key=lambda item: -item[1])]


async def rank(
    service: Service, served: ServedModel, query: str, texts: list[str], policy: TooLong, *, raw: bool
) -> PlanResult:
    """A score for each text: of a model fine-tuned with `regress` its output for the pair, else the cosine."""
    names = ("query", "texts")
    if served.task != "regress":
        return await cosines(service, served, query, texts, policy, names)
    check_count(texts, "texts", service.settings)
    result = await predict_labels(service, served, [(query, text) for text in texts], policy, names, raw=raw)
    return PlanResult([labels[0]["score"] for labels in result.value], result.plan)


async def cosines(
    service: Service, served: ServedModel, sentence: str, others: list[str], policy: TooLong, names: tuple[str, str]
) -> PlanResult:
    """Cosine similarities between one text and others; `names`: their fields in the request."""
    settings = served.embed_settings(normalize=True)
    if settings.per_token:
        raise Refusal(422, f"the model '{served.name}' has no pooling, so its texts have no single vector", "model")
    options = EmbeddingOptions(settings=settings, too_long=policy)
    plan = partial(_plan_cosines, served, sentence, others, options, service.settings, names)
    result = await service.answer(plan, len(sentence) + size_of(others))
    first, *rest = result.value
    return PlanResult((np.stack(rest) @ first).astype(float).tolist(), result.plan)


def _plan_cosines(
    served: ServedModel,
    sentence: str,
    others: list[str],
    options: EmbeddingOptions,
    limits: ServeSettings,
    names: tuple[str, str],
) -> PlanDraft:
    """Embeddings of one text and the others, whose names in messages differ."""
    one, many = names
    check_texts([sentence], one, limits)
    check_texts(others, many, limits)
    inputs = [sentence, *others]
    return plan_checked_inputs(served, inputs, options, limits, many, lambda n: f"{many}[{n - 1}]" if n else one)


def _tokens(served: ServedModel, texts: list[str], special: bool, pairs: bool) -> list[list[dict[str, Any]]]:
    """As text-embeddings-inference lists them: special tokens have no offsets."""
    tokenizer, rows_of_texts = served.bert.tokenizer, []
    for text in texts:
        encoding = tokenizer.encode(*split_pair(text)) if pairs and PAIR_SEPARATOR in text else tokenizer.encode(text)
        columns = zip(tokenizer.tokens(encoding.ids), encoding.ids, encoding.special, encoding.offsets, strict=True)
        rows = []
        for token, number, is_special, (start, stop) in columns:
            offsets = {"start": None, "stop": None} if is_special else {"start": start, "stop": stop}
            if special or not is_special:
                rows.append({"id": number, "text": token, "special": is_special, **offsets})
        rows_of_texts.append(rows)
    return rows_of_texts


def _decoded(served: ServedModel, ids: list[list[int]], skip_special: bool) -> list[str]:
    return [served.bert.tokenizer.decode(of_text, skip_special=skip_special) for of_text in ids]


def _info(service: Service) -> dict[str, Any]:
    """The first model and the server's limits, under text-embeddings-inference's names."""
    first, limits = service.models.named(None), service.settings
    kind: dict[str, Any] = {"embedding": {"pooling": first.embed_settings().pooling}}
    if first.task in ("classify", "multilabel", "regress"):
        labels = list(first.bert.checkpoint.labels)
        ids = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
        kind = {"reranker" if first.task == "regress" else "classifier": ids}
    return {
        "model_id": first.name,
        "model_sha": first.checksum,
        "model_dtype": first.bert.dtype,
        "model_type": kind,
        "max_concurrent_requests": limits.max_queue,
        "max_input_length": first.limit,
        "max_batch_tokens": limits.max_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": limits.max_texts,
        "auto_truncate": limits.too_long == "truncate",
        "tokenization_workers": 2,
        "version": __version__,
        "sha": None,
        "docker_label": None,
        "models": model_cards(service),
    }


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0
