"""Keys: read from files and the environment, sent in four ways, never told."""

import base64
import io
import logging
import socket
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from serving import running

import bertkit
from bertkit.connection import key_header
from bertkit.errors import RequestError
from bertkit.serve.bench import Load, measure
from bertkit.serve.http import logs
from bertkit.serve.http.auth import Keys, read_keys
from bertkit.serve.http.listener import is_local_name, is_loopback, require_key
from bertkit.serve.settings import ServeSettings

KEY = "a-key-of-our-own"


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


RIGHT = [
    {"Authorization": f"Bearer {KEY}"},
    {"authorization": f"bearer {KEY}"},
    {"X-API-Key": KEY},
    {"api-key": KEY},
    basic("anybody", KEY),
    {"Authorization": "Bearer the-other-key"},
]
WRONG = [
    {},
    {"Authorization": ""},
    {"Authorization": "Bearer"},
    {"Authorization": f"Bearer {KEY}x"},
    {"Authorization": f"Bearer {KEY[:-1]}"},
    {"Authorization": KEY},
    {"Authorization": "Basic ####"},
    {"Authorization": "Basic " + base64.b64encode(KEY.encode()).decode()},
    basic(KEY, "wrong"),
    {"X-API-Key": KEY.upper()},
    {"Cookie": f"key={KEY}"},
]


@pytest.fixture(scope="module")
def guarded(models):
    stream = io.StringIO()
    before = logging.getLogger("bertkit.serve").handlers
    logs.start_logs(stream)
    with running(models, keys=Keys([KEY, "the-other-key"])) as found:
        yield found, stream
    logging.getLogger("bertkit.serve").handlers = before


@pytest.fixture(scope="module")
def routes(guarded):
    server, _ = guarded
    description = server.http.get("/openapi.json", headers=RIGHT[0]).json()
    found = [(method, path) for path, operations in description["paths"].items() for method in operations]
    found += [("get", path) for path in ("/", "/docs", "/docs/docs.js", "/openapi.json", "/inside/look.js", "/nothing")]
    assert len(found) > 20
    return found


@pytest.mark.parametrize("headers", WRONG, ids=str)
def test_every_route_but_health_needs_a_key(guarded, routes, headers):
    server, _ = guarded
    for method, path in routes:
        reply = server.http.request(method, path, headers=headers, json={} if method == "post" else None)
        if path == "/health":
            assert reply.status_code == 200
        else:
            assert reply.status_code == 401, (method, path)
            assert "Bearer" in reply.headers["www-authenticate"]


@pytest.mark.parametrize("headers", RIGHT, ids=str)
def test_a_key_opens_every_route(guarded, routes, headers):
    server, _ = guarded
    for method, path in routes:
        reply = server.http.request(method, path, headers=headers, json={} if method == "post" else None)
        assert reply.status_code != 401, (method, path)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_health_without_a_key_may_only_be_read(guarded, method):
    server, _ = guarded
    assert server.http.head("/health").status_code == 200
    assert server.http.request(method, "/health").status_code == 401
    assert server.http.request(method, "/health", headers=RIGHT[0]).status_code == 405


def test_strangers_cannot_fill_the_memory_for_bodies(models):
    """Bodies that stall on the path that needs no key must not keep out clients that have one."""
    limits, part = ServeSettings(max_bodies=50_000), b"x" * 9_999
    with running(models, limits, Keys([KEY])) as server, ExitStack() as stack:
        place = urlsplit(server.url)
        for _ in range(8):
            stranger = stack.enter_context(socket.create_connection((place.hostname, place.port), timeout=10))
            stranger.sendall(b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n" + part)
            assert b" 401 " in stranger.recv(100)
        assert server.post("/embed", {"inputs": "a"}, headers=RIGHT[0]).status_code == 200


def test_keys_are_never_in_the_logs(guarded):
    server, stream = guarded
    for headers in [*RIGHT, *WRONG]:
        server.http.post("/embed", json={"inputs": "a"}, headers=headers)
    server.http.get(f"/{KEY}?api_key={KEY}", headers={**RIGHT[0], "X-Request-Id": f"{KEY}/{KEY}"})
    written = stream.getvalue()
    assert '"status":401' in written
    assert KEY not in written
    assert "the-other-key" not in written
    assert KEY not in repr(Keys([KEY]).__dict__)


def test_a_file_of_keys(tmp_path, monkeypatch):
    monkeypatch.delenv("BERTKIT_API_KEY", raising=False)
    path = tmp_path / "keys"
    path.write_text("# ours\nfirst-key-1\n\n  second-key-2  \n")
    keys = read_keys(path)
    for key in (b"first-key-1", b"second-key-2"):
        assert keys.admit([(b"x-api-key", key)])
    assert not keys.admit([(b"x-api-key", b"# ours")])
    assert not keys.admit([])
    monkeypatch.setenv("BERTKIT_API_KEY", "third-key-3")
    assert read_keys(path).admit([(b"x-api-key", b"third-key-3")])
    assert not read_keys(None).admit([(b"x-api-key", b"first-key-1")])
    monkeypatch.delenv("BERTKIT_API_KEY")
    assert not read_keys(None)
    assert read_keys(None).admit([])


def test_files_as_editors_write_them(tmp_path, monkeypatch):
    monkeypatch.delenv("BERTKIT_API_KEY", raising=False)
    path = tmp_path / "keys"
    path.write_bytes(b"\xef\xbb\xbffirst-key-1\r\n  # an indented comment\r\nschl\xc3\xbcssel-2\nkey-in-latin-\xfc\n")
    keys = read_keys(path)
    for key in (b"first-key-1", "schlüssel-2".encode(), b"key-in-latin-\xfc"):
        assert keys.admit([(b"x-api-key", key)]), key
    assert not keys.admit([(b"x-api-key", b"# an indented comment")])


@pytest.mark.parametrize("key", [" third-key-3 other-key-4", "third-key-3\n", "schlüssel-3", "key-in-latin-\udcfc"])
def test_a_key_of_the_environment_opens_the_server_that_has_it(models, monkeypatch, key):
    monkeypatch.setenv("BERTKIT_API_KEY", key)
    with running(models, keys=read_keys(None)) as server, bertkit.Client(server.url) as client:
        assert client.embed("a").shape == (16,)
        assert measure(server.url, Load(seconds=0.05), key=None).latencies


def test_a_key_that_is_two(monkeypatch):
    with pytest.raises(RequestError, match="a key has no spaces in it"):
        bertkit.Client(key="one two")
    assert key_header("\n") == {}
    assert key_header(" one-key\n") == {"authorization": b"Bearer one-key"}


@pytest.mark.parametrize(
    ("content", "said"), [("", "holds no key"), ("# only\n", "holds no key"), ("short\n", "guessed")]
)
def test_files_that_hold_no_good_key(tmp_path, content, said):
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(RequestError, match=said):
        read_keys(path)


def test_a_key_on_the_command_line_is_not_taken(tmp_path):
    with pytest.raises(RequestError, match="does not belong on the command line"):
        read_keys(tmp_path / "sk-secret-key")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_loopback_needs_no_key(host):
    assert is_loopback(host)
    require_key(host, Keys(), no_key=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.invalid", "10.0.0.1", ""])
def test_other_addresses_need_one_or_a_word(host):
    with pytest.raises(RequestError, match="lets others in"):
        require_key(host, Keys(), no_key=False)
    require_key(host, Keys([KEY]), no_key=False)
    require_key(host, Keys(), no_key=True)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "localhost.", "page.localhost:1", "127.0.0.1", "127.0.0.1:80", "[::1]:80"]
)
def test_names_of_this_machine(host):
    assert is_local_name(host)


@pytest.mark.parametrize(
    "host",
    ["", "example.org", "localhost.example.org:8000", "127.0.0.1.example.org", "notlocalhost", "[", "::1", "\xff"],
)
def test_names_that_a_foreign_page_may_have(host):
    assert not is_local_name(host)


def test_without_a_key_no_foreign_name_is_answered(models):
    """DNS rebinding: a page whose own name came to point here would else read replies."""
    foreign = {"Host": "example.org:8000"}
    with running(models, local=True) as server:
        replies = [
            server.http.get("/v1/models", headers=foreign),
            server.http.get("/health", headers=foreign),
            server.post("/embed", {"inputs": "a b"}, headers=foreign),
        ]
        assert [reply.status_code for reply in replies] == [421, 421, 421]
        assert "localhost" in replies[2].json()["error"]
        assert server.http.get("/v1/models", headers={"Host": "localhost:1"}).status_code == 200
        assert server.post("/embed", {"inputs": "a b"}).status_code == 200
    with running(models) as server:
        assert server.http.get("/v1/models", headers=foreign).status_code == 200
