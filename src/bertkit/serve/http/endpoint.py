"""JSON endpoints: the body becomes a request model, its texts are checked against the limits, a value becomes a reply.

Bodies over `OFF_LOOP_SIZE` are parsed and validated in a thread, so that the event loop, and with it /health, does not
wait for them.
"""

import base64
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

import numpy as np
import orjson
from pydantic import BaseModel, ValidationError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bertkit.errors import BertkitError, RequestError
from bertkit.serve.http.routing import JsonRoute
from bertkit.serve.refusals import Refusal, not_json, wrong_field
from bertkit.serve.service import SIZED, Plan, Service
from bertkit.serve.settings import OFF_LOOP_SIZE, ServeSettings
from bertkit.text.length import LengthReport, TooLong, report_lengths

JSON_TYPE = re.compile(rb"application/([^/]+\+)?json")
MAX_FIELDS = 100  # of a request object; pydantic lists every unknown field
MAX_LISTED = 20  # texts over the limit that a reply lists
ORJSON_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


class JsonEndpoint:
    """ASGI application of one route: body to request model to reply."""

    def __init__(self, route: JsonRoute, service: Service) -> None:
        self._route, self._service = route, service
        self._argument = route.request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = await self._read(scope, receive)
        if isinstance(request, Refusal):
            response = request.response(scope["path"])
        else:
            response = await self._reply(request, scope)
        del request  # not kept while the reply is sent
        await response(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive) -> BaseModel | Refusal | None:
        """The request; None for a route without a body."""
        if self._argument is None:
            return None
        if not _is_json(scope):
            return wrong_field([{"loc": ()}])
        body: bytes = (await receive())["body"]
        if len(body) <= OFF_LOOP_SIZE:
            return read_body(self._argument[1], body)
        work = partial(read_body, self._argument[1], body)
        del body
        return await self._service.read_off_loop(work)

    async def _reply(self, request: BaseModel | None, scope: Scope) -> Response:
        arguments = {} if self._argument is None else {self._argument[0]: request}
        try:
            return await self._route.handler(**scope["path_params"], **arguments)
        except Refusal as refusal:
            return refusal.response(scope["path"])
        except RequestError as error:
            return Refusal(422, str(error)).response(scope["path"])
        except (ConnectionError, TimeoutError) as error:  # the middleware reads these as the client's or its own
            raise BertkitError(f"{self._route.path} failed: {error}") from error


def read_body(model: type[BaseModel], body: bytes) -> BaseModel | Refusal:
    """The request; or its error, which is not raised: a traceback would keep all values of the body alive."""
    try:
        value = orjson.loads(body or b"null")
    except orjson.JSONDecodeError as error:
        return not_json(error.pos, error.msg)
    if isinstance(value, dict) and len(value) > MAX_FIELDS:
        return Refusal(422, f"the request has {len(value):,} fields, and no route reads more than {MAX_FIELDS}")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        return wrong_field(error.errors(include_url=False, include_input=False))


def _is_json(scope: Scope) -> bool:
    """Whether the request has exactly one content type, and that is JSON."""
    kinds = [value.partition(b";")[0].strip().lower() for name, value in scope["headers"] if name == b"content-type"]
    return len(kinds) == 1 and JSON_TYPE.fullmatch(kinds[0]) is not None


def check_count(texts: Sequence[object], field: str, limits: ServeSettings) -> None:
    """Refuse more texts than one request may have."""
    if len(texts) > limits.max_texts:
        raise Refusal(413, f"{field} has {len(texts):,} texts; at most {limits.max_texts:,} go in a request", field)


def check_texts(texts: Sequence[object], field: str, limits: ServeSettings) -> None:
    """Refuse no texts, more texts than one request may have, and longer ones."""
    if not texts:
        raise Refusal(422, f"{field} is empty; give one text at least", field)
    check_count(texts, field, limits)
    for number, text in enumerate(texts):
        size = len(text) if isinstance(text, SIZED) else 0
        if size > limits.max_characters:
            message = f"{field}[{number}] has {size:,} characters, over the {limits.max_characters:,} of one text"
            raise Refusal(413, f"{message}; split it", field)


def check_size(numbers: int, remedy: str, limits: ServeSettings) -> None:
    """Refuse a request whose reply would fill the memory."""
    if numbers > limits.max_numbers:
        raise Refusal(413, f"the reply would have {numbers:,} numbers, over {limits.max_numbers:,}; {remedy}")


def length_policy(too_long: TooLong | None, truncate: bool | None, limits: ServeSettings) -> TooLong:
    """The request's policy, by bertkit's field or by text-embeddings-inference's `truncate`; else the server's."""
    if too_long is not None:
        return too_long
    if truncate is not None:
        return "truncate" if truncate else "refuse"
    return limits.too_long


def reported(
    lengths: Sequence[int], limit: int, too_long: TooLong, field: str, name_of: Callable[[int], str]
) -> LengthReport:
    """Which texts are over the limit; refused where that is the policy."""
    try:
        return report_lengths(lengths, limit, too_long, where=name_of)
    except RequestError as error:
        raise Refusal(413, str(error), field) from error


async def reply(
    service: Service, content: Any, plan: Plan | None = None, numbers: int = 0, model: str | None = None
) -> Response:
    """The content as JSON, encoded in a thread where it has many `numbers`.

    Headers tell of texts over the limit, and which model answered.
    """
    dump = partial(orjson.dumps, content, default=_to_json, option=ORJSON_OPTIONS)
    body = await service.off_loop(dump, numbers) if numbers > OFF_LOOP_SIZE else dump()
    headers = length_headers(plan.report if plan else None)
    headers |= {} if model is None else {"bertkit-model": quote(model)}
    return Response(body, media_type="application/json", headers=headers)


def length_headers(report: LengthReport | None) -> dict[str, str]:
    """How many texts were over the limit, and in a sentence what was done."""
    if report is None or not report.long:
        return {}
    return {"bertkit-long-texts": str(len(report.long)), "bertkit-length-note": str(report)}


def length_note(report: LengthReport | None) -> dict[str, Any]:
    """The same for the reply itself; empty where every text was read whole."""
    if report is None or not report.long:
        return {}
    texts = [{"index": index, "tokens": tokens} for index, tokens in report.long[:MAX_LISTED]]
    note = {"limit": report.limit, "policy": report.policy, "count": len(report.long), "texts": texts}
    return {"long_texts": note}


def encoded(array: np.ndarray, encoding_format: str) -> np.ndarray | str:
    """The array for "float", else its float32 bytes, little-endian, in base64."""
    if encoding_format == "float":
        return np.ascontiguousarray(array, dtype=np.float32)
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode("ascii")


def _to_json(value: Any) -> Any:
    """What orjson cannot write by itself: arrays that are not contiguous, and sequences other than list and tuple."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON")
