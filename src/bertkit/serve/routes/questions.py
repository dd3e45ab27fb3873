"""Questions to the heads of pre-training: a route for each row of QUESTIONS."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from bertkit.predict.questions import QUESTIONS, Question, QuestionInputs
from bertkit.serve.engine import TokenSequence, read_head
from bertkit.serve.http.endpoint import check_texts, reported
from bertkit.serve.http.routing import Routes
from bertkit.serve.models import ServedModel
from bertkit.serve.routes.fill import fill_policy
from bertkit.serve.routes.tasks import request_schema, results_reply
from bertkit.serve.service import Plan, Service, size_of
from bertkit.serve.settings import ServeSettings


def question_routes(service: Service) -> Routes:
    """A route for each question; those that no model can answer are not in the documentation."""
    routes = Routes()
    for row in QUESTIONS.values():
        _add_route(routes, service, row)
    return routes


def _add_route(routes: Routes, service: Service, row: Question) -> None:
    async def ask(request: BaseModel) -> Response:
        models, name = service.models, getattr(request, "model", None)
        able = name is None and row.route in models.abilities
        served = models.able(None, row.route) if able else models.named(name)  # one that cannot says why, in the plan
        inputs = {field.name: getattr(request, field.name) for field in row.fields}
        size = sum(map(size_of, inputs.values()))
        return await results_reply(service, served, partial(plan_question, served, row, inputs, service.settings), size)

    ask.__name__ = row.route
    ask.__annotations__["request"] = request_schema(row)
    summary, documented = row.summary[0].upper() + row.summary[1:], row.route in service.models.abilities
    routes.post(f"/{row.route}", summary=summary, tags=["heads"], include_in_schema=documented)(ask)


def plan_question(served: ServedModel, row: Question, inputs: Mapping[str, Any], limits: ServeSettings) -> Plan:
    """The head's answer to each input of the request."""
    for name, texts in inputs.items():
        check_texts(texts, name, limits)
    model, field = served.bert.model, row.fields[-1].name
    reading = QuestionInputs.of(row, model, served.tokenizer, served.limit, **inputs)
    policy = fill_policy(None, limits)
    report = reported(reading.lengths, served.limit, policy, field, f"{field}[{{}}]".format)
    read = read_head(model, row.head, (model.config.depth,))
    sequences = [TokenSequence(passage, read) for passage in reading.passages]
    return Plan(served.shared_encoder, sequences, reading.results, sum(reading.lengths), report)
