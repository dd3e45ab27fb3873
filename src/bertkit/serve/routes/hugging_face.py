"""Requests of Hugging Face's InferenceClient: {"inputs": ..., "parameters": {...}} to one address, by task."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from pydantic import ValidationError
from starlette.responses import Response

from bertkit.predict.fill import Filled
from bertkit.serve.http.limits import check_count, fill_policy, length_policy, size_of
from bertkit.serve.http.routing import Routes, reply
from bertkit.serve.models import Served
from bertkit.serve.plans.fill import plan_fill
from bertkit.serve.plans.heads import plan_task, with_form
from bertkit.serve.refusals import Refusal, wrong_field
from bertkit.serve.routes.schema_tei import HuggingFaceRequest
from bertkit.serve.routes.tei import SENTENCES, cosines, predict_labels
from bertkit.serve.routes.vectors import EmbedRequest, embed_reply
from bertkit.serve.service import PlanResult, Service
from bertkit.tasks.tag import Tagged

Parameters = dict[str, Any]
Task = Callable[[Service, Served, Any, Parameters], Awaitable[PlanResult]]


def hugging_face_routes(service: Service) -> Routes:
    """POST /, /models/NAME and /models/NAME/pipeline/TASK."""
    routes = Routes()

    @routes.post("/", summary="As Hugging Face's InferenceClient asks", tags=["hugging face"])
    async def first_model(asked: HuggingFaceRequest) -> Response:
        return await _answer(service, service.models.named(None), asked, None)

    @routes.post("/models/{name}", summary="The same of one model", tags=["hugging face"])
    async def named_model(name: str, asked: HuggingFaceRequest) -> Response:
        return await _answer(service, service.models.named(name), asked, None)

    @routes.post("/models/{name}/pipeline/{task}", summary="The same for one task", tags=["hugging face"])
    async def named_task(name: str, task: str, asked: HuggingFaceRequest) -> Response:
        return await _answer(service, service.models.named(name), asked, task)

    return routes


async def _answer(service: Service, served: Served, asked: HuggingFaceRequest, task: str | None) -> Response:
    name = task or _guess(served, asked.inputs)
    if name == "feature-extraction":
        return await _features(service, served, asked)
    if name not in TASKS:
        known = ", ".join(["feature-extraction", *TASKS])
        raise Refusal(404, f"no task '{name:.40}' here; choose from: {known}")
    answer = await TASKS[name](service, served, asked.inputs, asked.parameters or {})
    return await reply(service, answer.value, answer.plan, max(answer.plan.tokens, answer.plan.made))


def _guess(served: Served, inputs: Any) -> str:
    """The task by the form of the inputs, else the one the model was fine-tuned for."""
    if isinstance(inputs, dict):
        return "question-answering" if "question" in inputs else "sentence-similarity"
    first = inputs[0] if isinstance(inputs, list) and inputs else inputs
    has_blank = isinstance(first, str) and served.bert.tokenizer.mask_token in first
    if has_blank and "fill" in served.abilities:
        return "fill-mask"
    return {"classify": "text-classification", "tag": "token-classification"}.get(
        served.abilities[0], "feature-extraction"
    )


async def _features(service: Service, served: Served, asked: HuggingFaceRequest) -> Response:
    """A vector for each text; the client sends its parameters beside the inputs, or among the parameters."""
    given = {**(asked.parameters or {}), **(asked.model_extra or {}), "inputs": asked.inputs}
    if isinstance(asked.inputs, list) and asked.inputs and type(asked.inputs[0]) is not int:  # else one text's ids
        check_count(asked.inputs, "inputs", service.settings)
    try:
        return await embed_reply(service, EmbedRequest.model_validate(given), served)
    except ValidationError as error:
        raise wrong_field(error.errors()) from error


async def _text_classification(service: Service, served: Served, inputs: Any, parameters: Parameters) -> PlanResult:
    _needs(served, "classify")
    texts, top = _texts(service, inputs), _whole(parameters, "top_k", None)
    policy = length_policy(None, None, service.settings)
    answer = await predict_labels(service, served, [(text, None) for text in texts], policy)
    return PlanResult([labels[:top] for labels in answer.value], answer.plan)


async def _token_classification(service: Service, served: Served, inputs: Any, parameters: Parameters) -> PlanResult:
    """Spans by default, as the client's models give them; words with aggregation_strategy 'none'."""
    _needs(served, "tag")
    texts, ignored = _texts(service, inputs), _ignored(service, parameters)
    plan = partial(plan_task, served, {"texts": texts}, service.settings, {"texts": "inputs"})
    answer = await service.answer(partial(with_form, plan, partial(_spans, ignored=ignored)), size_of(texts))
    return _alone(inputs, answer)


def _spans(tagged: Tagged, ignored: list[str]) -> list[dict[str, Any]]:
    """Spans, not subwords: tags are per word here, so strategy "none" has nothing finer to show."""
    return [
        {"entity_group": span.label, "score": span.probability, "word": span.text}
        | dict(zip(("start", "end"), span.characters or (None, None), strict=True))
        for span in tagged.spans
        if span.label not in ignored
    ]


def _ignored(service: Service, parameters: Parameters) -> list[str]:
    """Labels that the client does not want to see."""
    value = parameters.get("ignore_labels")
    if value is None or value == []:
        return []
    if not _are_texts(service, value, "parameters.ignore_labels"):
        raise Refusal(422, "parameters.ignore_labels must be a list of texts", "parameters.ignore_labels")
    labels: list[str] = value
    return labels


async def _question_answering(service: Service, served: Served, inputs: Any, parameters: Parameters) -> PlanResult:
    _needs(served, "answer")
    question, context = _fields(service, inputs, "question", "context")
    plan = partial(plan_task, served, {"question": [question], "passage": [context]}, service.settings)
    answer = await service.answer(plan, len(context))
    [best] = answer.value
    top = _whole(parameters, "top_k", 1)
    none = {"answer": "", "score": best.probability, "start": 0, "end": 0}
    rows = [
        {"answer": each.text, "score": each.probability, "start": each.start, "end": each.end}
        for each in best.candidates
    ]
    if not rows or (best.start is None and parameters.get("handle_impossible_answer")):
        rows = [none, *rows]
    return PlanResult(rows[0] if top == 1 else rows[:top], answer.plan)


async def _fill_mask(service: Service, served: Served, inputs: Any, parameters: Parameters) -> PlanResult:
    """For one blank a list of candidates, for several a list of lists, as transformers has it."""
    _needs(served, "fill")
    if parameters.get("targets"):
        raise Refusal(422, "words to choose from are not taken here; leave targets out", "parameters.targets")
    texts = _texts(service, inputs)
    top, policy = _whole(parameters, "top_k", 5) or 5, fill_policy(None, service.settings)
    plan = partial(plan_fill, served, texts, top, policy, service.settings, "inputs")
    answer = await service.answer(partial(with_form, plan, partial(_candidates, served)), size_of(texts))
    return _alone(inputs, answer)


def _candidates(served: Served, filled: list[Filled]) -> list[Any]:
    vocab, rows = served.bert.tokenizer.vocab, dict[int, list[dict[str, Any]]]()
    for each in filled:
        token = vocab.get(each.word, served.bert.tokenizer.unknown_id)
        row = {"score": each.probability, "token": token, "token_str": each.word, "sequence": each.text}
        rows.setdefault(each.blank, []).append(row)
    return rows[0] if len(rows) == 1 else list(rows.values())


def _alone(inputs: Any, answer: PlanResult) -> PlanResult:
    """One for one, a list for a list."""
    return PlanResult(answer.value[0], answer.plan) if isinstance(inputs, str) else answer


async def _sentence_similarity(service: Service, served: Served, inputs: Any, parameters: Parameters) -> PlanResult:
    source, sentences = _fields(service, inputs, "source_sentence", "sentences", lists=("sentences",))
    policy = length_policy(None, None, service.settings)
    return await cosines(service, served, source, sentences, policy, SENTENCES)


TASKS: dict[str, Task] = {
    "text-classification": _text_classification,
    "token-classification": _token_classification,
    "question-answering": _question_answering,
    "fill-mask": _fill_mask,
    "sentence-similarity": _sentence_similarity,
}


def _needs(served: Served, ability: str) -> None:
    if ability not in served.abilities:
        can = ", ".join(served.abilities)
        raise Refusal(422, f"the model '{served.name}' cannot {ability}; it can {can}", "model")


def _texts(service: Service, inputs: Any) -> list[str]:
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not _are_texts(service, texts, "inputs"):
        raise Refusal(422, "inputs must be a text or a list of texts", "inputs")
    return texts


def _are_texts(service: Service, value: Any, field: str) -> bool:
    """Whether it is a list of texts, one at least; too many are refused before they are looked at."""
    if not isinstance(value, list):
        return False
    check_count(value, field, service.settings)
    return bool(value) and all(isinstance(each, str) for each in value)


def _fields(service: Service, inputs: Any, *names: str, lists: tuple[str, ...] = ()) -> list[Any]:
    values = []
    for name in names:
        value = inputs.get(name) if isinstance(inputs, dict) else None
        right = _are_texts(service, value, f"inputs.{name}") if name in lists else isinstance(value, str)
        if not right:
            what = "a list of texts" if name in lists else "a text"
            raise Refusal(422, f"inputs.{name} must be {what}", f"inputs.{name}")
        values.append(value)
    return values


def _whole(parameters: Parameters, name: str, default: int | None) -> int | None:
    value = parameters.get(name)
    if value is None:
        return default
    if type(value) is not int or value < 1:
        raise Refusal(422, f"parameters.{name} must be a whole number from 1", f"parameters.{name}")
    return value
