"""The load generator, and the files of deployment."""

import configparser
import json
import re
import shlex
import socket
import threading
from pathlib import Path

import pytest
from serving import running

from bertkit.errors import BertkitError, RequestError
from bertkit.serve.bench import Load, LoadResult, bodies, measure, table
from bertkit.serve.http.auth import Keys
from bertkit.serve.settings import ServeSettings

ROOT = Path(__file__).parents[2]


def count(server, status=200):
    found = re.search(rf'bertkit_requests_total{{route="/v1/embeddings",status="{status}"}} (\d+)', _metrics(server))
    return int(found.group(1)) if found else 0


def _metrics(server):
    return server.http.get("/metrics").text


def test_closed_loop(server):
    before = count(server)
    found = measure(server.url, Load(clients=3, batch=2, length=4, seconds=0.3))
    assert len(found.latencies) >= 3
    assert found.refused == 0
    assert count(server) - before in (len(found.latencies), len(found.latencies) - 1, len(found.latencies) - 2)
    assert found.texts_per_second == pytest.approx(2 * len(found.latencies) / found.seconds)
    assert 0 < found.latency(0.5) <= found.latency(0.99) <= max(found.latencies)


def test_open_loop_keeps_its_rate(server):
    found = measure(server.url, Load(clients=2, length=2, seconds=1.0, rate=30.0))
    assert 10 <= len(found.latencies) <= 60


def test_open_loop_counts_from_the_moment_due(models):
    """A server that is full refuses; one that stalls makes those wait who were due meanwhile."""
    with running(models, ServeSettings(max_queue=1, max_tokens=8)) as small:
        found = measure(small.url, Load(clients=8, batch=64, length=8, seconds=0.5))
        assert found.refused > 0
        assert found.latencies


def test_requests_are_drawn_from_the_seed():
    load = Load(batch=3, length=5)
    assert bodies(load, None, 1) == bodies(load, None, 1) != bodies(load, None, 2)
    body = json.loads(bodies(load, "m", 1)[0])
    assert body["model"] == "m"
    assert [len(text.split()) for text in body["input"]] == [5, 5, 5]


def test_the_table_and_the_percentiles():
    row = LoadResult(Load(batch=4), 2.0, tuple(n / 1000 for n in range(1, 101)), refused=1)
    assert row.texts_per_second == 200.0
    assert [row.latency(share) for share in (0.5, 0.9, 0.99)] == [0.051, 0.091, 0.1]
    head, line = table([row], "batch").splitlines()
    assert head.split()[:2] == ["batch", "texts/s"]
    assert line.split() == ["4", "200.0", "100", "1", "51.0", "91.0", "100.0"]
    assert row.to_json()["p99"] == 0.1


def test_what_cannot_be_measured_is_said(models):
    with pytest.raises(BertkitError, match="gave no answer"):
        measure("http://127.0.0.1:9", Load(seconds=0.1))
    with pytest.raises(RequestError, match="no address"):
        measure("127.0.0.1:8000", Load())
    with pytest.raises(RequestError, match="clients=0 must be over 0"):
        Load(clients=0)
    for name, wrong in (("rate", float("inf")), ("rate", float("nan")), ("seconds", float("nan")), ("rate", -1.0)):
        with pytest.raises(RequestError, match=f"{name}={wrong} must be over 0"):
            Load(**{name: wrong})
    for url in ("http://127.0.0.1:99999", "http://127.0.0.1:abc", "http://a..b"):
        with pytest.raises(RequestError, match="no address"):
            measure(url, Load(seconds=0.1))
    with running(models, keys=Keys(["a-good-key"])) as server:
        with pytest.raises(BertkitError, match="refused all"):
            measure(server.url, Load(seconds=0.1))
        assert measure(server.url, Load(seconds=0.1), key="a-good-key").latencies


@pytest.mark.parametrize("said", [b"220 mail.example.org\r\n\r\n", b"x" * 200_000, b"HTTP/1.1 200 OK\r\n\r\n"])
def test_what_is_no_server_is_said(said):
    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=lambda: other.accept()[0].sendall(said), daemon=True).start()
        with pytest.raises(BertkitError, match="answered what is not HTTP|gave no answer"):
            measure(f"http://127.0.0.1:{other.getsockname()[1]}", Load(seconds=0.1))


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{"])
@pytest.mark.parametrize("rate", [None, 20.0])
def test_a_port_that_never_answers_is_not_waited_for(said, rate):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = []

        def take() -> None:
            while True:
                taken.append(other.accept()[0])
                taken[-1].sendall(said)

        threading.Thread(target=take, daemon=True).start()
        port = other.getsockname()[1]
        with pytest.raises(BertkitError, match=rf"127\.0\.0\.1 port {port} did not answer within 0\.3 s; "):
            measure(f"http://127.0.0.1:{port}", Load(seconds=0.1, rate=rate), timeout=0.3)
        assert taken


def test_the_command(server, bertkit_command, command_here):
    options = ("--seconds", "0.1", "--clients", "1,2", "--batch", "1", "--length", "2,3", "--json")
    done = bertkit_command("bench", server.url, *options)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["by"], row[row["by"]]) for row in rows] == [
        ("batch", 1),
        ("length", 2),
        ("length", 3),
        ("clients", 1),
        ("clients", 2),
    ]
    assert command_here("bench", server.url, "--clients", "many").returncode == 2
    assert command_here("bench", "http://127.0.0.1:9").returncode == 1


def test_the_dockerfile_is_in_order():
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    words = {line.split()[0] for line in lines}
    known = {
        "FROM",
        "ENV",
        "WORKDIR",
        "COPY",
        "RUN",
        "USER",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    }
    assert words == known
    assert lines[0].startswith("FROM python:3.")
    assert ":latest" not in text
    for line in lines:
        if line.startswith("COPY"):
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source
    user = max(n for n, line in enumerate(lines) if line.startswith("USER"))
    assert lines[user] != "USER root"
    assert user < next(n for n, line in enumerate(lines) if line.startswith("ENTRYPOINT"))
    entry = json.loads(next(line for line in lines if line.startswith("ENTRYPOINT")).partition(" ")[2])
    assert entry == ["bertkit", "serve"]
    options(json.loads(lines[-1].partition(" ")[2]))
    assert "constraints.txt" in next(line for line in lines if line.startswith("RUN"))


def test_the_unit_is_in_order():
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read_string((ROOT / "deploy" / "bertkit.service").read_text())
    assert unit.sections() == ["Unit", "Service", "Install"]
    service = unit["Service"]
    command = shlex.split(service["ExecStart"])
    assert command[0].endswith("/bertkit")
    assert command[1] == "serve"
    options(command[2:])
    assert service["KillSignal"] == "SIGTERM"
    assert int(service["TimeoutStopSec"]) > 2 * ServeSettings().seconds


def options(words: list[str]) -> None:
    """Every option is one of `bertkit serve`."""
    import inspect

    from bertkit.cli.serve import serve

    known = {"--" + name.replace("_", "-") for name in inspect.signature(serve).parameters}
    assert {word for word in words if word.startswith("--")} <= known
