"""Answers as JSON: numbers of float32 with as many digits as they have, or as base64."""

import base64
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import orjson
from fastapi import Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from bertkit.errors import RequestError
from bertkit.serve.plans.plan import Plan
from bertkit.serve.refusals import Refusal
from bertkit.serve.service import Service
from bertkit.serve.settings import LARGE
from bertkit.tasks.answer import Answered
from bertkit.text.length import LengthReport

OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
LISTED = 20  # of the texts that were too long


async def reply(service: Service, content: Any, plan: Plan | None = None, numbers: int = 0) -> Response:
    """The content as JSON, made in a thread where there is much of it; texts that were cut are in the headers."""
    dump = partial(orjson.dumps, content, default=_plain, option=OPTIONS)
    body = await service.off_loop(dump, numbers) if numbers > LARGE else dump()
    return Response(body, media_type="application/json", headers=length_headers(plan.lengths if plan else None))


def refusal_reply(refusal: Refusal, path: str) -> Response:
    """Why there is no answer, in the form that the path's clients read."""
    body = orjson.dumps(refusal.content(path))
    return Response(body, refusal.status, headers=dict(refusal.headers), media_type="application/json")


def as_refusal(error: Exception) -> Refusal | None:
    """What is wrong, with the field that it is wrong with; the client's own words are not repeated."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, RequestValidationError):
        [first, *_] = error.errors()
        if first["type"] == "json_invalid":
            return not_json(first["loc"][1], first["ctx"]["error"])
        return wrong_field([{**first, "loc": first["loc"][1:]}])
    if isinstance(error, HTTPException):
        return Refusal(error.status_code, str(error.detail), headers=error.headers or {})
    return Refusal(422, str(error)) if isinstance(error, RequestError) else None


def not_json(place: int, reason: str) -> Refusal:
    """Where a body stops being JSON, and why."""
    return Refusal(422, f"the body is not JSON: at byte {place}: {reason:.100}")


def wrong_field(errors: Sequence[Any]) -> Refusal:
    """The first of pydantic's errors."""
    wrong = errors[0]
    field = ".".join(map(str, wrong["loc"]))[:100]
    if not wrong["loc"]:
        return Refusal(422, "the body must be a JSON object, sent with 'Content-Type: application/json'")
    message = str(wrong["msg"]).removeprefix("Value error, ")
    return Refusal(422, f"{field}: {message:.300}", field)


def length_headers(report: LengthReport | None) -> dict[str, str]:
    """How many texts were over the limit, and in a sentence what was done."""
    if report is None or not report.long:
        return {}
    return {"bertkit-long-texts": str(len(report.long)), "bertkit-length-note": str(report)}


def length_note(report: LengthReport | None) -> dict[str, Any]:
    """The same for the reply itself; nothing where every text was read whole."""
    if report is None or not report.long:
        return {}
    texts = [{"index": index, "tokens": tokens} for index, tokens in report.long[:LISTED]]
    note = {"limit": report.limit, "policy": report.policy, "count": len(report.long), "texts": texts}
    return {"long_texts": note}


def encoded(array: np.ndarray, how: str) -> np.ndarray | str:
    """Numbers as they are, or their float32 bytes, little-endian, in base64."""
    if how == "float":
        return np.ascontiguousarray(array, dtype=np.float32)
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode("ascii")


def told(prediction: Any, best: int = 0) -> dict[str, Any]:
    """A prediction as an object: the fields of its Python class, nothing renamed."""
    found = asdict(prediction)
    found.pop("id", None)  # made up by us
    if isinstance(prediction, Answered):
        found["candidates"] = found["candidates"][:best]
    return found


def _plain(value: Any) -> Any:
    """What orjson does not know by itself: arrays that are not contiguous."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON")
