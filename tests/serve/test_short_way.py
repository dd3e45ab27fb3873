"""The short way to the routes gives what FastAPI's own way gives, of good requests and bad."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Annotated

import pytest
from fastapi import APIRouter, Body, Depends, Response
from pydantic import BaseModel
from serving import Running, running, same

import bertkit.serve.app
from bertkit.serve.app import create_app
from bertkit.serve.engine import Lane
from bertkit.serve.http.fast_path import ShortWay, short_of
from bertkit.serve.routes.common import router
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
    ("/", {"inputs": "a [MASK] b"}),
    ("/models/tag", {"inputs": "a b"}),
    ("/models/tag/pipeline/token-classification", {"inputs": "a b"}),
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


LONG_WAY: list[str] = []  # paths of the requests that went on to FastAPI


class Watched(ShortWay):
    def __init__(self, app, routes, service) -> None:
        async def noted(scope, receive, send) -> None:
            LONG_WAY.append(scope.get("path", ""))
            await app(scope, receive, send)

        super().__init__(noted, routes, service)


@pytest.fixture(scope="module")
def both(models) -> Iterator[tuple[Running, Running]]:
    """A server, and one whose requests all go through FastAPI."""
    settings = ServeSettings(waiting_tokens=400)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(bertkit.serve.app, "ShortWay", lambda app, *_: app)
        whole = stack.enter_context(running(models, settings))
        patch.setattr(bertkit.serve.app, "ShortWay", Watched)
        yield stack.enter_context(running(models, settings)), whole


@pytest.fixture(autouse=True)
def _nothing_has_come() -> None:
    LONG_WAY.clear()


def asked_of(both, path, body, method="POST", headers=JSON):
    def told(server):
        reply = server.http.request(method, path, content=body, headers=headers)
        kept = {name: value for name, value in reply.headers.items() if name not in ("x-request-id", "date")}
        if kept.get("content-type") != "application/json":
            return [reply.status_code, kept, reply.content]
        assert int(kept.pop("content-length")) == len(reply.content)  # numbers may have a last digit more or less
        return [reply.status_code, kept, reply.json()]

    short, whole = map(told, both)
    same(short, whole)
    return short


@pytest.mark.parametrize(("path", "body"), GOOD)
def test_good_requests(both, path, body):
    status, headers, content = asked_of(both, path, json.dumps(body).encode())
    assert status == 200
    assert LONG_WAY == []
    assert headers["content-type"] == "application/json"
    assert content
    assert ("bertkit-long-texts" in headers) == (LONG in str(body))


@pytest.mark.parametrize("body", BAD)
def test_bad_requests(both, body):
    status, _, content = asked_of(both, "/v1/embeddings", body)
    assert status in (404, 413, 422)
    assert content["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "status", "long"),
    [
        ({}, 422, True),
        ({"content-type": "text/plain"}, 422, True),
        ({"content-type": "application/json; charset=utf-8"}, 200, False),
        ({"content-type": "Application/JSON;charset=UTF-8"}, 200, False),
        ({"content-type": "application/json;charset=latin-1"}, 200, False),
        ({"content-type": "application/vnd.api+json"}, 200, False),
        ({"content-type": "application/jsonp"}, 422, True),
        ({"content-type": "application/x/y+json"}, 422, True),
    ],
)
def test_kinds_of_content(both, headers, status, long):
    assert asked_of(both, "/v1/embeddings", b'{"input": "a", "model": "fill"}', headers=headers)[0] == status
    assert bool(LONG_WAY) == long


def test_other_methods_and_places(both):
    assert asked_of(both, "/v1/embeddings", b"", method="GET")[0] == 405
    assert asked_of(both, "/v1/embeddings/", b'{"input": "a", "model": "fill"}')[0] == 404
    assert asked_of(both, "/nowhere", b"{}")[0] == 404


def test_a_request_that_is_too_much(both):
    """Refused after it was read: the connection stays."""
    status, headers, _ = asked_of(both, "/v1/embeddings", json.dumps({"input": [LONG] * 40, "model": "fill"}).encode())
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
    """All that take an object: the good requests above try each of them."""
    gate = create_app(both[0].service.models)
    assert isinstance(gate.app, ShortWay)
    documented = both[0].http.get("/openapi.json").json()["paths"]
    posts = {path for path, methods in documented.items() if "post" in methods}
    assert posts <= {route.path for route in gate.app.routes}
    tried = {route.path for route in gate.app.routes for path, _ in GOOD if route.pattern.match(path)}
    assert tried == {route.path for route in gate.app.routes}


def test_a_route_that_asks_for_more_stays_with_fastapi():
    class Asked(BaseModel):
        text: str

    routes = router()

    @routes.post("/one")
    async def one(asked: Asked) -> Response:
        return Response(asked.text)

    @routes.post("/two/{name}")
    async def two(name: str, asked: Asked) -> Response:
        return Response(asked.text + name)

    @routes.post("/two/{number}/again")
    async def two_again(number: int, asked: Asked) -> Response:
        return Response(asked.text * number)

    @routes.post("/three")
    async def three(asked: Asked, name: str = "") -> Response:
        return Response(asked.text + name)

    @routes.post("/four")
    async def four(asked: str) -> Response:
        return Response(asked)

    @routes.get("/five")
    async def five() -> Response:
        return Response("")

    @routes.post("/six")
    def six(asked: Asked) -> Response:
        return Response(asked.text)

    @routes.post("/seven")
    async def seven(asked: Annotated[Asked, Body(embed=True)]) -> Response:
        return Response(asked.text)

    @routes.post("/eight")
    async def eight(*, asked: Asked) -> Response:
        return Response(asked.text)

    @routes.post("/nine", dependencies=[Depends(lambda: None)])
    async def nine(asked: Asked) -> Response:
        return Response(asked.text)

    @routes.post("/ten")
    async def ten(asked: Asked) -> dict[str, str]:
        return {"text": asked.text}

    lenient = APIRouter()
    lenient.post("/eleven")(one)
    found = [short_of(route) is not None for route in [*routes.routes, *lenient.routes]]
    assert found == 2 * [True] + 10 * [False]


@pytest.mark.parametrize("error", [ConnectionResetError("a disk"), TimeoutError("a lock")])
def test_a_route_in_trouble_is_a_failure_and_not_a_client_who_went_away(both, monkeypatch, error):
    async def fail(*_, **__):
        raise error

    monkeypatch.setattr(Service, "answer", fail)
    for server in both:
        reply = server.http.post("/v1/embeddings", json={"input": "a", "model": "fill"})
        assert reply.status_code == 500
        assert reply.headers["x-request-id"] in reply.text
