"""Requests to the heads of tasks as plans: the task's own windows and decoding, whichever task it is."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from typing import Any

import numpy as np
import torch

from bertkit.data.examples import Example
from bertkit.errors import RequestError
from bertkit.finetuning.evaluate import make_windows, window_passages
from bertkit.predict.answers import Answers
from bertkit.serve.engine import ReadReduced, TokenSequence, read_head
from bertkit.serve.http.limits import check_texts
from bertkit.serve.models import Served
from bertkit.serve.refusals import Refusal
from bertkit.serve.service import Plan
from bertkit.serve.settings import ServeSettings
from bertkit.tasks.row import TaskRow
from bertkit.tasks.shared.length import Seen
from bertkit.tasks.shared.text_task import TextTask
from bertkit.tasks.task import Window, by_example
from bertkit.text.length import LengthReport, TooLong

Inputs = Mapping[str, Any]
NO_NAMES: Mapping[str, str] = {}


def plan_task(
    served: Served,
    inputs: Inputs,
    limits: ServeSettings,
    names: Mapping[str, str] = NO_NAMES,
    *,
    refuse_long: bool = False,
    raw: bool = False,
) -> Plan:
    """A prediction for each example of a request, or with `raw`, of tasks on texts, its logits.

    `names` are what inputs are called in the client's request, where that is not as the task's row has it.
    """
    answers = served.answers
    assert answers is not None  # the route asked for this ability
    row = answers.task.row
    given = {name: value for name, value in inputs.items() if value is not None}
    _check_inputs(row, given, limits, names)
    examples = [answers.task.preprocess(example) for example in row.examples(**given)]
    plan, windows = _planned(served, answers, examples, raw=raw)
    if row.reports_length:
        last = list(given)[-1]
        plan.lengths = _report_seen(windows, served.limit, names.get(last, last), refuse_long)
    return plan


def replied(make: Callable[[], Plan], served: Served, options: Mapping[str, int]) -> Plan:
    """A plan whose predictions become JSON objects, as the task's row has them."""
    assert served.answers is not None
    return with_form(make, partial(served.answers.task.row.reply, **options))


def with_form(make: Callable[[], Plan], tell: Callable[[Any], Any]) -> Plan:
    """A plan whose predictions are told in another form, made where they are: off the event loop."""
    plan = make()
    predict = plan.finish
    plan.finish = lambda rows: [tell(prediction) for prediction in predict(rows)]
    return plan


def _check_inputs(row: TaskRow, given: Inputs, limits: ServeSettings, names: Mapping[str, str]) -> None:
    for field in row.fields:
        if field.name in given:
            value = given[field.name]
            texts = list(chain.from_iterable(value)) if field.kind == "choices" else value
            check_texts(texts, names.get(field.name, field.name), limits)


def _report_seen(windows: Sequence[Window], limit: int, field: str, refuse_long: bool) -> LengthReport:
    """Which texts did not fit into one sequence; what is done with them is the model's own length policy."""
    seen: dict[int, Seen] = {}
    for window in windows:
        seen.setdefault(window.example, window.detail)
    long = tuple((number, own.tokens) for number, own in seen.items() if own.cut or own.windows > 1)
    if long and refuse_long:
        number, tokens = long[0]
        said = f"{field}[{number}] has {tokens} tokens, more than fit into the limit of {limit}; shorten it"
        raise Refusal(413, f"{said}, or choose to truncate", field)
    done: TooLong = "truncate" if any(own.cut for own in seen.values()) else "window"
    return LengthReport(limit, done, long, f"{field}[{{}}]".format)


def _planned(served: Served, answers: Answers, examples: Sequence[Example], *, raw: bool) -> tuple[Plan, list[Window]]:
    """The task's own windows through the shared encoder, and its own decoding of the head's outputs."""
    task = answers.task
    if raw and not isinstance(task, TextTask):
        raise RequestError(f"'{task.name}' has no raw scores of texts")
    windows = make_windows(task, examples)
    depth, joined = served.bert.model.config.depth, task.joins_windows
    read = ReadReduced(answers.model, (depth,)) if joined else read_head(answers.model, task.head, (depth,))
    sequences = [TokenSequence(passage, read) for passage in window_passages(windows, served.bert.model.config)]

    def finish(rows: list[Any]) -> list[Any]:
        outputs = _joined(answers, windows, rows) if joined else rows
        if raw and isinstance(task, TextTask):
            return [task.pool_outputs(own) for _, _, own in by_example(examples, windows, outputs)]
        return task.decode(examples, windows, outputs, answers.decision)

    return Plan(served.shared_encoder, sequences, finish, sum(map(len, sequences))), windows


def _joined(answers: Answers, windows: Sequence[Window], rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Hierarchical reading: the mean of an example's windows goes through the pooler's map and the head."""
    model = answers.model
    assert model.pooler is not None  # only pooled heads join windows
    found: list[np.ndarray] = []
    at = 0
    for _, run in groupby(windows, key=lambda window: window.example):
        count = sum(1 for _ in run)
        mean = torch.from_numpy(np.stack(rows[at : at + count])).mean(dim=0, keepdim=True)
        mean = mean.to(model.device, model.encoder.dtype)
        with torch.inference_mode():
            logits = model.heads[answers.task.head](model.pooler.transform(mean))
        found += [logits[0].float().cpu().numpy()] * count
        at += count
    return found
