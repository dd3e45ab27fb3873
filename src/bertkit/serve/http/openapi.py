"""OpenAPI document of the routes, which /docs shows."""

import re
from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.routing import compile_path

from bertkit._version import __version__
from bertkit.serve.http.routing import JsonRoute

ERRORS = {
    "401": "A key is needed.",
    "404": "No such model, or none that can do this.",
    "413": "Too large.",
    "422": "A field is wrong; the reply names it.",
    "429": "The queue is full; Retry-After says for how long.",
    "504": "No answer in time.",
}
JSON = "application/json"
MASK = "[MASK]"  # as the examples of request models write it


def openapi(routes: Sequence[JsonRoute], mask: str = MASK) -> dict[str, Any]:
    """The document; its examples have this mask token."""
    documented = [route for route in routes if route.documented]
    models = [request[1] for route in documented if (request := route.request) is not None]
    _, schemas = models_json_schema(
        [(model, "validation") for model in dict.fromkeys(models)], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for route in documented:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    info = {"title": "bertkit", "description": "Vectors, heads and the inside of BERT models.", "version": __version__}
    components = {name: _with_mask(schema, mask) for name, schema in schemas.get("$defs", {}).items()}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": components}}


def _operation(route: JsonRoute) -> dict[str, Any]:
    operation: dict[str, Any] = {"tags": list(route.tags), "summary": route.summary}
    name = re.sub(r"\W", "_", f"{route.handler.__name__}{route.path}")
    operation["operationId"] = f"{name}_{route.method.lower()}"
    names = compile_path(route.path)[2]
    if names:
        in_path = {"in": "path", "required": True, "schema": {"type": "string"}}
        operation["parameters"] = [{"name": name, **in_path} for name in names]
    if (request := route.request) is not None:
        schema = {"$ref": f"#/components/schemas/{request[1].__name__}"}
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    replies = {status: {"description": text} for status, text in ERRORS.items()}
    return {**operation, "responses": {"200": {"description": "Successful Response", "content": {JSON: {}}}, **replies}}


def _with_mask(schema: dict[str, Any], mask: str) -> dict[str, Any]:
    example = schema.get("example")
    if not isinstance(example, dict):
        return schema
    masked = {name: value.replace(MASK, mask) if isinstance(value, str) else value for name, value in example.items()}
    return {**schema, "example": masked}
