"""Masked words: the candidates for each [MASK] of a text, as `Bert.fill` gives them."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import Response

from bertkit.predict.fill import Filled, fill_blanks, find_blanks
from bertkit.serve.engine import ReadBlanks, TokenSequence
from bertkit.serve.http.endpoint import check_size, check_texts, reported
from bertkit.serve.http.routing import Routes
from bertkit.serve.models import ServedModel
from bertkit.serve.refusals import Refusal
from bertkit.serve.routes.schema import MODEL, Texts, example
from bertkit.serve.routes.tasks import converted, results_reply
from bertkit.serve.service import Plan, Service, size_of
from bertkit.serve.settings import ServeSettings
from bertkit.text.length import TooLong


class FillRequest(BaseModel):
    """Texts with blanks."""

    model_config = example(text="Paris is the [MASK] of France.", top=3)

    text: Texts
    top: int = Field(5, ge=1, description="Words for each blank.")
    whole_words: bool = Field(True, description="False: every token is a candidate, such as ##s and [UNK].")
    model: str | None = MODEL
    too_long: TooLong | None = Field(None, description="By default window, unless the server refuses long texts.")


def fill_routes(service: Service) -> Routes:
    """/fill."""
    routes, documented = Routes(), "fill" in service.models.abilities

    @routes.post("/fill", summary="The blanks of texts", tags=["heads"], include_in_schema=documented)
    async def fill(request: FillRequest) -> Response:
        served = service.models.able(request.model, "fill")
        policy = fill_policy(request.too_long, service.settings)
        limits, whole_words = service.settings, request.whole_words
        plan = partial(plan_fill, served, request.text, request.top, policy, limits, whole_words=whole_words)
        return await results_reply(service, served, partial(converted, plan, _as_json), size_of(request.text))

    return routes


def _as_json(filled: list[Filled]) -> list[dict[str, Any]]:
    return [asdict(candidate) for candidate in filled]


def fill_policy(too_long: TooLong | None, limits: ServeSettings) -> TooLong:
    """The request's policy; by default long texts are read through windows, for a blank may be anywhere."""
    return too_long or ("refuse" if limits.too_long == "refuse" else "window")


def plan_fill(
    served: ServedModel,
    texts: Sequence[str],
    top: int,
    too_long: TooLong,
    limits: ServeSettings,
    field: str = "text",
    *,
    whole_words: bool,
) -> Plan:
    """The `top` words for each blank of each text."""
    check_texts(texts, field, limits)
    bert = served.bert
    model, tokenizer = bert.model, bert.tokenizer
    policy: TooLong = "window" if too_long == "refuse" else too_long  # `reported` below refuses, with the field's name
    find = partial(find_blanks, model, tokenizer, top=top, limit=served.limit, too_long=policy, whole_words=whole_words)
    masked = [find(text) for text in texts]
    lengths = [len(blanks.encoding) for blanks in masked]
    report = reported(lengths, served.limit, too_long, field, f"{field}[{{}}]".format)
    words = sum(len(blanks.positions) * top for blanks in masked)
    if words > limits.max_words:
        raise Refusal(
            413,
            f"{words:,} words for the blanks are over {limits.max_words:,}; ask for fewer words or send fewer texts",
        )
    # Every candidate carries the whole text.
    characters = sum(len(blanks.text) * len(blanks.positions) * top for blanks in masked)
    check_size(characters // 8, "ask for fewer words or shorter texts", limits)
    sequences = [
        TokenSequence(
            passage,
            ReadBlanks(model, tokenizer, [at for _, at in inside], blanks.kinds_in(inside), top, (model.config.depth,)),
        )
        for blanks in masked
        for passage, inside in blanks.views
    ]

    def finish(rows: list[Any]) -> list[list[Filled]]:
        remaining = iter(rows)
        return [fill_blanks(tokenizer, blanks, [next(remaining) for _ in blanks.views]) for blanks in masked]

    return Plan(served.shared_encoder, sequences, finish, sum(lengths), report, result_size=characters + words)
