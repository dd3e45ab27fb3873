"""`bertkit serve` as a process: its door, its end under load, its sudden death."""

import gc
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace

import httpx
import numpy as np
import pytest
import taught
import torch
from serving import wait_until

import bertkit
from bertkit.errors import RequestError
from bertkit.serve.http.listener import bind
from bertkit.serve.memory import tune_gc
from bertkit.serve.models import load_models
from bertkit.serve.settings import ServeSettings, fitted


class Process:
    """A server as its own process; `lines` are its log."""

    def __init__(self, *arguments: object, port: int = 0, **environment: str):
        command = [sys.executable, "-m", "bertkit", "serve", *map(str, arguments), "--port", str(port)]
        own = {**os.environ, **taught.ONE_THREAD, **environment}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
        self._reader.start()
        self.greeting = self.process.stdout.readline()
        assert " at http://" in self.greeting, "".join(self.lines)
        self.url = self.greeting.split(" at ")[1].split(" - ")[0]

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._reader.join(10)
        return code


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_sigterm_under_load_answers_every_accepted_request(folders):
    """Every request the server took in was answered in full, and every answer is the one asked for."""
    server = Process(f"fill={folders['fill']}", "--max-tokens", "64")
    expected = bertkit.load(folders["fill"]).embed([f"{letter} b" for letter in "abcdefgh"])
    answered, cut_off = queue.Queue(), queue.Queue()
    stop = threading.Event()

    def client(number: int) -> None:
        body = {"input": [f"{letter} b" for letter in "abcdefgh"[: number % 8 + 1]]}
        while not stop.is_set():
            try:
                reply = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=30)
            except (httpx.ConnectError, httpx.ReadError, httpx.WriteError):
                return  # not taken in any more
            except httpx.RemoteProtocolError as error:
                cut_off.put(error)
                return
            assert reply.status_code == 200
            answered.put((number, [row["embedding"] for row in reply.json()["data"]]))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    wait_until(lambda: answered.qsize() >= 50, 60)
    assert server.end() == 0
    stop.set()
    for thread in threads:
        thread.join(30)
    logged = [json.loads(line) for line in server.lines]
    taken_in = [line for line in logged if line["event"] == "request"]
    assert {line["status"] for line in taken_in} == {200}
    assert len(taken_in) == answered.qsize() >= 50
    assert cut_off.empty() or "without sending" in str(cut_off.get())
    while not answered.empty():
        number, rows = answered.get()
        np.testing.assert_allclose(rows, expected[: number % 8 + 1], atol=1e-5)


def test_a_client_with_retries_loses_nothing_to_kill_nine(folders):
    port = free_port()
    server = Process(f"fill={folders['fill']}", port=port)
    assert httpx.get(f"{server.url}/ready", headers={"Host": "example.org"}).status_code == 421, "a foreign name"
    texts = [f"{letter} b c" for letter in "abcdefghij"]
    expected = bertkit.load(folders["fill"]).embed(texts)
    found: dict[int, np.ndarray] = {}

    def client(number: int) -> None:
        with bertkit.Client(server.url, retries=12) as own:
            for turn in range(30):
                key = (number * 7 + turn) % len(texts)
                np.testing.assert_allclose(own.embed(texts[key]), expected[key], atol=1e-5)
                found[number] = turn

    threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(found) >= 4, 60)
    server.end(signal.SIGKILL)
    again = Process(f"fill={folders['fill']}", port=port)
    for thread in threads:
        thread.join(60)
    assert found == dict.fromkeys(range(4), 29)
    assert again.end(signal.SIGINT) == 0


def test_ports_hosts_and_times_that_cannot_be():
    for port in (-1, 65_536, 99_999):
        with pytest.raises(RequestError, match=f"--port {port} must be from 1 to 65535"):
            bind("127.0.0.1", port)
    with pytest.raises(RequestError, match="--host a..b is no name or address of a machine"):
        bind("a..b", 0)
    for seconds in (float("inf"), float("nan"), -1.0, 0.0):
        with pytest.raises(RequestError, match=f"timeout={seconds} must be a number of seconds over 0"):
            ServeSettings(seconds=seconds)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "lets others in, and no key is set"),
        (["--api-key", "my-secret-key"], "does not belong on the command line"),
        (["--too-long", "cut"], "unknown length policy 'cut'"),
        (["--max-tokens", "0"], "max-tokens=0 must be at least 1"),
    ],
)
def test_requests_that_cannot_be(command_here, folders, arguments, said, monkeypatch):
    monkeypatch.delenv("BERTKIT_API_KEY", raising=False)
    done = command_here("serve", folders["fill"], "--port", "0", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_models_that_cannot_be(folders, tmp_path):
    cpu = torch.device("cpu")
    with pytest.raises(RequestError):
        load_models([str(tmp_path)], cpu)
    with pytest.raises(RequestError, match="two models are called 'fill'; name them apart"):
        load_models([str(folders["fill"]), str(folders["fill"])], cpu)
    shutil.copytree(folders["fill"], tmp_path / "mute")
    for name in ("tokenizer.json", "vocab.txt"):
        (tmp_path / "mute" / name).unlink(missing_ok=True)
    with pytest.raises(RequestError, match="holds no tokenizer, so its model can read nothing"):
        load_models([str(tmp_path / "mute")], cpu)
    with pytest.raises(RequestError, match="one: int8 is for CPUs; on 'meta' choose bfloat16, float16 or float32"):
        load_models([f"one={folders['fill']}"], torch.device("meta"), dtype="int8")
    named = load_models([f"one={folders['fill']}", str(folders["tag"])], cpu)
    assert list(named.by_name) == ["one", "tag"]


def test_a_port_that_is_taken(command_here, folders):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        done = command_here("serve", folders["fill"], "--port", other.getsockname()[1])
    assert done.returncode == 1
    assert "cannot be listened at: Address already in use; choose another --port" in done.stderr


def test_what_nobody_asked_for_is_what_suits_the_device():
    plain = ServeSettings(max_tokens=100, workers=1)
    assert fitted(plain, "cpu", 2) == replace(plain, workers=2)
    assert fitted(plain, "cpu", 64) == replace(plain, workers=4)
    assert fitted(plain, "cpu", 64, {"workers"}) == plain
    assert fitted(plain, "cuda:0", 64) == replace(plain, max_tokens=32_768)
    assert fitted(plain, "cuda:0", 64, {"max_tokens"}) == plain


def test_what_is_loaded_is_not_looked_through_for_garbage():
    usual, thresholds = sys.getswitchinterval(), gc.get_threshold()
    try:
        tune_gc()
        assert gc.get_freeze_count() > 10_000  # torch alone is more
        assert sys.getswitchinterval() < usual
        assert gc.get_threshold()[0] > 10 * thresholds[0]
        assert sum(map(len, (gc.get_objects(generation=number) for number in range(3)))) < 10_000
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(usual)
