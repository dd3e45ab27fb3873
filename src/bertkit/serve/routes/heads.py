"""Every head, and what happens inside: the Python API's own words over HTTP."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from starlette.responses import Response

from bertkit.predict.fill import Filled
from bertkit.serve.http.limits import fill_policy, size_of
from bertkit.serve.http.routing import Routes, as_json, encoded, length_note, reply
from bertkit.serve.models import Served
from bertkit.serve.plans.fill import plan_fill
from bertkit.serve.plans.heads import plan_answer, plan_choose, plan_classify, plan_tag, told_as
from bertkit.serve.plans.inside import plan_attention
from bertkit.serve.routes.schema import (
    AnswerRequest,
    AttentionRequest,
    ChooseRequest,
    ClassifyRequest,
    FillRequest,
    TagRequest,
)
from bertkit.serve.service import Plan, Service


def head_routes(service: Service) -> Routes:
    """/fill, /classify, /tag, /answer and /choose; those that no model can answer are not in the documentation."""
    routes, models, limits = Routes(), service.models, service.settings

    @routes.post("/fill", summary="The blanks of texts", tags=["heads"], include_in_schema=_can(service, "fill"))
    async def fill(asked: FillRequest) -> Response:
        served = models.able(asked.model, "fill")
        policy = fill_policy(asked.too_long, limits)
        plan = partial(plan_fill, served, asked.text, asked.top, policy, limits)
        return await _predicted(service, served, partial(told_as, plan, _candidates), size_of(asked.text))

    @routes.post("/classify", summary="Labels or numbers", tags=["heads"], include_in_schema=_can(service, "classify"))
    async def classify(asked: ClassifyRequest) -> Response:
        served = models.able(asked.model, "classify")
        plan = partial(plan_classify, served, asked.texts, asked.pairs, limits)
        return await _predicted(service, served, partial(told_as, plan, as_json), size_of(asked.texts))

    @routes.post("/tag", summary="A tag for each word", tags=["heads"], include_in_schema=_can(service, "tag"))
    async def tag(asked: TagRequest) -> Response:
        served = models.able(asked.model, "tag")
        plan = partial(plan_tag, served, asked.texts, limits)
        return await _predicted(service, served, partial(told_as, plan, as_json), size_of(asked.texts))

    @routes.post("/answer", summary="Answers in passages", tags=["heads"], include_in_schema=_can(service, "answer"))
    async def answer(asked: AnswerRequest) -> Response:
        served = models.able(asked.model, "answer")
        plan = partial(plan_answer, served, asked.question, asked.passage, limits)
        tell = partial(as_json, best=asked.best)
        return await _predicted(service, served, partial(told_as, plan, tell), size_of(asked.passage))

    @routes.post("/choose", summary="Which choice fits", tags=["heads"], include_in_schema=_can(service, "choose"))
    async def choose(asked: ChooseRequest) -> Response:
        served = models.able(asked.model, "choose")
        plan = partial(plan_choose, served, asked.question, asked.choices, limits)
        return await _predicted(service, served, partial(told_as, plan, as_json), size_of(asked.question))

    return routes


def inside_routes(service: Service) -> Routes:
    """/attention and /neuron."""
    routes = Routes()

    @routes.post("/attention", summary="What every token looks at", tags=["inside"])
    async def attention(asked: AttentionRequest) -> Response:
        return await _inside(service, asked, neurons=False)

    @routes.post("/neuron", summary="The queries and keys behind it", tags=["inside"])
    async def neuron(asked: AttentionRequest) -> Response:
        return await _inside(service, asked, neurons=True)

    return routes


def _can(service: Service, ability: str) -> bool:
    return ability in service.models.abilities


def _candidates(filled: list[Filled]) -> list[dict[str, Any]]:
    return [as_json(candidate) for candidate in filled]


async def _predicted(service: Service, served: Served, plan: Callable[[], Plan], size: int) -> Response:
    answer = await service.answer(plan, size)
    content = {"model": served.name, "results": answer.value, **length_note(answer.plan.lengths)}
    return await reply(service, content, answer.plan, max(answer.plan.tokens, answer.plan.made))


async def _inside(service: Service, asked: AttentionRequest, *, neurons: bool) -> Response:
    served = service.models.named(asked.model)
    plan = partial(
        plan_attention, served, asked.text, asked.pair, asked.layer, asked.head, service.settings, neurons=neurons
    )
    answer = await service.answer(plan, len(asked.text))
    numbers = 0
    for layer in answer.value["layers"]:
        for name, value in layer.items():
            if isinstance(value, np.ndarray):
                numbers += value.size
                layer[name] = encoded(value, asked.encoding_format)
    return await reply(service, {"model": served.name, **answer.value}, numbers=numbers)
