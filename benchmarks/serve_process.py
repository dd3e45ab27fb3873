"""A server as a process of its own, watched from outside, and the plainest client: what the serve_*.py here share."""

import asyncio
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

HOST = "127.0.0.1"
OFFLINE = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
START_SECONDS = 180.0  # for the slowest peer on a busy machine


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """One connection that is kept open; opened again when the server has closed it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, raw: bytes) -> Reply:
        """Send the bytes of a request, read all of the reply."""
        reader, writer = await self.open()
        writer.write(raw)
        return await self.read(reader)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The two ends."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(HOST, self.port, limit=1 << 20)
        return self._streams

    async def read(self, reader: asyncio.StreamReader) -> Reply:
        """One reply; every server measured here states its length."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in head[1:] if line)
        headers = {name.lower(): value.strip() for name, _, value in fields}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection", "").lower() == "close":
            self.close()
        return Reply(int(head[0].split(" ")[1]), headers, body)

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def post(path: str, body: bytes, **headers: str) -> bytes:
    """The bytes of a request; names of headers are written with _ for -."""
    given = {"content_type": "application/json", **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in given.items()]
    start = "\r\n".join([f"POST {path} HTTP/1.1", f"host: {HOST}", *lines, f"content-length: {len(body)}"])
    return start.encode() + b"\r\n\r\n" + body


def get(path: str) -> bytes:
    """The bytes of a request without a body."""
    return f"GET {path} HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode()


async def health(port: int) -> float:
    """Seconds until /health answered on a new connection."""
    started, connection = time.perf_counter(), Connection(port)
    reply = await asyncio.wait_for(connection.send(get("/health")), 30)
    connection.close()
    if reply.status != 200:
        raise SystemExit(f"/health answered {reply.status}")
    return time.perf_counter() - started


class ServerProcess:
    """A server that was started here and is ended here; `log` gets whatever it prints."""

    def __init__(self, command: Sequence[str], port: int, log: Path, **environment: str) -> None:
        self.port, self.log = port, log
        own = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
            "INFINITY_ANONYMOUS_USAGE_STATS": "0",
            **environment,
        }
        with log.open("wb") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=own)
        self._watched = psutil.Process(self._process.pid)

    def wait_for(self, raw: bytes) -> None:
        """Until this request is answered with 200."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise SystemExit(f"a server ended before it began: {self.log.read_text(errors='replace')[-3000:]}")
            try:
                if asyncio.run(self._answered(raw)):
                    return
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                pass
            time.sleep(0.25)
        raise SystemExit(f"no answer within {START_SECONDS:g} s: {self.log.read_text(errors='replace')[-3000:]}")

    async def _answered(self, raw: bytes) -> bool:
        connection = Connection(self.port)
        reply = await asyncio.wait_for(connection.send(raw), 60)
        connection.close()
        return reply.status == 200

    def cpu_seconds(self) -> float:
        """Of the process and all that it started."""
        times = [each.cpu_times() for each in (self._watched, *self._watched.children(recursive=True))]
        return sum(each.user + each.system for each in times)

    def memory(self) -> int:
        """Bytes that the process holds in memory."""
        return int(self._watched.memory_info().rss)

    @property
    def alive(self) -> bool:
        """Whether it is still there."""
        return self._process.poll() is None

    def end(self) -> int:
        """SIGTERM, and the exit code."""
        self._process.terminate()
        try:
            return self._process.wait(90)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def bertkit_server(models: Sequence[str], log: Path, *more: str, **environment: str) -> ServerProcess:
    """Ours, ready to answer."""
    port = free_port()
    command = [sys.executable, "-m", "bertkit", "serve", *models, "--port", str(port), *more]
    server = ServerProcess(command, port, log, **environment)
    server.wait_for(get("/ready"))
    return server


def machine() -> dict[str, Any]:
    """Where this ran, and how busy it was."""
    load = [round(each, 2) for each in os.getloadavg()]
    return {"cores": os.cpu_count(), "python": platform.python_version(), "load_average": load}


def write_report(report: dict[str, Any], path: Path | None) -> None:
    """Print it, and keep it where a file is named."""
    from bertkit.files import whole_file

    text = json.dumps(report, indent=2) + "\n"
    if path is not None:
        with whole_file(path) as draft:
            draft.write_text(text, encoding="utf-8")
    print(text, end="")
