"""Requests reach their route by path, method and content type; what is wrong with one is said; the document is true."""

import json
from collections.abc import Iterator
from typing import Annotated

import pytest
from fastapi import FastAPI
from pydantic import BaseModel, Field
from serving import Running, running
from starlette.responses import Response
from starlette.routing import compile_path

from bertkit.serve.engine import SharedEncoder
from bertkit.serve.http.openapi import openapi
from bertkit.serve.http.routing import JsonRoute, Routes
from bertkit.serve.routes.embeddings import embedding_routes
from bertkit.serve.service import Service
from bertkit.serve.settings import ServeSettings

JSON = {"content-type": "application/json"}
LONG = "a b c d e f g h " * 20
GOOD = [
    ("/v1/embeddings", {"input": ["a b", LONG], "model": "fill"}),
    ("/v1/embeddings", {"input": "a", "model": "fill", "encoding_format": "base64", "dimensions": 8}),
    ("/embed", {"inputs": ["a", ""], "normalize": False}),
    ("/embed_all", {"inputs": "a b c"}),
    ("/predict", {"inputs": "a b", "model": "classify"}),
    ("/rerank", {"query": "a", "texts": ["a b", "c"]}),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b", "c d"]}}),
    ("/tokenize", {"inputs": "a b"}),
    ("/decode", {"ids": [5, 6, 7]}),
    ("/fill", {"text": "a [MASK] c"}),
    ("/classify", {"texts": ["a", "b c"]}),
    ("/tag", {"texts": ["a b c"]}),
    ("/answer", {"question": "a b", "passage": "c d e"}),
    ("/choose", {"question": "a", "choices": ["b", "c"]}),
    ("/attention", {"text": "a b"}),
    ("/neuron", {"text": "a b", "layer": 1, "head": 1}),
    ("/why", {"text": "a [MASK] c"}),
    ("/lens", {"text": "a b c", "model": "fill"}),
    ("/", {"inputs": "a [MASK] b"}),
    ("/models/tag", {"inputs": "a b"}),
    ("/models/tag/pipeline/token-classification", {"inputs": "a b"}),
]
BAD = [
    (b"", 422),
    (b"{", 422),
    (b"null", 422),
    (b"[]", 422),
    (b"7", 422),
    (b'"a"', 422),
    (b"{}", 422),
    (b'{"input": NaN, "model": "fill"}', 422),
    (b'{"input": "\\ud800", "model": "fill"}', 422),
    (b'\xff{"input": "a"}', 422),
    (b'{"input": 7, "model": "fill"}', 422),
    (b'{"input": "a", "model": "nobody"}', 404),
    (b'{"input": "a", "model": "fill", "pooling": "none"}', 422),
    (b'{"input": "a", "model": "fill", "layers": [99]}', 422),
    (b'{"input": [], "model": "fill"}', 422),
    (b'{"input": "' + b"a " * 300 + b'", "model": "fill", "too_long": "refuse"}', 413),
    (b'{"input": ' + b"[" * 2000 + b"]" * 2000 + b', "model": "fill"}', 422),
]


@pytest.fixture(scope="module")
def small(models) -> Iterator[Running]:
    """A server whose queue holds little."""
    with running(models, ServeSettings(waiting_tokens=400)) as found:
        yield found


def send(server, path, body, method="POST", headers=JSON):
    reply = server.http.request(method, path, content=body, headers=headers)
    assert reply.headers["content-type"] == "application/json"
    assert int(reply.headers["content-length"]) == len(reply.content)
    return reply


@pytest.mark.parametrize(("path", "body"), GOOD)
def test_good_requests(small, path, body):
    reply = send(small, path, json.dumps(body).encode())
    assert reply.status_code == 200
    assert reply.json()
    assert ("bertkit-long-texts" in reply.headers) == (LONG in str(body))


@pytest.mark.parametrize(("body", "status"), BAD)
def test_bad_requests(small, body, status):
    reply = send(small, "/v1/embeddings", body)
    assert reply.status_code == status
    assert reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 422),
        ({"content-type": "text/plain"}, 422),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "Application/JSON;charset=UTF-8"}, 200),
        ({"content-type": "application/json;charset=latin-1"}, 200),
        ({"content-type": "application/vnd.api+json"}, 200),
        ({"content-type": "application/jsonp"}, 422),
        ({"content-type": "application/x/y+json"}, 422),
        ([("content-type", "application/json"), ("content-type", "application/json")], 422),
    ],
)
def test_kinds_of_content(small, headers, status):
    reply = send(small, "/v1/embeddings", b'{"input": "a", "model": "fill"}', headers=headers)
    assert reply.status_code == status
    assert status == 200 or "Content-Type" in reply.json()["error"]["message"]


def test_other_methods_and_places(small):
    refused = send(small, "/v1/embeddings", b"", method="GET")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert send(small, "/v1/embeddings/", b'{"input": "a", "model": "fill"}').status_code == 404
    assert send(small, "/nowhere", b"{}").status_code == 404


def test_a_request_that_is_too_much(small):
    """Refused after it was read: the connection stays."""
    reply = send(small, "/v1/embeddings", json.dumps({"input": [LONG] * 40, "model": "fill"}).encode())
    assert reply.status_code == 413
    assert "connection" not in reply.headers


def test_a_failure_is_told_by_its_id_alone(small, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(SharedEncoder, "compute", fail)
    reply = small.http.post("/v1/embeddings", json={"input": "a", "model": "fill"})
    assert reply.status_code == 500
    assert reply.headers["x-request-id"] in reply.text
    assert "secret" not in reply.text


def test_metrics_know_the_route(small):
    small.post("/tokenize", {"inputs": "a"})
    assert 'bertkit_requests_total{route="/tokenize",status="200"}' in small.http.get("/metrics").text


def test_good_requests_are_of_documented_routes(small):
    """And all but those of newer tasks are tried; of each route the example is sent in test_heads.py."""
    documented = small.http.get("/openapi.json").json()["paths"]
    posts = {path for path, methods in documented.items() if "post" in methods}
    tried = {path for path in posts for each, _ in GOOD if compile_path(path)[0].match(each)}
    assert len(tried) == len(GOOD) - 1  # two of them are to /v1/embeddings
    assert all(any(compile_path(path)[0].match(each) for path in posts) for each, _ in GOOD)


class Asked(BaseModel):
    """A request."""

    text: str
    inner: Annotated[list[int], Field(min_length=1)] | None = None


def test_the_arguments_that_a_route_may_have():
    async def one(asked: Asked) -> Response: ...
    async def two(name: str, asked: Asked) -> Response: ...
    async def three() -> Response: ...
    async def four(number: int, asked: Asked) -> Response: ...
    async def five(asked: Asked, other: Asked) -> Response: ...

    def request(handler):
        return JsonRoute("POST", "/", handler, "", []).request

    assert [request(each) for each in (one, two, three)] == [("asked", Asked), ("asked", Asked), None]
    for handler in (four, five):
        with pytest.raises(TypeError, match="must take one request model"):
            request(handler)


def without_null(value):
    """As FastAPI writes a document: without defaults that are null."""
    if isinstance(value, dict):
        return {name: without_null(each) for name, each in value.items() if each is not None}
    return [*map(without_null, value)] if isinstance(value, list) else value


def test_the_document_is_what_fastapi_would_write(small):
    """Of the same routes: parameters, bodies and schemas."""
    routes = embedding_routes(small.service)

    @routes.post("/two/{name}", summary="Two", tags=["a", "b"])
    async def two(name: str, asked: Asked) -> Response:
        return Response(asked.text + name)

    @routes.post("/hidden", summary="Not shown", tags=[], include_in_schema=False)
    async def hidden(asked: Asked) -> Response:
        return Response(asked.text)

    twin = FastAPI()
    for row in routes.rows:
        options = {"summary": row.summary, "tags": [*row.tags], "include_in_schema": row.documented}
        twin.add_api_route(row.path, row.handler, methods=[row.method], **options)
    ours, theirs = openapi(routes.rows), twin.openapi()
    assert ours["openapi"] == theirs["openapi"]
    schemas = {name: each for name, each in theirs["components"]["schemas"].items() if "ValidationError" not in name}
    assert without_null(ours["components"]["schemas"]) == schemas
    assert ours["paths"].keys() == theirs["paths"].keys()
    for path, operations in ours["paths"].items():
        for method, operation in operations.items():
            other = theirs["paths"][path][method]
            for name in ("operationId", "summary", "tags", "requestBody"):
                assert operation.get(name) == other.get(name), (path, name)
            places = [{**each, "schema": {"type": each["schema"]["type"]}} for each in other.get("parameters", [])]
            assert operation.get("parameters", []) == places


def test_examples_have_the_mask_of_the_model():
    class Blank(BaseModel):
        """A request with an example."""

        model_config = {"json_schema_extra": {"example": {"text": "a [MASK]", "top": 3}}}
        text: str

    routes = Routes()

    @routes.post("/blank", summary="", tags=[])
    async def blank(asked: Blank) -> Response:
        return Response(asked.text)

    assert openapi(routes.rows, "<mask>")["components"]["schemas"]["Blank"]["example"] == {"text": "a <mask>", "top": 3}


@pytest.mark.parametrize("error", [ConnectionResetError("a disk"), TimeoutError("a lock")])
def test_a_route_in_trouble_is_a_failure_and_not_a_client_who_went_away(small, monkeypatch, error):
    async def fail(*_, **__):
        raise error

    monkeypatch.setattr(Service, "answer", fail)
    reply = small.http.post("/v1/embeddings", json={"input": "a", "model": "fill"})
    assert reply.status_code == 500
    assert reply.headers["x-request-id"] in reply.text
