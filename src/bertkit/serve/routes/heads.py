"""Every head, and what happens inside: the Python API's own words over HTTP."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from pydantic import BaseModel
from starlette.responses import Response

from bertkit.predict.fill import Filled
from bertkit.serve.http.limits import fill_policy, size_of
from bertkit.serve.http.routing import Routes, encoded, length_note, reply
from bertkit.serve.models import Served
from bertkit.serve.plans.fill import plan_fill
from bertkit.serve.plans.heads import plan_task, replied, with_form
from bertkit.serve.plans.inside import plan_attention
from bertkit.serve.routes.schema import AttentionRequest, FillRequest, request_schema
from bertkit.serve.service import Plan, Service
from bertkit.tasks.row import TaskRow
from bertkit.tasks.table import routes as task_routes


def head_routes(service: Service) -> Routes:
    """/fill, and a route for each task; those that no model can answer are not in the documentation."""
    routes, models, limits = Routes(), service.models, service.settings

    @routes.post("/fill", summary="The blanks of texts", tags=["heads"], include_in_schema=_can(service, "fill"))
    async def fill(asked: FillRequest) -> Response:
        served = models.able(asked.model, "fill")
        policy = fill_policy(asked.too_long, limits)
        plan = partial(plan_fill, served, asked.text, asked.top, policy, limits)
        return await _predicted(service, served, partial(with_form, plan, _candidates), size_of(asked.text))

    for name, rows in task_routes().items():
        _add_route(routes, service, name, rows)
    return routes


def _add_route(routes: Routes, service: Service, name: str, rows: Sequence[TaskRow]) -> None:
    """One route, for all tasks that take the same request."""
    first = rows[0]

    async def ask(asked: BaseModel) -> Response:
        served = service.models.able(getattr(asked, "model", None), name)
        inputs = {field.name: getattr(asked, field.name) for field in first.fields}
        options = {option.name: getattr(asked, option.name) for option in first.options}
        plan = partial(plan_task, served, inputs, service.settings)
        size = sum(size_of(value) for value in inputs.values() if value is not None)
        return await _predicted(service, served, partial(replied, plan, served, options), size)

    ask.__name__ = name.replace("-", "_")
    ask.__annotations__["asked"] = request_schema(first)
    summary = ", or ".join(row.summary for row in rows)
    can = _can(service, name)
    routes.post(f"/{name}", summary=summary[0].upper() + summary[1:], tags=["heads"], include_in_schema=can)(ask)


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
    return [asdict(candidate) for candidate in filled]


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
