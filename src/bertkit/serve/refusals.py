"""Errors of requests: one sentence, in the form that the client expects."""

import dataclasses
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from starlette.responses import Response

from bertkit.errors import RequestError

# `error_type` of text-embeddings-inference, `type` of OpenAI.
ERROR_TYPES: Mapping[int, tuple[str, str]] = {
    400: ("Validation", "invalid_request_error"),
    401: ("Unauthorized", "authentication_error"),
    404: ("NotFound", "not_found_error"),
    405: ("Validation", "invalid_request_error"),
    409: ("Validation", "invalid_request_error"),
    408: ("Timeout", "timeout_error"),
    413: ("Validation", "invalid_request_error"),
    421: ("Validation", "invalid_request_error"),
    422: ("Validation", "invalid_request_error"),
    429: ("Overloaded", "rate_limit_error"),
    503: ("Unhealthy", "server_error"),
    504: ("Timeout", "timeout_error"),
}


@dataclasses.dataclass(eq=False)  # exceptions must be hashable
class Refusal(Exception):
    """A request that is refused, and why."""

    status: int
    message: str
    field: str | None = None  # of the request that is wrong
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def content(self, path: str) -> dict[str, Any]:
        """The reply: under /v1 as OpenAI's clients read it, else as text-embeddings-inference's do."""
        tei, openai = ERROR_TYPES.get(self.status, ("Backend", "server_error"))
        if path.startswith("/v1/"):
            code = "model_not_found" if self.status == 404 and self.field == "model" else None
            return {"error": {"message": self.message, "type": openai, "param": self.field, "code": code}}
        return {"error": self.message, "error_type": tei, "field": self.field}

    def response(self, path: str) -> Response:
        """The reply as a response."""
        body = orjson.dumps(self.content(path))
        return Response(body, self.status, headers=dict(self.headers), media_type="application/json")


def failure(request_id: str) -> Refusal:
    """The reply to an internal error: only the request's id, under which the log has the details."""
    return Refusal(500, f"the server failed; its log says more under {request_id}")


def not_json(position: int, reason: str) -> Refusal:
    """The refusal of a body that is not JSON from byte `position` on."""
    return Refusal(422, f"the body is not JSON: at byte {position}: {reason:.100}")


def not_routed(status: int, method: str, headers: Mapping[str, str]) -> Refusal:
    """The refusal of the router: an address that is not there (404), or does not take this method (405)."""
    allowed = headers.get("Allow", "another method")
    said = f"this address takes {allowed}, not {method:.20}" if status == 405 else "there is nothing at this address"
    return Refusal(status, f"{said}; /docs lists every address with a request that works", headers=headers)


def wrong_field(errors: Sequence[Any]) -> Refusal:
    """The refusal with the first of pydantic's errors; it does not repeat the client's values."""
    first = errors[0]
    field = ".".join(map(str, first["loc"]))[:100]
    if not first["loc"]:
        return Refusal(422, "send a JSON object, with the header 'Content-Type: application/json'")
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "missing":
        message = "this field is missing from the request; /docs shows one that works"
    return Refusal(422, f"{field}: {message:.300}", field)


def detached(error: Exception) -> Exception:
    """The error with its traceback as text, for the log.

    A traceback keeps its frames alive, with requests and tensors in them; where one of these refers to the error, that
    is a reference cycle, which lives until the next garbage collection.
    """
    if not isinstance(error, Refusal | RequestError):  # which are not logged
        error.add_note("".join(traceback.format_exception(error)).rstrip())
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
