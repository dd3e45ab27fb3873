"""What a refused request is told: one sentence, in the form its client reads."""

import dataclasses
import traceback
from collections.abc import Mapping
from typing import Any

from bertkit.errors import RequestError

# What text-embeddings-inference's clients find in `error_type`, and OpenAI's in `type`.
KINDS: Mapping[int, tuple[str, str]] = {
    400: ("Validation", "invalid_request_error"),
    401: ("Unauthorized", "authentication_error"),
    404: ("NotFound", "not_found_error"),
    405: ("Validation", "invalid_request_error"),
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
    """A request that gets no answer, and why."""

    status: int
    message: str
    field: str | None = None  # the place in the request that is wrong
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def content(self, path: str) -> dict[str, Any]:
        """The reply: under /v1 as OpenAI's clients read it, else as text-embeddings-inference's do."""
        theirs, openais = KINDS.get(self.status, ("Backend", "server_error"))
        if path.startswith("/v1/"):
            code = "model_not_found" if self.status == 404 and self.field == "model" else None
            return {"error": {"message": self.message, "type": openais, "param": self.field, "code": code}}
        return {"error": self.message, "error_type": theirs, "field": self.field}


def failure(request: str) -> Refusal:
    """What a client is told where the server is at fault."""
    return Refusal(500, f"the server failed; its log says more under {request}")


def detached(error: Exception) -> Exception:
    """The error with its trace as text, which the log tells.

    A trace holds the frames it went through, with requests and tensors in them; and where one of these holds the error,
    too, all of it stays until somebody looks for garbage.
    """
    if not isinstance(error, Refusal | RequestError):  # of which nobody asks where they came from
        error.add_note("".join(traceback.format_exception(error)).rstrip())
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
