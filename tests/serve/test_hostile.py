"""Whatever is sent, nothing fails inside: the specification's own examples gone wild, and bodies made at random."""

import json
import random

import schemathesis
from hypothesis import HealthCheck, given, settings
from serving import wait_until

FUZZED = 2000
EXAMPLES = 8  # for each route
ROUTES = (
    "/v1/embeddings",
    "/embed",
    "/embed_all",
    "/predict",
    "/rerank",
    "/similarity",
    "/tokenize",
    "/decode",
    "/fill",
    "/classify",
    "/tag",
    "/answer",
    "/choose",
    "/attention",
    "/neuron",
    "/",
    "/models/fill",
    "/models/tag/pipeline/token-classification",
)
FIELDS = [
    *("input", "inputs", "text", "texts", "pair", "pairs", "question", "passage", "choices", "query", "model"),
    *("layers", "pooling", "top", "parameters", "dimensions", "encoding_format", "normalize", "too_long", "truncate"),
    *("layer", "head", "ids", "best", "sentences", "source_sentence"),
]
WORDS = [
    "",
    "a",
    "[MASK]",
    "a [MASK] b",
    "|||",
    "a ||| b",
    "x " * 50,
    "\u0000",
    "é漢🙂",
    "fill",
    "none",
    "mean",
    "float",
]
ODD = [None, True, False, 0, -1, 1, 5, 10**30, 1.5, -0.0, 1e308, {}, []]


def value(draw: random.Random, depth: int = 0):
    """Something that JSON can say."""
    kind = draw.random()
    if kind < 0.45:
        return draw.choice(WORDS)
    if kind < 0.65 or depth > 2:
        return draw.choice(ODD)
    if kind < 0.9:
        return [value(draw, depth + 1) for _ in range(draw.randint(0, 4))]
    return {draw.choice(FIELDS): value(draw, depth + 1) for _ in range(draw.randint(0, 3))}


def body(draw: random.Random, needed: dict) -> bytes:
    """The example of a route with some of its fields changed, others added, and now and then a byte."""
    asked = dict(needed)
    for name in draw.sample(FIELDS, draw.randint(0, 3)):
        asked[name] = value(draw)
    for name in list(needed):
        if draw.random() < 0.5:
            asked[name] = value(draw)
    raw = bytearray(json.dumps(asked).encode())
    if draw.random() < 0.1 and raw:
        raw[draw.randrange(len(raw))] = draw.randrange(256)
    return bytes(raw[: draw.randint(0, len(raw))] if draw.random() < 0.05 else raw)


def test_fuzzed_bodies_are_answered_or_refused(server):
    description = server.http.get("/openapi.json").json()
    schemas = description["components"]["schemas"]
    examples = {}
    for path, operations in description["paths"].items():
        content = operations.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json")
        if content:
            examples[path] = schemas[content["schema"]["$ref"].rpartition("/")[2]]["example"]
    draw, seen = random.Random(7), {}
    for number in range(FUZZED):
        path = ROUTES[number % len(ROUTES)]
        sent = body(draw, examples.get(path, {"inputs": "a"}))
        reply = server.http.post(path, content=sent, headers={"content-type": "application/json"})
        seen.setdefault(path, set()).add(reply.status_code)
        assert reply.status_code in (200, 404, 413, 422), f"{path} {sent!r}: {reply.status_code} {reply.text}"
        json.loads(reply.content)
        assert len(reply.headers["x-request-id"]) == 32
    assert set(seen) == set(ROUTES)
    assert all({200, 422} <= statuses for statuses in seen.values()), seen
    wait_until(lambda: server.service.in_progress == 0)
    assert server.service.workers.depth == (0, 0)


def test_nothing_in_the_specification_makes_it_fail(server):
    specification = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    tried = set()
    for found in specification.get_all_operations():
        operation = found.ok()

        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), derandomize=True, deadline=None)
        @given(case=operation.as_strategy())
        def attempt(case):
            reply = case.call(base_url=server.url)
            assert reply.status_code < 500, reply.text
            tried.add(case.path)

        attempt()
    assert len(tried) >= 18
