"""What the door refuses, and that those behind it are not disturbed: sizes, times, crowds, slow and lost clients."""

import concurrent.futures
import contextlib
import json
import socket
import time

import pytest
from serving import Hold, running, wait_until

import bertkit
from bertkit.errors import RequestError
from bertkit.serve.http import middleware, protocol
from bertkit.serve.settings import ServeSettings

TIGHT = ServeSettings(
    max_queue=4, max_body=20_000, max_texts=8, max_characters=2000, max_numbers=4000, seconds=0.6, body_seconds=0.5
)


@pytest.fixture
def tight(models, monkeypatch):
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(middleware, "LINGER_SECONDS", 0.5)
    with running(models, TIGHT) as found:
        yield found


def raw(server, data: bytes = b"", timeout: float = 5.0) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    found = socket.create_connection((host, int(port)), timeout=timeout)
    found.sendall(data)
    return found


def status_line(connection: socket.socket) -> bytes:
    return connection.recv(10_000).split(b"\r\n")[0]


def post(path: str, length: int, *extra: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {length}", *extra]
    return "\r\n".join([*lines, "", ""]).encode()


def test_a_gigabyte_is_refused_before_it_is_read(tight):
    connection = raw(tight, post("/embed", 10**9) + b"x" * 1000)
    assert b"413" in status_line(connection)
    with contextlib.suppress(ConnectionError):
        while connection.recv(4096):
            pass  # and the connection is closed
    assert tight.http.get("/health").status_code == 200


def test_a_gigabyte_in_chunks_is_refused_when_it_is_too_much(tight):
    head = b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection = raw(tight, head)
    chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    sent = 0
    with contextlib.suppress(ConnectionError, TimeoutError):
        for _ in range(1500):
            connection.sendall(chunk)
            sent += 4096
            time.sleep(0.001)
    assert sent < 1500 * 4096
    assert tight.service.in_progress == 0


@pytest.mark.parametrize("length", ["-1", "abc", "99999999999999999999999999", ""])
def test_lengths_that_are_none(tight, length):
    head = f"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    connection = raw(tight, head.encode())
    line = status_line(connection)
    assert b" 4" in line or line == b""
    assert tight.http.get("/health").status_code == 200


def test_who_sends_too_much_and_then_listens_is_told(tight):
    """Python's clients read the reply when all is sent."""
    body = b"x" * (12 << 20)
    connection = raw(tight, post("/embed", len(body)) + body)
    assert b"413" in status_line(connection)
    with bertkit.Client(tight.url) as client, pytest.raises(RequestError, match="413: a request may have 20,000 bytes"):
        client.tag("x" * (12 << 20))


H2C = (
    "Connection: Upgrade, HTTP2-Settings",
    "Upgrade: h2c",
    "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
)


@pytest.mark.parametrize("step", [10_000, 7, 1])
@pytest.mark.parametrize("chunked", [False, True])
def test_an_offer_of_another_protocol_is_ignored(server, step, chunked):
    """As Java's HttpClient and curl --http2 send it; the connection goes on, too."""
    body = json.dumps({"inputs": "a b"}).encode()
    head, framed = post("/embed", len(body), *H2C), body
    if chunked:
        head = head.replace(f"Content-Length: {len(body)}".encode(), b"Transfer-Encoding: chunked")
        framed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    got = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    sent = (head + framed) * 2 + got + post("/embed", len(body)) + body
    connection = raw(server)
    for start in range(0, len(sent), step):
        connection.sendall(sent[start : start + step])
    received = b""
    while received.count(b"HTTP/1.1 ") < 4 or not received.endswith(b"]]"):
        received += connection.recv(10_000)
    assert received.count(b"HTTP/1.1 200 OK") == 4
    connection.close()


def test_headers_have_a_limit(tight):
    for size in (200_000, 20_000_000):
        connection = raw(tight, b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * size)
        assert b"431" in status_line(connection)
        connection.close()
    many = b"".join(b"X-%d: 1\r\n" % number for number in range(20_000))
    assert b"431" in status_line(raw(tight, b"GET /health HTTP/1.1\r\nHost: x\r\n" + many))
    assert b"431" in status_line(raw(tight, b"GET /" + b"x" * 200_000))
    usual = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 30_000 + b"\r\n\r\n"
    connection = raw(tight, usual)
    assert b"200" in status_line(connection)
    connection.sendall(usual)
    assert b"200" in status_line(connection)


CHUNKED = b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE = b'f\r\n{"inputs": "a"}\r\n0\r\n'


def test_trailers_are_dropped(server):
    """They come after the body, and are no headers: what they say of the content does not count."""
    connection = raw(server, CHUNKED + WHOLE + b"Content-Type: text/plain\r\nX-A: 1\r\n\r\n")
    assert b"200" in status_line(connection)
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200" in status_line(connection)


@pytest.mark.parametrize("rest", [b"X-Long: " + b"x" * 20_000_000, b"X-A: 1\r\n" * 66, b"x: y\r\n" * 5_000_000])
def test_trailers_have_a_limit(models, rest):
    """Long before the body's time is over."""
    with running(models) as server:
        connection = raw(server, CHUNKED + WHOLE)
        with contextlib.suppress(ConnectionError):
            connection.sendall(rest)
        assert b"431" in status_line(connection)
        wait_until(lambda: server.service.in_progress == 0)
        assert server.post("/embed", {"inputs": "a"}).status_code == 200


def test_chunks_have_no_endless_extensions(server):
    connection = raw(server, CHUNKED)
    with contextlib.suppress(ConnectionError):
        connection.sendall(b"f;" + b"x" * 20_000_000)
    assert b"431" in status_line(connection)
    body = b"".join(b"1;some=thing\r\n%c\r\n" % each for each in b'{"inputs": "%b"}' % (b"a" * 30_000))
    assert b"200" in status_line(raw(server, CHUNKED + body + b"0\r\n\r\n"))


def test_trailers_after_the_reply_close_the_connection(tight):
    """A full server has answered before they come."""
    tight.service.in_progress, before = 10**6, tight.service.in_progress
    try:
        connection = raw(tight, CHUNKED + b"1\r\n{\r\n")
        assert b"429" in status_line(connection)
    finally:
        tight.service.in_progress = before
    with contextlib.suppress(ConnectionError):
        connection.sendall(b"0\r\n" + b"x: y\r\n" * 100_000)
        assert connection.recv(1000) == b""


def test_a_body_that_comes_after_its_reply_is_no_head(tight):
    """A full server answers 429 at once; what still comes of the request must not be taken for the next one's head."""
    tight.service.in_progress, before = 10**6, tight.service.in_progress
    try:
        connection = raw(tight, post("/embed", 500_000) + b"x" * 10)
        assert b"429" in status_line(connection)
    finally:
        tight.service.in_progress = before
    for _ in range(10):
        connection.sendall(b"x" * 49_999)
        time.sleep(0.01)
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200" in status_line(connection)


def test_an_empty_line_does_not_keep_a_connection_open(tight):
    connection = raw(tight, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200" in status_line(connection)
    connection.sendall(b"\r\n")
    started = time.monotonic()
    assert connection.recv(1000) == b""
    assert time.monotonic() - started < 3


def test_too_many_texts_too_long_texts_too_many_numbers(tight):
    for body, said in (
        ({"inputs": ["a"] * 9}, "inputs has 9 texts; at most 8"),
        ({"inputs": "a" * 2001}, "has 2,001 characters, over the 2,000"),
        ({"inputs": ["a b c d e f g h i"] * 8, "layers": [0, 1, 2], "pooling": "none"}, "would have 4,224 numbers"),
    ):
        reply = tight.post("/embed", body)
        assert reply.status_code == 413
        assert said in reply.json()["error"]
    reply = tight.post("/attention", {"text": "a b c d e f g h " * 3})
    assert reply.status_code == 200
    tokens = ServeSettings(waiting_tokens=10, max_tokens=10)
    with running(tight.service.models, tokens) as small:
        reply = small.post("/embed", {"inputs": ["a b c d e f g h"] * 2})
        assert reply.status_code == 413
        assert "20 tokens, over the 10" in reply.json()["error"]


def test_a_full_queue_is_told_to_come_back(tight, monkeypatch):
    """The first is being computed, the second waits with all tokens that may wait, and there is no room for a third."""
    with running(tight.service.models, ServeSettings(waiting_tokens=10, max_tokens=10)) as small:
        hold = Hold(small, monkeypatch)
        ask = {"inputs": "a b c d e f g h"}
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            first = threads.submit(small.post, "/embed", ask)
            wait_until(lambda: small.service.in_progress == 1 and small.service.workers._busy == 1)
            second = threads.submit(small.post, "/embed", ask)
            wait_until(lambda: small.service.workers.depth == (1, 10))
            reply = small.post("/embed", ask)
            assert reply.status_code == 429
            assert int(reply.headers["retry-after"]) >= 1
            assert "the queue is full" in reply.json()["error"]
            hold.open.set()
            assert [first.result().status_code, second.result().status_code] == [200, 200]


def test_a_crowd_is_told_to_come_back(tight, monkeypatch):
    hold = Hold(tight, monkeypatch)
    ask = {"inputs": "a"}
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        inside = [threads.submit(tight.post, "/embed", ask) for _ in range(4)]
        wait_until(lambda: tight.service.in_progress == 4)
        reply = tight.post("/embed", ask)
        assert reply.status_code == 429
        assert int(reply.headers["retry-after"]) >= 1
        assert "4 requests" in reply.json()["error"]
        assert tight.http.get("/health").status_code == 200
        assert "bertkit_requests_inside 4.0" in tight.http.get("/metrics").text
        hold.open.set()
        assert [each.result().status_code for each in inside] == [200] * 4
    assert tight.post("/embed", ask).status_code == 200


def test_an_answer_that_takes_too_long(tight, monkeypatch):
    hold = Hold(tight, monkeypatch)
    started = time.monotonic()
    reply = tight.post("/v1/embeddings", {"input": "a"})
    assert reply.status_code == 504
    assert reply.json()["error"]["type"] == "timeout_error"
    assert 0.5 < time.monotonic() - started < 3
    second = tight.post("/embed", {"inputs": "b"})  # waits in the queue, and leaves it
    assert second.status_code == 504
    assert tight.service.workers.depth == (0, 0)
    hold.open.set()
    assert tight.post("/embed", {"inputs": "a"}).status_code == 200
    wait_until(lambda: tight.service.in_progress == 0)


def test_a_client_that_goes_away_leaves_the_queue(tight, monkeypatch):
    hold = Hold(tight, monkeypatch)
    body = json.dumps({"inputs": "a b c"}).encode()
    first = raw(tight, post("/embed", len(body)) + body)
    wait_until(lambda: hold.calls == 1)
    second = raw(tight, post("/embed", len(body)) + body)
    wait_until(lambda: tight.service.workers.depth[0] == 1)
    second.close()
    wait_until(lambda: tight.service.workers.depth == (0, 0))
    wait_until(lambda: tight.service.in_progress == 1)
    hold.open.set()
    assert b"200" in status_line(first)
    wait_until(lambda: tight.service.in_progress == 0)
    assert hold.calls == 1
    assert "bertkit_cancelled_total 1.0" in tight.http.get("/metrics").text


def test_a_slow_body_is_not_waited_for(tight):
    connection = raw(tight, post("/embed", 1000) + b"{")
    assert b"408" in status_line(connection)
    assert tight.service.in_progress == 0


def test_slow_loris_does_not_block_and_is_thrown_out(tight):
    crowd = [raw(tight, b"POST /embed HTTP/1.1\r\nHost: x\r\nX-A: ") for _ in range(200)]
    started = time.monotonic()
    assert tight.http.get("/health").status_code == 200
    assert tight.post("/embed", {"inputs": "a"}).status_code == 200
    assert time.monotonic() - started < 1
    silent = raw(tight)
    time.sleep(0.7)
    for connection in (*crowd, silent):
        with contextlib.suppress(ConnectionError):
            assert connection.recv(100) == b"", "closed from the other side"
        connection.close()


def test_a_second_slow_request_on_a_connection_is_thrown_out_too(tight):
    connection = raw(tight, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200" in status_line(connection)
    time.sleep(0.7)  # idle between requests is allowed
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /hea")
    assert b"200" in status_line(connection)
    time.sleep(0.7)
    assert connection.recv(1000) == b""


def test_who_says_nothing_wrong_is_told_what_is_wrong(server):
    for body, status, field in (
        ({}, 422, "input"),
        ({"input": None}, 422, "input"),
        ({"input": []}, 422, "input"),
        ({"input": [[]]}, 422, "input"),
        ({"input": [1.5]}, 422, "input"),
        ({"input": [True]}, 422, "input"),
        ({"input": "a", "encoding_format": "hex"}, 422, "encoding_format"),
        ({"input": "a", "pooling": "median"}, 422, "pooling"),
        ({"input": "a", "pooling": "none"}, 422, "pooling"),
        ({"input": "a", "layers": [9]}, 422, "layers"),
        ({"input": "a", "layers": []}, 422, "layers"),
        ({"input": "a", "dimensions": 0}, 422, "dimensions"),
        ({"input": "a", "too_long": "cut"}, 422, "too_long"),
        ({"input": "a", "model": "gpt-4"}, 404, "model"),
        ([], 422, None),
        ("text", 422, None),
    ):
        reply = server.post("/v1/embeddings", body)
        assert reply.status_code == status, body
        error = reply.json()["error"]
        assert (error["param"] or "").split(".")[0] == (field or ""), body
        assert len(error["message"]) < 500
    reply = server.post("/fill", {"text": "[MASK]", "tops": 3})
    assert reply.json()["field"] == "tops"
    missing = server.post("/embed", {"text": "a"}).json()["error"]
    assert missing == "inputs: this field is missing from the request; /docs shows one that works"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"inputs": "\\ud800"}',
        b'{"inputs": NaN}',
        b"[" * 50_000,
        b'{"inputs":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"inputs": 1e999}',
        b'{"inputs": ' + b"9" * 5000 + b"}",
        b'{"inputs": "a", "inputs": 3}',
    ],
    ids=lambda body: repr(body[:20]),
)
def test_bodies_that_are_no_json(server, body):
    reply = server.http.post("/embed", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 422
    assert reply.json()["error"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"])
def test_other_types_of_body_are_refused(server, kind):
    """A page of another origin could send these without asking the browser's leave."""
    reply = server.http.post("/embed", content=b'{"inputs": "a"}', headers={"content-type": kind})
    assert reply.status_code == 422
    assert "application/json" in reply.json()["error"]


def test_paths_and_methods_that_are_not_there(server):
    assert server.http.get("/nothing").status_code == 404
    assert server.http.get("/embed").status_code == 405
    assert "takes POST, not GET; /docs" in server.http.get("/embed").json()["error"]
    assert "nothing at this address; /docs" in server.http.post("/clasify", json={}).json()["error"]
    assert server.http.put("/health").status_code == 405
    assert server.http.head("/embed").status_code == 405
    assert server.http.head("/nothing").status_code == 404
    assert server.http.get("/health/").status_code == 404
    assert server.http.get("/nothing").json()["error"]


@pytest.mark.parametrize("path", ["/health", "/", "/docs", "/v1/models", "/metrics", "/docs/docs.js", "/openapi.json"])
def test_the_head_of_what_may_be_read(server, path):
    head, whole = server.http.head(path), server.http.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers.get("content-type") == whole.headers.get("content-type")
    assert "content-length" in head.headers


def test_request_ids_and_headers(server):
    reply = server.http.get("/health", headers={"X-Request-Id": "mine-1"})
    assert reply.headers["x-request-id"] == "mine-1"
    strange = server.http.get("/health", headers={"X-Request-Id": 'x" onload'}).headers["x-request-id"]
    assert strange.isalnum()
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["content-security-policy"].startswith("default-src 'none'")
    assert "access-control-allow-origin" not in reply.headers
    assert "server" not in reply.headers


def test_a_failure_inside_is_one_sentence_and_a_log(models, monkeypatch, caplog):
    with running(models) as server:
        shared = server.service.models.named(None).shared_encoder
        monkeypatch.setattr(type(shared), "compute", lambda own, pieces: 1 / 0)
        with caplog.at_level("ERROR", logger="bertkit.serve"):
            reply = server.post("/embed", {"inputs": "a"})
        assert reply.status_code == 500
        assert reply.headers["x-request-id"] in reply.json()["error"]
        assert "division" not in reply.text
        monkeypatch.undo()
        assert server.post("/embed", {"inputs": "a"}).status_code == 200


def test_ready_and_metrics(server):
    assert server.http.get("/ready").status_code == 200
    server.post("/embed", {"inputs": "a b " * 40})
    counted = 'bertkit_requests_total{route="/embed",status="200"}'
    wait_until(lambda: counted in server.http.get("/metrics").text)  # counted once the reply is out
    text = server.http.get("/metrics").text
    for name in (
        'bertkit_request_seconds_bucket{le="0.1",route="/embed"}',
        "bertkit_queue_requests 0.0",
        "bertkit_queue_tokens 0.0",
        "bertkit_batch_fill_bucket",
        "bertkit_tokens_total",
        "bertkit_padding_saved_tokens_total",
        'bertkit_long_texts_total{policy="truncate"}',
    ):
        assert name in text, name


def test_static_files(server):
    page = server.http.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "connect-src 'self'" in page.headers["content-security-policy"]
    assert "'unsafe" not in page.headers["content-security-policy"]
    assert "http" not in page.headers["content-security-policy"]
    again = server.http.get("/docs", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    script = server.http.get("/docs/docs.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert script.headers["cache-control"] == "no-cache"
    assert server.http.get("/inside/look.js").status_code == 200
    assert server.http.get("/").headers["content-type"].startswith("text/html")
    for path in (
        "/docs/../app.py",
        "/docs/%2e%2e/app.py",
        "/docs/nothing.js",
        "/inside/..%2fpage.py",
        "/docs//etc/passwd",
    ):
        assert server.http.get(path).status_code == 404, path
    for file in ("index.html", "docs.js", "docs.css"):
        assert "://" not in server.http.get(f"/docs/{file}").text, "nothing is loaded from elsewhere"
