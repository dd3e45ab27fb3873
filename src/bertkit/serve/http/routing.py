"""JSON routes as data: a path, a handler with its request model, and what the documentation says about it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature

from pydantic import BaseModel
from starlette.responses import Response

Handler = Callable[..., Awaitable[Response]]


@dataclass(frozen=True)
class JsonRoute:
    """One route: its handler takes at most one request model, and strings from the path."""

    method: str
    path: str
    handler: Handler
    summary: str
    tags: Sequence[str]
    documented: bool = True

    @property
    def request(self) -> tuple[str, type[BaseModel]] | None:
        """(name of the argument, request model) of a route with a body."""
        kinds = {name: parameter.annotation for name, parameter in signature(self.handler).parameters.items()}
        models = [
            (name, kind) for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, BaseModel)
        ]
        if len(models) > 1 or any(kind is not str for name, kind in kinds.items() if (name, kind) not in models):
            raise TypeError(f"{self.path} must take one request model and strings from its path, not {kinds}")
        return models[0] if models else None


class Routes:
    """A list of routes; where two match a path, the first one counts."""

    def __init__(self) -> None:
        self.rows: list[JsonRoute] = []

    def get(self, path: str, *, summary: str, tags: Sequence[str]) -> Callable[[Handler], Handler]:
        """Add a route without a body."""
        return partial(self._add, "GET", path, summary, tags, True)

    def post(
        self, path: str, *, summary: str, tags: Sequence[str], include_in_schema: bool = True
    ) -> Callable[[Handler], Handler]:
        """Add a route that takes a JSON object."""
        return partial(self._add, "POST", path, summary, tags, include_in_schema)

    def _add(
        self, method: str, path: str, summary: str, tags: Sequence[str], documented: bool, handler: Handler
    ) -> Handler:
        self.rows.append(JsonRoute(method, path, handler, summary, tags, documented))
        return handler
