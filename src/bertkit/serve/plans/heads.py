"""What heads are asked, as plans: blanks, and every task of fine-tuning through its own windows and decoding."""

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit.data.examples import ChoiceExample, Example, Place, QuestionExample, TaggedExample, TextExample
from bertkit.errors import RequestError
from bertkit.finetuning.evaluate import make_windows, window_passages
from bertkit.predict.answers import Answers
from bertkit.predict.length import LengthReport, TooLong
from bertkit.serve.engine import ReadReduced, TokenSequence, read_head
from bertkit.serve.http.limits import check_texts
from bertkit.serve.models import Served
from bertkit.serve.refusals import Refusal
from bertkit.serve.service import Plan
from bertkit.serve.settings import ServeSettings
from bertkit.tasks.classify import TextTask
from bertkit.tasks.length import Seen
from bertkit.tasks.tag import Tagged, located, words_of
from bertkit.tasks.task import Window, by_example

Words = tuple[str, ...]


def plan_classify(
    served: Served,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    limits: ServeSettings,
    names: tuple[str, str] = ("texts", "pairs"),
    *,
    refuse_long: bool = False,
    raw: bool = False,
) -> Plan:
    """A Classified, Labelled or Rated for each text or pair, or with `raw` its logits.

    `names` are what texts and pairs are called in the request.
    """
    one, other = names
    check_texts(texts, one, limits)
    if pairs is not None:
        check_texts(pairs, other, limits)
    seconds: Sequence[str | None] = [None] * len(texts) if pairs is None else pairs
    if len(seconds) != len(texts):
        raise RequestError(f"{len(texts)} texts came with {len(seconds)} pairs; give as many of both")
    both = enumerate(zip(texts, seconds, strict=True))
    examples = [TextExample(text, pair, None, _place(number)) for number, (text, pair) in both]
    plan, windows = _planned(served, examples, raw=raw)
    plan.lengths = _report_seen(windows, served.limit, one if pairs is None else other, refuse_long)
    return plan


def plan_tag(served: Served, texts: Sequence[str | Words], limits: ServeSettings, field: str = "texts") -> Plan:
    """A Tagged for each text; spans of plain texts say at which characters they stand."""
    check_texts(texts, field, limits)
    tokenizer = served.bert.tokenizer
    places = [words_of(tokenizer, text) if isinstance(text, str) else None for text in texts]
    words = [
        tuple(text[a:b] for a, b in own) if own is not None and isinstance(text, str) else tuple(text)
        for text, own in zip(texts, places, strict=True)
    ]
    plan = _plan(served, [TaggedExample(own, None, _place(number)) for number, own in enumerate(words)])

    def finish(rows: list[Any]) -> list[Tagged]:
        return [
            located(tagged, text, own) if own is not None and isinstance(text, str) else tagged
            for tagged, text, own in zip(plan.finish(rows), texts, places, strict=True)
        ]

    return Plan(plan.shared_encoder, plan.sequences, finish, plan.tokens)


def told_as(make: Callable[[], Plan], tell: Callable[[Any], Any]) -> Plan:
    """A plan whose predictions are told in another form, made where they are: off the event loop."""
    plan = make()
    predict = plan.finish
    plan.finish = lambda rows: [tell(prediction) for prediction in predict(rows)]
    return plan


def plan_answer(served: Served, questions: Sequence[str], passages: Sequence[str], limits: ServeSettings) -> Plan:
    """An Answered for each question and its passage, through windows where the passage is long."""
    check_texts(questions, "question", limits)
    check_texts(passages, "passage", limits)
    if len(questions) != len(passages):
        raise RequestError(f"{len(questions)} questions came with {len(passages)} passages; give as many of both")
    both = enumerate(zip(questions, passages, strict=True))
    return _plan(
        served,
        [
            QuestionExample(str(number), question, passage, (), "", _place(number), labelled=False)
            for number, (question, passage) in both
        ],
    )


def plan_choose(
    served: Served, questions: Sequence[str], choices: Sequence[Sequence[str]], limits: ServeSettings
) -> Plan:
    """A Chosen for each question and its choices."""
    check_texts(questions, "question", limits)
    check_texts([choice for own in choices for choice in own], "choices", limits)
    if len(questions) != len(choices):
        raise RequestError(f"{len(questions)} questions came with {len(choices)} lists of choices; give as many")
    both = enumerate(zip(questions, choices, strict=True))
    return _plan(served, [ChoiceExample(asked, tuple(own), None, _place(n)) for n, (asked, own) in both])


def _report_seen(windows: Sequence[Window], limit: int, field: str, refuse_long: bool) -> LengthReport:
    """Which texts did not fit into one sequence; what is done with them is what the model was taught with."""
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


def _plan(served: Served, examples: Sequence[Example]) -> Plan:
    return _planned(served, examples)[0]


def _planned(served: Served, examples: Sequence[Example], *, raw: bool = False) -> tuple[Plan, list[Window]]:
    """The task's own windows through the shared encoder, and its own decoding of what the head gives.

    `raw`, of classifiers, is each text's logits instead: [labels], pooled over its windows.
    """
    answers = served.answers
    assert answers is not None  # the route asked for this ability
    windows = make_windows(answers.task, examples)
    depth = served.bert.model.config.depth
    joined = bool(getattr(answers.task, "joins_windows", False))
    read = ReadReduced(answers.model, (depth,)) if joined else read_head(answers.model, answers.task.head, (depth,))
    sequences = [TokenSequence(passage, read) for passage in window_passages(windows, served.bert.model.config)]

    def finish(rows: list[Any]) -> list[Any]:
        outputs = _joined(answers, windows, rows) if joined else rows
        if raw and isinstance(answers.task, TextTask):
            return [answers.task.pooled(own) for _, _, own in by_example(examples, windows, outputs)]
        return answers.task.decode(examples, windows, outputs, answers.decision)

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


def _place(number: int) -> Place:
    return Place(Path("the request"), number, "number")
