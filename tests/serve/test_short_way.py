"""The short way to the routes gives what FastAPI's own way gives, of good requests and bad."""

import json
from collections.abc import Iterator

import pytest
from fastapi import APIRouter, Response
from pydantic import BaseModel
from serving import Running, running

import bertkit.serve.app
from bertkit.serve.engine import Lane
from bertkit.serve.settings import ServeSettings
from bertkit.serve.short_way import ShortWay, short_of

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
    ("/", {"inputs": "a [MASK] b"}),
    ("/models/tag", {"inputs": "a b"}),
]
BAD = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"7",
    b'"a"',
    b"{}",
    b'{"input": NaN, "model": "fill"}',
    b'{"input": "\\ud800", "model": "fill"}',
    b'\xff{"input": "a"}',
    b'{"input": 7, "model": "fill"}',
    b'{"input": "a", "model": "nobody"}',
    b'{"input": "a", "model": "fill", "pooling": "none"}',
    b'{"input": "a", "model": "fill", "layers": [99]}',
    b'{"input": [], "model": "fill"}',
    b'{"input": "' + b"a " * 300 + b'", "model": "fill", "too_long": "refuse"}',
    b'{"input": ' + b"[" * 2000 + b"]" * 2000 + b', "model": "fill"}',
]


@pytest.fixture(scope="module")
def both(models) -> Iterator[tuple[Running, Running]]:
    """A server, and one whose requests all go through FastAPI."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bertkit.serve.app, "ShortWay", lambda app, *_: app)
        twin = running(models, ServeSettings(waiting_tokens=400))
        with twin as whole:
            patch.undo()
            with running(models, ServeSettings(waiting_tokens=400)) as short:
                yield short, whole


def same(both, path, body, method="POST", headers=JSON):
    def told(server):
        reply = server.http.request(method, path, content=body, headers=headers)
        kept = {name: value for name, value in reply.headers.items() if name not in ("x-request-id", "date")}
        content = reply.content
        if reply.headers.get("content-type") == "application/json":
            content = json.loads(content)
        return reply.status_code, kept, content

    short, whole = map(told, both)
    assert short[0] == whole[0]
    assert short[1].keys() == whole[1].keys()
    if short[0] != 200:  # numbers of two runs may differ in their last digits
        assert short == whole
    return short


@pytest.mark.parametrize(("path", "body"), GOOD)
def test_good_requests(both, path, body):
    status, headers, content = same(both, path, json.dumps(body).encode())
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert content
    assert ("bertkit-long-texts" in headers) == (LONG in str(body))


@pytest.mark.parametrize("body", BAD)
def test_bad_requests(both, body):
    status, _, content = same(both, "/v1/embeddings", body)
    assert status in (404, 413, 422)
    assert content["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 422),
        ({"content-type": "text/plain"}, 422),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "Application/JSON"}, 200),
        ({"content-type": "application/json;charset=latin-1"}, 200),
        ({"content-type": "application/vnd.api+json"}, 200),
    ],
)
def test_kinds_of_content(both, headers, status):
    assert same(both, "/v1/embeddings", b'{"input": "a", "model": "fill"}', headers=headers)[0] == status


def test_other_methods_and_places(both):
    assert same(both, "/v1/embeddings", b"", method="GET")[0] == 405
    assert same(both, "/v1/embeddings/", b'{"input": "a", "model": "fill"}')[0] == 404
    assert same(both, "/nowhere", b"{}")[0] == 404


def test_a_request_that_is_too_much(both):
    """Refused after it was read: the connection stays."""
    status, headers, _ = same(both, "/v1/embeddings", json.dumps({"input": [LONG] * 40, "model": "fill"}).encode())
    assert status == 413
    assert "connection" not in headers


def test_a_failure_is_told_by_its_id_alone(both, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(Lane, "compute", fail)
    for server in both:
        reply = server.http.post("/v1/embeddings", json={"input": "a", "model": "fill"})
        assert reply.status_code == 500
        assert reply.headers["x-request-id"] in reply.text
        assert "secret" not in reply.text


def test_metrics_know_the_route(both):
    for server in both:
        server.post("/tokenize", {"inputs": "a"})
        assert 'bertkit_requests_total{route="/tokenize",status="200"}' in server.http.get("/metrics").text


def test_which_routes_go_the_short_way(both):
    """All that take one object: the good requests above try each of them."""
    gate = bertkit.serve.app.create_app(both[0].service.models)
    assert isinstance(gate.app, ShortWay)
    documented = both[0].http.get("/openapi.json").json()["paths"]
    posts = {path for path, methods in documented.items() if "post" in methods and "{" not in path}
    assert posts <= set(gate.app._routes) == {path for path, _ in GOOD if not path.startswith("/models/")}


def test_a_route_that_asks_for_more_stays_with_fastapi():
    class Asked(BaseModel):
        text: str

    routes = APIRouter()

    @routes.post("/one")
    async def one(asked: Asked) -> Response:
        return Response(asked.text)

    @routes.post("/two/{name}")
    async def two(name: str, asked: Asked) -> Response:
        return Response(asked.text + name)

    @routes.post("/three")
    async def three(asked: Asked, name: str = "") -> Response:
        return Response(asked.text + name)

    @routes.post("/four")
    async def four(asked: str) -> Response:
        return Response(asked)

    @routes.get("/five")
    async def five() -> Response:
        return Response("")

    assert [short_of(route) is not None for route in routes.routes] == [True, False, False, False, False]
