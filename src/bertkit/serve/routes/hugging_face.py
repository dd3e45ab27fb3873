"""Requests of Hugging Face's InferenceClient: {"inputs": ..., "parameters": {...}} to one address, by task."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.responses import Response

from bertkit.predict.fill import Filled
from bertkit.serve.http.endpoint import check_count, length_policy, reply
from bertkit.serve.http.routing import Routes
from bertkit.serve.models import Models, ServedModel
from bertkit.serve.refusals import Refusal, wrong_field
from bertkit.serve.routes.embeddings import EmbedRequest, embed_reply
from bertkit.serve.routes.fill import fill_policy, plan_fill
from bertkit.serve.routes.tasks import asked_size, converted, plan_task, zero_shot_model
from bertkit.serve.routes.tei import SIMILARITY_FIELDS, cosines, predict_labels, ranked_labels
from bertkit.serve.service import PlanResult, Service, size_of
from bertkit.settings import pick
from bertkit.tasks.shared.label_set import LabelSet
from bertkit.tasks.tag import Tagged

Parameters = dict[str, Any]
Task = Callable[[Service, ServedModel, Any, Parameters], Awaitable[PlanResult]]


class HuggingFaceRequest(BaseModel):
    """What Hugging Face's InferenceClient sends, whatever the task."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"example": {"inputs": "A cat sat on the mat."}})

    inputs: Any
    parameters: dict[str, Any] | None = None


def hugging_face_routes(service: Service) -> Routes:
    """POST /, /models/NAME and /models/NAME/pipeline/TASK."""
    routes = Routes()

    @routes.post("/", summary="As Hugging Face's InferenceClient asks", tags=["hugging face"])
    async def first_model(request: HuggingFaceRequest) -> Response:
        return await _task_reply(service, None, request, None)

    @routes.post("/models/{name}", summary="The same of one model", tags=["hugging face"])
    async def named_model(name: str, request: HuggingFaceRequest) -> Response:
        return await _task_reply(service, name, request, None)

    @routes.post("/models/{name}/pipeline/{task}", summary="The same for one task", tags=["hugging face"])
    async def named_task(name: str, task: str, request: HuggingFaceRequest) -> Response:
        return await _task_reply(service, name, request, task)

    return routes


async def _task_reply(service: Service, model: str | None, request: HuggingFaceRequest, task: str | None) -> Response:
    served = service.models.named(model)
    name = task or (ZERO_SHOT_TASK if _LABELS in (request.parameters or {}) else _guess_task(served, request.inputs))
    if name == "feature-extraction":
        return await _features(service, model, request)
    if name not in TASKS:
        known = ", ".join(["feature-extraction", *TASKS])
        raise Refusal(404, f"no task '{name:.40}' here; choose from: {known}")
    served = CHOOSE[name](service.models, model) if name in CHOOSE else served
    result = await TASKS[name](service, served, request.inputs, request.parameters or {})
    numbers = max(result.plan.tokens, result.plan.result_size)
    return await reply(service, result.value, result.plan, numbers, served.name)


def _guess_task(served: ServedModel, inputs: Any) -> str:
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


async def _features(service: Service, model: str | None, request: HuggingFaceRequest) -> Response:
    """An embedding for each text; the client sends parameters beside the inputs or under `parameters`."""
    inputs = request.inputs
    fields = {**(request.parameters or {}), **(request.model_extra or {}), "inputs": inputs}
    if isinstance(inputs, list) and inputs and type(inputs[0]) is not int:  # a list of int: the token ids of one text
        check_count(inputs, "inputs", service.settings)
    try:
        asked = EmbedRequest.model_validate(fields)
    except ValidationError as error:
        raise wrong_field(error.errors()) from error
    return await embed_reply(service, asked, service.models.embedder(model, pooling=asked.pooling, layers=asked.layers))


async def _text_classification(
    service: Service, served: ServedModel, inputs: Any, parameters: Parameters
) -> PlanResult:
    service.models.able(served.name, "classify")
    texts, top = _texts(service, inputs), _positive_int(parameters, "top_k", None)
    policy = length_policy(None, None, service.settings)
    result = await predict_labels(service, served, [(text, None) for text in texts], policy)
    return PlanResult([labels[:top] for labels in result.value], result.plan)


async def _zero_shot(service: Service, served: ServedModel, inputs: Any, parameters: Parameters) -> PlanResult:
    """Labels of the request: every one with its probability, best first."""
    known = {_LABELS: None, "hypothesis_template": None, "multi_label": None}
    for name in parameters:
        pick(known, name, "parameter")
    labels, template, several = (parameters.get(name) for name in known)
    if several is not None and not isinstance(several, bool):
        raise Refusal(422, "parameters.multi_label must be true or false", "parameters.multi_label")
    texts, given = _texts(service, inputs), LabelSet.read(labels, template, multi_label=bool(several))
    plan = partial(plan_task, served, {"texts": texts}, service.settings, {"texts": "inputs"}, labels=given)
    result = await service.answer(partial(converted, plan, ranked_labels), size_of(texts) + asked_size(given))
    return _like_inputs(inputs, result)


async def _token_classification(
    service: Service, served: ServedModel, inputs: Any, parameters: Parameters
) -> PlanResult:
    """Spans by default, as the client's models give them; words with aggregation_strategy 'none'."""
    service.models.able(served.name, "tag")
    texts, ignored = _texts(service, inputs), _ignored_labels(service, parameters)
    plan = partial(plan_task, served, {"texts": texts}, service.settings, {"texts": "inputs"})
    result = await service.answer(partial(converted, plan, partial(_spans, ignored=ignored)), size_of(texts))
    return _like_inputs(inputs, result)


def _spans(tagged: Tagged, ignored: list[str]) -> list[dict[str, Any]]:
    """Spans, not subwords: tags are per word here, so strategy "none" has nothing finer to show."""
    return [
        {"entity_group": span.label, "score": span.probability, "word": span.text}
        | dict(zip(("start", "end"), span.characters or (None, None), strict=True))
        for span in tagged.spans
        if span.label not in ignored
    ]


def _ignored_labels(service: Service, parameters: Parameters) -> list[str]:
    """The labels of `ignore_labels`."""
    value = parameters.get("ignore_labels")
    if value is None or value == []:
        return []
    if not _are_texts(service, value, "parameters.ignore_labels"):
        raise Refusal(422, "parameters.ignore_labels must be a list of texts", "parameters.ignore_labels")
    labels: list[str] = value
    return labels


async def _question_answering(service: Service, served: ServedModel, inputs: Any, parameters: Parameters) -> PlanResult:
    service.models.able(served.name, "answer")
    question, context = _fields(service, inputs, "question", "context")
    plan = partial(plan_task, served, {"question": [question], "passage": [context]}, service.settings)
    result = await service.answer(plan, len(context))
    [best] = result.value
    top = _positive_int(parameters, "top_k", 1)
    no_answer = {"answer": "", "score": best.probability, "start": 0, "end": 0}
    rows = [
        {"answer": candidate.text, "score": candidate.probability, "start": candidate.start, "end": candidate.end}
        for candidate in best.candidates
    ]
    if not rows or (best.start is None and parameters.get("handle_impossible_answer")):
        rows = [no_answer, *rows]
    return PlanResult(rows[0] if top == 1 else rows[:top], result.plan)


async def _fill_mask(service: Service, served: ServedModel, inputs: Any, parameters: Parameters) -> PlanResult:
    """For one blank a list of candidates, for several a list of lists, as transformers has it."""
    service.models.able(served.name, "fill")
    if parameters.get("targets"):
        raise Refusal(422, "words to choose from are not taken here; leave targets out", "parameters.targets")
    texts = _texts(service, inputs)
    top, policy = _positive_int(parameters, "top_k", 5) or 5, fill_policy(None, service.settings)
    plan = partial(plan_fill, served, texts, top, policy, service.settings, "inputs", whole_words=False)
    result = await service.answer(partial(converted, plan, partial(_candidates, served)), size_of(texts))
    return _like_inputs(inputs, result)


def _candidates(served: ServedModel, filled: list[Filled]) -> list[Any]:
    vocab, rows = served.bert.tokenizer.vocab, dict[int, list[dict[str, Any]]]()
    for candidate in filled:
        word, token = candidate.word, vocab.get(candidate.word, served.bert.tokenizer.unknown_id)
        row = {"score": candidate.probability, "token": token, "token_str": word, "sequence": candidate.text}
        rows.setdefault(candidate.blank, []).append(row)
    return rows[0] if len(rows) == 1 else list(rows.values())


def _like_inputs(inputs: Any, result: PlanResult) -> PlanResult:
    """One prediction for one text, a list for a list."""
    return PlanResult(result.value[0], result.plan) if isinstance(inputs, str) else result


async def _sentence_similarity(
    service: Service, served: ServedModel, inputs: Any, parameters: Parameters
) -> PlanResult:
    source, sentences = _fields(service, inputs, "source_sentence", "sentences", lists=("sentences",))
    policy = length_policy(None, None, service.settings)
    return await cosines(service, served, source, sentences, policy, SIMILARITY_FIELDS)


ZERO_SHOT_TASK, _LABELS = "zero-shot-classification", "candidate_labels"
TASKS: dict[str, Task] = {
    "text-classification": _text_classification,
    ZERO_SHOT_TASK: _zero_shot,
    "token-classification": _token_classification,
    "question-answering": _question_answering,
    "fill-mask": _fill_mask,
    "sentence-similarity": _sentence_similarity,
}
# The model of a task where none is named, if it is not the first one.
CHOOSE: dict[str, Callable[[Models, str | None], ServedModel]] = {
    "sentence-similarity": lambda models, name: models.embedder(name),
    ZERO_SHOT_TASK: zero_shot_model,
}


def _texts(service: Service, inputs: Any) -> list[str]:
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not _are_texts(service, texts, "inputs"):
        raise Refusal(422, "inputs must be a text or a list of texts", "inputs")
    return texts


def _are_texts(service: Service, value: Any, field: str) -> bool:
    """Whether it is a list of at least one text; too many are refused before their types are checked."""
    if not isinstance(value, list):
        return False
    check_count(value, field, service.settings)
    return bool(value) and all(isinstance(text, str) for text in value)


def _fields(service: Service, inputs: Any, *names: str, lists: tuple[str, ...] = ()) -> list[Any]:
    values = []
    for name in names:
        value = inputs.get(name) if isinstance(inputs, dict) else None
        valid = _are_texts(service, value, f"inputs.{name}") if name in lists else isinstance(value, str)
        if not valid:
            kind = "a list of texts" if name in lists else "a text"
            raise Refusal(422, f"inputs.{name} must be {kind}", f"inputs.{name}")
        values.append(value)
    return values


def _positive_int(parameters: Parameters, name: str, default: int | None) -> int | None:
    value = parameters.get(name)
    if value is None:
        return default
    if type(value) is not int or value < 1:
        raise Refusal(422, f"parameters.{name} must be a whole number from 1", f"parameters.{name}")
    return value
