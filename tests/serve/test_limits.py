"""Memory for request bodies is bounded, and large bodies do not hold up the event loop."""

import asyncio
import concurrent.futures
import gc
import json
import random
import threading
import time

import httpx
import pytest
from serving import Hold, running, wait_until

from bertkit.serve.http.middleware import CONTAINER_VALUES, ValueCounter
from bertkit.serve.settings import OFF_LOOP_SIZE, ServeSettings

MAX_SHARE = 0.75  # of the time that parsing a million short texts takes, for one callback of the event loop
ROUNDS = 3  # work in the event loop is there in every round; page faults and pauses of a shared machine are not
JSON = {"content-type": "application/json"}


def cost(value: object) -> int:
    """What the counter must find, from the parsed value."""
    if isinstance(value, dict):
        return CONTAINER_VALUES * (1 + len(value)) + max(0, len(value) - 1) + sum(map(cost, value.values()))
    if isinstance(value, list):
        return CONTAINER_VALUES + max(0, len(value) - 1) + sum(map(cost, value))
    return 0


def some_value(draw: random.Random, depth: int = 0) -> object:
    kind = draw.random()
    if kind < 0.4:
        return "".join(draw.choices('a"\\,[]{}:é\n', k=draw.randint(0, 6)))
    if kind < 0.6 or depth > 3:
        return draw.choice([1, None, True, -2.5])
    items = [some_value(draw, depth + 1) for _ in range(draw.randint(0, 4))]
    return items if kind < 0.8 else {f'{number}"\\,'[: draw.randint(1, 4)]: item for number, item in enumerate(items)}


@pytest.mark.parametrize("step", [1, 2, 7, 10_000])
def test_values_are_counted_outside_of_strings_only(step):
    draw = random.Random(step)
    for _ in range(500):
        value, counter = some_value(draw), ValueCounter()
        body = json.dumps(value, ensure_ascii=draw.random() < 0.5).encode()
        for at in range(0, len(body), step):
            counter.add(body[at : at + step])
        assert counter.total == cost(value)


def test_a_body_counts_until_its_answer_is_sent(models, monkeypatch):
    body = {"inputs": "a " * 8_000}
    with running(models, ServeSettings(max_bodies=30_000)) as server:
        hold = Hold(server, monkeypatch)
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            first = threads.submit(server.post, "/embed", body)
            wait_until(lambda: hold.calls == 1)
            refused = server.post("/embed", body)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert server.post("/tokenize", {"inputs": "a"}).status_code == 200
            hold.open.set()
            assert first.result().status_code == 200
        assert server.post("/embed", body).status_code == 200


def test_values_count_as_the_memory_that_they_take(models):
    """20,000 token ids are 40 kB of JSON, and more than a megabyte of Python objects."""
    ids = {"inputs": [7] * 20_000}
    with running(models, ServeSettings(max_bodies=1_000_000)) as server:
        assert server.post("/embed", ids).status_code == 429
        assert server.post("/embed", {"inputs": "7, " * 20_000}).status_code == 200
    with running(models, ServeSettings(max_values=10_000)) as server:
        reply = server.post("/embed", ids)
        assert reply.status_code == 413
        assert "10,000 JSON values" in reply.json()["error"]
        assert server.post("/embed", {"inputs": "7, " * 20_000}).status_code == 200


@pytest.mark.parametrize("wide", ["\\ud83d\\ude42", "🙂"])
def test_one_wide_character_makes_the_whole_text_wide(models, wide):
    with running(models, ServeSettings(max_bodies=100_000)) as server:
        for text, status in (("a" * 50_000, 200), ("a" * 50_000 + wide, 429), ("a" * 50_000 + "\\\\ud83d", 200)):
            body = f'{{"inputs": "{text}"}}'.encode()
            assert server.http.post("/embed", content=body, headers=JSON).status_code == status


def test_what_is_wrong_with_a_large_body_is_told(server):
    text = "a " * OFF_LOOP_SIZE
    for path, body, status, field in (
        ("/embed", {"inputs": [text, 3]}, 422, "inputs"),
        ("/embed", {"input": text}, 422, "inputs"),
        ("/fill", {"text": text, "tops": 3}, 422, "tops"),
        ("/models/nobody", {"inputs": text}, 404, "model"),
        ("/rerank", {"query": "a", "texts": [7] * OFF_LOOP_SIZE}, 422, "texts.0"),
        ("/embed", {str(number): 0 for number in range(5_000)}, 422, None),
        ("/predict", {"inputs": [["a"]] * 5_000}, 413, "inputs"),
        ("/rerank", {"query": "a", "texts": ["a"] * 10_000, "model": "regress"}, 413, "texts"),
        ("/models/classify", {"inputs": ["a"] * 10_000}, 413, "inputs"),
    ):
        reply = server.post(path, body)
        assert (reply.status_code, reply.json()["field"]) == (status, field), reply.text
    broken = server.http.post("/embed", content=b'{"inputs": "' + text.encode(), headers=JSON)
    assert (broken.status_code, "not JSON" in broken.text) == (422, True)
    twice = [("content-type", "application/json"), ("content-type", "application/json")]
    odd = server.http.post("/embed", content=json.dumps({"inputs": text}), headers=twice)
    assert (odd.status_code, "Content-Type" in odd.text) == (422, True)


@pytest.fixture
def sections(monkeypatch):
    """CPU seconds of the longest callback on the event loop of each server's thread."""
    longest: dict[str, float] = {}
    plain = asyncio.Handle._run

    def timed(handle) -> None:
        started = time.thread_time()
        plain(handle)
        name = threading.current_thread().name
        longest[name] = max(longest.get(name, 0.0), time.thread_time() - started)

    monkeypatch.setattr(asyncio.Handle, "_run", timed)
    gc.collect()
    gc.freeze()  # objects of other tests are not searched for garbage inside a callback
    yield longest
    gc.unfreeze()


IDS = b"[" + b",".join([b"7"] * 199_000) + b"]"
LARGE_BODIES = {
    "4 million token ids": ("/embed", b'{"inputs":[' + b",".join([IDS] * 20) + b"]}", 413),
    "1 million token ids": ("/embed", b'{"inputs":[' + b",".join([IDS.replace(b"7", b"11")] * 5) + b"]}", 200),
    "1 million token ids for Hugging Face": ("/models/fill", b'{"inputs":[' + b",".join([IDS] * 5) + b"]}", 200),
    "1 million short texts": ("/rerank", b'{"query":"a","texts":[' + b",".join([b'"ab"'] * 1_000_000) + b"]}", 413),
    "1 million wrong texts": ("/rerank", b'{"query":"a","texts":[' + b",".join([b"7"] * 1_000_000) + b"]}", 422),
    "1 million words": ("/tag", b'{"texts":[[' + b",".join([b'"ab"'] * 1_000_000) + b"]]}", 413),
    "60,000 objects": ("/models/fill", b'{"inputs":[' + b",".join([b"{}"] * 60_000) + b"]}", 413),
    "60,000 fields": ("/fill", b"{" + b",".join(b'"%d":1' % number for number in range(60_000)) + b"}", 422),
    "one long text": ("/embed", b'{"inputs":"' + b"a, " * 2_700_000 + b'"}', 413),
    "escaped characters": ("/embed", b'{"inputs":"' + rb"\"\\" * 1_900_000 + b'"}', 413),
}


@pytest.fixture(scope="module")
def parse_seconds() -> float:
    """What this machine's CPU takes to parse a million short texts: the measure of "long" for a callback."""
    seconds = []
    for _ in range(3):
        started = time.thread_time()
        json.loads(LARGE_BODIES["1 million short texts"][1])
        seconds.append(time.thread_time() - started)
    return min(seconds)


@pytest.mark.parametrize("name", LARGE_BODIES)
def test_large_bodies_do_not_hold_up_the_event_loop(models, sections, parse_seconds, name):
    path, body, status = LARGE_BODIES[name]
    with running(models, loop="asyncio") as server, concurrent.futures.ThreadPoolExecutor(12) as threads:

        def ask() -> int:
            return httpx.post(server.url + path, content=body, headers=JSON, timeout=60).status_code

        longest = []
        for _ in range(ROUNDS):
            sections.clear()
            found = {each.result() for each in [threads.submit(ask) for _ in range(12)]}
            assert status in found <= {status, 429}
            longest.append(sections.pop(server.thread))
            if longest[-1] < MAX_SHARE * parse_seconds:
                return
        pytest.fail(f"the longest callbacks of {ROUNDS} rounds: {longest}; parsing takes {parse_seconds}")
