"""Predictions of fine-tuned models: a route for each task, with the windows and the decoding of the task itself."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, Field, create_model
from starlette.responses import Response

from bertkit.data.examples import Example
from bertkit.errors import RequestError
from bertkit.finetuning.evaluate import make_windows, window_passages
from bertkit.predict.answers import Answers
from bertkit.predict.questions import Question
from bertkit.serve.engine import ReadReduced, TokenSequence, read_head
from bertkit.serve.http.endpoint import check_texts, length_note, reply
from bertkit.serve.http.routing import Routes
from bertkit.serve.models import ZERO_SHOT, Models, ServedModel
from bertkit.serve.refusals import Refusal
from bertkit.serve.routes.schema import LABEL_FIELDS, MODEL, Choices, Sentences, Texts, example
from bertkit.serve.service import Plan, Service, size_of
from bertkit.serve.settings import ServeSettings
from bertkit.tasks.row import TaskRow
from bertkit.tasks.shared.label_set import LabelSet
from bertkit.tasks.shared.length import Seen
from bertkit.tasks.shared.text_task import TextTask
from bertkit.tasks.table import routes as task_table_routes
from bertkit.tasks.task import Task, Window, by_example
from bertkit.text.length import LengthReport, TooLong

Inputs = Mapping[str, Any]
INPUT_TYPES: dict[str, Any] = {"texts": Texts, "sentences": Sentences, "choices": Choices}
SAME_NAMES: Mapping[str, str] = {}
LABELS_EXAMPLE = {"labels": ["praise", "complaint"]}  # where no model has labels of its own


def task_routes(service: Service) -> Routes:
    """A route for each task; those that no model can answer are not in the documentation."""
    routes = Routes()
    for name, rows in task_table_routes().items():
        if not rows[0].generates:  # generation has routes of its own
            _add_route(routes, service, name, rows)
    return routes


def _add_route(routes: Routes, service: Service, name: str, rows: Sequence[TaskRow]) -> None:
    """One route, for all tasks that take the same request."""
    first = rows[0]

    async def predict(request: BaseModel) -> Response:
        given = asked_labels(request) if first.takes_labels else None
        model = getattr(request, "model", None)
        served = zero_shot_model(service.models, model) if given else service.models.able(model, name)
        inputs = {field.name: getattr(request, field.name) for field in first.fields}
        options = {option.name: getattr(request, option.name) for option in first.options}
        plan = partial(plan_task, served, inputs, service.settings, labels=given)
        row = first if given or served.answers is None else served.answers.task.row
        as_json = partial(row.reply, **options)
        size = sum(size_of(value) for value in inputs.values() if value is not None) + asked_size(given)
        return await results_reply(service, served, partial(converted, plan, as_json), size)

    predict.__name__ = name.replace("-", "_")
    abilities = service.models.abilities
    zero_shot = first.takes_labels and ZERO_SHOT in abilities
    predict.__annotations__["request"] = request_schema(
        first, LABELS_EXAMPLE if zero_shot and name not in abilities else {}
    )
    summary = ", or ".join(row.summary for row in rows)
    documented = name in abilities or zero_shot
    add = routes.post(
        f"/{name}", summary=summary[0].upper() + summary[1:], tags=["heads"], include_in_schema=documented
    )
    add(predict)


def asked_labels(request: Any) -> LabelSet | None:
    """The labels that a request brings."""
    return LabelSet.asked(request.labels, request.template, multi_label=request.multi_label)


def asked_size(labels: LabelSet | None) -> int:
    """About how many characters the labels of a request have; vectors may have to be computed of them."""
    return 0 if labels is None else size_of(labels.statements)


def zero_shot_model(models: Models, name: str | None) -> ServedModel:
    """The model of this name, or the first that takes labels; one that does not says why, in the plan."""
    return models.able(None, ZERO_SHOT) if name is None and ZERO_SHOT in models.abilities else models.named(name)


def request_schema(row: TaskRow | Question, more: Mapping[str, Any] = SAME_NAMES) -> type[BaseModel]:
    """The request model of the route of a task or question; `more` is for the documentation's example."""
    fields: dict[str, Any] = {}
    for field in row.fields:
        kind, about = INPUT_TYPES[field.kind], field.description or None
        fields[field.name] = (
            (kind | None, Field(None, description=about)) if field.optional else (kind, Field(description=about))
        )
    for option in row.options:
        fields[option.name] = (int, Field(option.default, ge=1, le=option.maximum, description=option.description))
    if isinstance(row, TaskRow) and row.takes_labels:
        fields |= LABEL_FIELDS
    fields["model"] = (str | None, MODEL)
    name = f"{row.route.title().replace('-', '')}Request"
    config = example(**row.request_example, **more)
    return create_model(name, __config__=config, __doc__=row.request_summary, **fields)


async def results_reply(service: Service, served: ServedModel, plan: Callable[[], Plan], size: int) -> Response:
    """{"model", "results"}: the predictions of a plan, and a note where texts were over the limit."""
    result = await service.answer(plan, size)
    content = {"model": served.name, "results": result.value, **length_note(result.plan.report)}
    return await reply(service, content, result.plan, max(result.plan.tokens, result.plan.result_size))


def converted(make: Callable[[], Plan], convert: Callable[[Any], Any]) -> Plan:
    """A plan whose predictions are converted where they are made: off the event loop."""
    plan = make()
    predict = plan.finish
    plan.finish = lambda rows: [convert(prediction) for prediction in predict(rows)]
    return plan


def plan_task(
    served: ServedModel,
    inputs: Inputs,
    limits: ServeSettings,
    names: Mapping[str, str] = SAME_NAMES,
    *,
    labels: LabelSet | None = None,
    refuse_long: bool = False,
    raw: bool = False,
) -> Plan:
    """A prediction for each example of a request; with `raw`, of tasks on texts, its logits.

    `names`: the names of inputs in the client's request, where they differ from those of the task's row. `labels`: to
    choose from, if they are not those that the model was fine-tuned for.
    """
    answers = served.answers if labels is None else served.bert.zero_shot.answers(labels)
    assert answers is not None  # the route asked for this ability
    row = answers.task.row
    inputs = {name: value for name, value in inputs.items() if value is not None}
    _check_inputs(row, inputs, limits, names)
    _check_passes(answers.task, len(next(iter(inputs.values()))), limits)
    examples = [answers.task.preprocess(example) for example in row.examples(**inputs)]
    plan, windows = _plan_examples(served, answers, examples, raw=raw)
    if row.reports_length:
        last = list(inputs)[-1]
        # Independent windows are texts of their own, and are counted as they come.
        seen = [window.detail for window in windows] if answers.task.independent_windows else _seen_by_example(windows)
        plan.report = _length_report(seen, served.limit, names.get(last, last), refuse_long)
    return plan


def _check_inputs(row: TaskRow, inputs: Inputs, limits: ServeSettings, names: Mapping[str, str]) -> None:
    for field in row.fields:
        if field.name in inputs:
            value = inputs[field.name]
            texts = list(chain.from_iterable(value)) if field.kind == "choices" else value
            check_texts(texts, names.get(field.name, field.name), limits)


def _check_passes(task: Task, count: int, limits: ServeSettings) -> None:
    """Refuse more sequences than texts may be sent, where every label of a text is one."""
    if task.passes > 1 and count * task.passes > limits.max_texts:
        fit = max(1, limits.max_texts // task.passes)
        raise Refusal(
            413, f"{count:,} texts with {task.passes} labels are over the limit; send {fit:,} at a time", "texts"
        )


def _seen_by_example(windows: Sequence[Window]) -> list[Seen]:
    seen: dict[int, Seen] = {}
    for window in windows:
        seen.setdefault(window.example, window.detail)
    return [*seen.values()]


def _length_report(seen: Sequence[Seen], limit: int, field: str, refuse_long: bool) -> LengthReport:
    """Which texts did not fit into one sequence; the model's own length policy decides what is done with them."""
    long = tuple((number, text.tokens) for number, text in enumerate(seen) if text.cut or text.windows > 1)
    if long and refuse_long:
        number, tokens = long[0]
        message = f"{field}[{number}] has {tokens} tokens, more than fit into the limit of {limit}; shorten it"
        raise Refusal(413, f"{message}, or set too_long to 'truncate'", field)
    policy: TooLong = "truncate" if any(text.cut for text in seen) else "window"
    return LengthReport(limit, policy, long, f"{field}[{{}}]".format)


def _plan_examples(
    served: ServedModel, answers: Answers, examples: Sequence[Example], *, raw: bool
) -> tuple[Plan, list[Window]]:
    """The task's windows through the shared encoder, and its decoding of the head's outputs."""
    task = answers.task
    if raw and not isinstance(task, TextTask):
        raise RequestError(f"'{task.name}' has no raw scores of texts")
    windows = make_windows(task, examples)
    depth, joins = served.bert.model.config.depth, task.joins_windows
    read = ReadReduced(answers.model, (depth,)) if joins else read_head(answers.model, task.head, (depth,))
    sequences = [TokenSequence(passage, read) for passage in window_passages(windows, served.bert.model.config)]

    def finish(rows: list[Any]) -> list[Any]:
        outputs = _joined_outputs(answers, windows, rows) if joins else rows
        if raw and isinstance(task, TextTask):
            return [task.pool_outputs(of_example) for _, _, of_example in by_example(examples, windows, outputs)]
        return task.decode(examples, windows, outputs, answers.decision)

    return Plan(served.shared_encoder, sequences, finish, sum(map(len, sequences))), windows


def _joined_outputs(answers: Answers, windows: Sequence[Window], rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Hierarchical reading: the mean over an example's windows goes through the pooler's dense layer and the head."""
    model = answers.model
    assert model.pooler is not None  # only pooled heads join windows
    outputs: list[np.ndarray] = []
    start = 0
    for _, run in groupby(windows, key=lambda window: window.example):
        count = sum(1 for _ in run)
        mean = torch.from_numpy(np.stack(rows[start : start + count])).mean(dim=0, keepdim=True)
        mean = mean.to(model.device, model.encoder.dtype)
        with torch.inference_mode():
            logits = model.heads[answers.task.head](model.pooler.transform(mean))
        outputs += [logits[0].float().cpu().numpy()] * count
        start += count
    return outputs
