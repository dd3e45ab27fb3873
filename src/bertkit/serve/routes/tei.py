"""Other routes of text-embeddings-inference: classification, reranking, similarity, tokens."""

import math
from functools import partial
from typing import Any

import numpy as np
from starlette.responses import Response

from bertkit._version import __version__
from bertkit.serve.http.limits import check_count, check_texts, length_policy, size_of
from bertkit.serve.http.routing import Routes, reply
from bertkit.serve.models import Served
from bertkit.serve.plans.heads import plan_task, with_form
from bertkit.serve.plans.vectors import PAIR, Wanted, both_of, plan_cosines
from bertkit.serve.refusals import Refusal
from bertkit.serve.routes.schema_tei import (
    DecodeRequest,
    PredictRequest,
    RerankRequest,
    SimilarityRequest,
    TokenizeRequest,
)
from bertkit.serve.routes.vectors import model_card
from bertkit.serve.service import PlanResult, Service
from bertkit.tasks.classify import Classified
from bertkit.tasks.multilabel import Labeled
from bertkit.tasks.regress import Rated
from bertkit.text.length import TooLong

Label = dict[str, Any]
SENTENCES = ("inputs.source_sentence", "inputs.sentences")


def tei_routes(service: Service) -> Routes:
    """/predict, /rerank, /similarity, /tokenize, /decode and /info."""
    routes, models = Routes(), service.models
    can_classify = "classify" in models.abilities

    @routes.post("/predict", summary="Classes with scores", tags=["heads"], include_in_schema=can_classify)
    async def predict(asked: PredictRequest) -> Response:
        served = models.able(asked.model, "classify")
        alone, pairs = asked.inputs
        policy = length_policy(None, asked.truncate, service.settings)
        answer = await predict_labels(service, served, pairs, policy, raw=asked.raw_scores)
        return await reply(service, answer.value[0] if alone else answer.value, answer.plan, answer.plan.tokens)

    @routes.post("/rerank", summary="Texts by how well they fit a query", tags=["vectors"])
    async def rerank(asked: RerankRequest) -> Response:
        served = models.named(asked.model)
        policy = length_policy(None, asked.truncate, service.settings)
        answer = await rank(service, served, asked.query, asked.texts, policy, raw=asked.raw_scores)
        scores = answer.value
        order = sorted(range(len(scores)), key=lambda i: -scores[i])
        rows: list[dict[str, Any]] = [{"index": i, "score": scores[i]} for i in order]
        if asked.return_text:
            rows = [{**row, "text": asked.texts[row["index"]]} for row in rows]
        return await reply(service, rows, answer.plan)

    @routes.post("/similarity", summary="Cosines with one sentence", tags=["vectors"])
    async def similarity(asked: SimilarityRequest) -> Response:
        served, inputs = models.named(asked.model), asked.inputs
        policy = length_policy(None, None, service.settings)
        answer = await cosines(service, served, inputs.source_sentence, inputs.sentences, policy, SENTENCES)
        return await reply(service, answer.value, answer.plan)

    @routes.post("/tokenize", summary="Texts as tokens", tags=["tokens"])
    async def tokenize(asked: TokenizeRequest) -> Response:
        served = models.named(asked.model)
        check_texts(asked.inputs, "inputs", service.settings)
        work = partial(_tokens, served, asked.inputs, asked.add_special_tokens, asked.pairs)
        size = size_of(asked.inputs)
        return await reply(service, await service.off_loop(work, size), numbers=size)

    @routes.post("/decode", summary="Token ids as texts", tags=["tokens"])
    async def decode(asked: DecodeRequest) -> Response:
        served = models.named(asked.model)
        check_texts(asked.ids, "ids", service.settings)
        words = served.bert.tokenizer
        work = partial(_decoded, words.decode, asked.ids, asked.skip_special_tokens)
        return await reply(service, await service.off_loop(work, size_of(asked.ids)))

    @routes.get("/info", summary="What this server is", tags=["status"])
    async def info() -> Response:
        return await reply(service, _info(service))

    return routes


async def predict_labels(
    service: Service,
    served: Served,
    pairs: list[tuple[str, str | None]],
    policy: TooLong,
    names: tuple[str, str] = ("inputs", "inputs"),
    *,
    raw: bool = False,
) -> PlanResult:
    """Every label with its score, best first, for each text or pair: its probability, or with `raw` its logit."""
    check_count(pairs, names[1], service.settings)
    if len({second is None for _, second in pairs}) > 1:
        raise Refusal(422, "texts and pairs do not go together in one request; send them apart", "inputs")
    texts = [first for first, _ in pairs]
    seconds = [second for _, second in pairs if second is not None]
    how = {"refuse_long": policy == "refuse", "raw": raw and served.task != "regress"}  # whose logit is its score
    inputs, called = {"texts": texts, "pairs": seconds or None}, {"texts": names[0], "pairs": names[1]}
    plan = partial(plan_task, served, inputs, service.settings, called, **how)
    as_labels = partial(with_form, plan, partial(_labels, served=served, raw=raw))
    return await service.answer(as_labels, size_of(texts) + size_of(seconds))


def _labels(prediction: Classified | Labeled | Rated | np.ndarray, served: Served, *, raw: bool) -> list[Label]:
    if isinstance(prediction, Rated):
        name = served.bert.checkpoint.labels[0] if served.bert.checkpoint.labels else "score"
        return [{"score": prediction.value if raw else _sigmoid(prediction.value), "label": name}]
    if isinstance(prediction, np.ndarray):
        scores = dict(zip(served.bert.checkpoint.labels, prediction.tolist(), strict=True))
    else:
        scores = dict(prediction.probabilities)
    ranked = sorted(scores.items(), key=lambda item: -item[1])
    return [{"score": score, "label": label} for label, score in ranked]


async def rank(
    service: Service, served: Served, query: str, texts: list[str], policy: TooLong, *, raw: bool
) -> PlanResult:
    """A score for each text: of a model fine-tuned with `regress` its output for the pair, else the cosine."""
    names = ("query", "texts")
    if served.task != "regress":
        return await cosines(service, served, query, texts, policy, names)
    check_count(texts, "texts", service.settings)
    answer = await predict_labels(service, served, [(query, text) for text in texts], policy, names, raw=raw)
    return PlanResult([labels[0]["score"] for labels in answer.value], answer.plan)


async def cosines(
    service: Service, served: Served, sentence: str, others: list[str], policy: TooLong, names: tuple[str, str]
) -> PlanResult:
    """Between one text and others; `names` are what they are called in the request."""
    settings = served.embed_settings(normalize=True)
    if settings.per_token:
        raise Refusal(422, f"the model '{served.name}' has no pooling, so its texts have no single vector", "model")
    wanted = Wanted(settings=settings, too_long=policy)
    plan = partial(plan_cosines, served, sentence, others, wanted, service.settings, names)
    answer = await service.answer(plan, len(sentence) + size_of(others))
    first, *rest = answer.value
    return PlanResult((np.stack(rest) @ first).astype(float).tolist(), answer.plan)


def _tokens(served: Served, texts: list[str], special: bool, pairs: bool) -> list[list[dict[str, Any]]]:
    """As text-embeddings-inference lists them: special tokens have no offsets."""
    words, rows_of_texts = served.bert.tokenizer, []
    for text in texts:
        encoding = words.encode(*both_of(text)) if pairs and PAIR in text else words.encode(text)
        columns = zip(words.tokens(encoding.ids), encoding.ids, encoding.special, encoding.offsets, strict=True)
        rows = []
        for token, number, is_special, (start, stop) in columns:
            offsets = {"start": None, "stop": None} if is_special else {"start": start, "stop": stop}
            if special or not is_special:
                rows.append({"id": number, "text": token, "special": is_special, **offsets})
        rows_of_texts.append(rows)
    return rows_of_texts


def _decoded(decode: Any, lists: list[list[int]], skip_special: bool) -> list[str]:
    return [decode(ids, skip_special=skip_special) for ids in lists]


def _info(service: Service) -> dict[str, Any]:
    first, limits = service.models.named(None), service.settings
    kind: dict[str, Any] = {"embedding": {"pooling": first.bert.embed_settings().pooling}}
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
        "models": [model_card(each) for each in service.models.by_name.values()],
    }


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0
