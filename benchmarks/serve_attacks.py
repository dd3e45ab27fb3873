"""Clients that mean it ill, each with /health timed beside it: part of serve_fuzz.py."""

import asyncio
import contextlib
import json
import multiprocessing
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from serve_process import HOST, Connection, ServerProcess, free_port, get, health, post

MOST_SECONDS = 1.0  # for /health, whatever goes on
CROWD = 10_000
LORIS, LORIS_SECONDS = 500, 14
GIGABYTE = 1 << 30
LONG_IDS, BODIES = 40_000, 12
STRANGERS, STALLED, KEY = 40, 8 << 20, "a-key-of-our-own"
GROWTH = 256 << 20  # bytes that any of this may cost the server; 10,000 connections are some


async def attack(server: ServerProcess) -> dict[str, dict[str, Any]]:
    """All of them, one after the other."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    found = {}
    for name, work in ATTACKS.items():
        before, watcher = server.memory(), Watcher(server.port)
        facts = await work(server)
        waits, growth = await asyncio.to_thread(watcher.end), server.memory() - before
        fine = bool(facts.pop("fine", True)) and max(waits) < MOST_SECONDS and growth < GROWTH
        facts |= {"health_seconds": round(max(waits), 3), "asked": len(waits), "growth_mb": round(growth / 1e6, 1)}
        found[name] = {**facts, "fine": fine}
    return found


class Watcher:
    """Asks /health five times a second, in a process of its own: what the attackers do here must not count."""

    def __init__(self, port: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._own, other = context.Pipe()
        self._process = context.Process(target=watch, args=(port, other), daemon=True)
        self._process.start()
        self._own.recv()  # it has begun

    def end(self) -> list[float]:
        """Seconds of each answer; one that did not come is without end."""
        self._own.send("end")
        waits: list[float] = self._own.recv()
        self._process.join()
        return waits


def watch(port: int, told: Pipe) -> None:
    """Until something is said."""
    waits: list[float] = []
    while not told.poll(0.2):
        try:
            waits.append(asyncio.run(health(port)))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            waits.append(float("inf"))
        if len(waits) == 1:
            told.send("begun")
    told.send(waits)


async def slow_loris(server: ServerProcess) -> dict[str, Any]:
    """Headers a byte at a time: the server hangs up."""
    closed = 0

    async def drip() -> None:
        nonlocal closed
        reader, writer = await asyncio.open_connection(HOST, server.port)
        writer.write(b"POST /embed HTTP/1.1\r\nhost: localhost\r\nx-slow: ")
        with contextlib.suppress(OSError):
            for _ in range(LORIS_SECONDS):
                writer.write(b"a")
                await asyncio.sleep(1)
        closed += reader.at_eof()
        writer.close()

    await asyncio.gather(*(drip() for _ in range(LORIS)))
    return {"connections": LORIS, "closed_by_server": closed, "fine": closed == LORIS}


async def giant(server: ServerProcess, *, stated: bool) -> dict[str, Any]:
    """A gigabyte, sent as long as the server takes it."""
    reader, writer = await asyncio.open_connection(HOST, server.port)
    length = f"content-length: {GIGABYTE}" if stated else "transfer-encoding: chunked"
    lines = ["POST /embed HTTP/1.1", "host: localhost", "content-type: application/json", length, "", ""]
    writer.write("\r\n".join(lines).encode())
    part = b" " * (1 << 16)
    framed = part if stated else b"%x\r\n%b\r\n" % (len(part), part)
    sent, reply = 0, asyncio.create_task(reader.read(1 << 16))
    with contextlib.suppress(OSError):
        while sent < GIGABYTE and not reply.done():
            writer.write(framed)
            await writer.drain()
            await asyncio.sleep(0)
            sent += len(part)
    with contextlib.suppress(OSError, TimeoutError):
        await asyncio.wait_for(reply, 30)
    said = b"" if reply.cancelled() or reply.exception() else reply.result()
    writer.close()
    status = said.split(b" ")[1].decode() if said.startswith(b"HTTP") else "none"
    return {"status": status, "sent_mb": round(sent / 1e6, 1), "fine": sent < GIGABYTE and status in ("413", "none")}


async def crowd(server: ServerProcess) -> dict[str, Any]:
    """Connections that are open and say nothing, or half of something."""
    connections = [Connection(server.port) for _ in range(CROWD)]
    for number, connection in enumerate(connections):
        _, writer = await connection.open()
        if number % 2:
            writer.write(b"POST /embed HTTP/1.1\r\nhost: localhost\r\n")
    for _ in range(8):
        await asyncio.sleep(0.5)
    for connection in connections:
        connection.close()
    await asyncio.sleep(1)
    return {"connections": len(connections)}


async def token_ids(server: ServerProcess, texts: int) -> dict[str, Any]:
    """Bodies of token ids, all at once: few bytes each, and many Python objects."""
    ids = [2000] * LONG_IDS
    raw, peak = post("/embed", json.dumps({"inputs": [ids] * texts}, separators=(",", ":")).encode()), 0

    async def sample() -> None:
        nonlocal peak
        while True:
            peak = max(peak, server.memory())
            await asyncio.sleep(0.01)

    async def ask() -> int:
        connection = Connection(server.port)
        reply = await connection.send(raw)
        connection.close()
        return reply.status

    before, sampling = server.memory(), asyncio.create_task(sample())
    statuses = Counter(await asyncio.gather(*(ask() for _ in range(BODIES))))
    sampling.cancel()
    fine = peak - before < GROWTH and set(statuses) <= {200, 413, 422, 429}  # 422: ids that a small vocabulary lacks
    found = {str(status): count for status, count in statuses.items()}
    return {
        "body_mb": round(len(raw) / 1e6, 1),
        "statuses": found,
        "peak_mb": round((peak - before) / 1e6, 1),
        "fine": fine,
    }


async def strangers(_: ServerProcess) -> dict[str, Any]:
    """Bodies that stall, from clients without a key, on the path that needs none: who has a key is still answered."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        port = free_port()
        command = [sys.executable, "-m", "bertkit", "serve", "--port", str(port)]
        guarded = ServerProcess(command, port, Path(name) / "log", BERTKIT_API_KEY=KEY, OMP_NUM_THREADS="1")
        stack.callback(guarded.end)
        await asyncio.to_thread(guarded.wait_for, get("/health"))
        head = f"POST /health HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {STALLED}\r\n\r\n".encode()
        for _ in range(STRANGERS):
            _, writer = await asyncio.open_connection(HOST, port)
            stack.callback(writer.close)
            writer.write(head + b" " * (STALLED - 1))
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.drain(), 5)
        raw = post("/embed", b'{"inputs":"%b"}' % (b"a " * 500), x_api_key=KEY)
        statuses = [(await Connection(port).send(raw)).status for _ in range(3)]
    return {"connections": STRANGERS, "statuses": statuses, "fine": statuses == [200] * 3}


ATTACKS: dict[str, Callable[[ServerProcess], Awaitable[dict[str, Any]]]] = {
    "slow headers": slow_loris,
    "1 GB, stated": lambda server: giant(server, stated=True),
    "1 GB, in chunks": lambda server: giant(server, stated=False),
    "10,000 connections": crowd,
    "12 bodies of 8 MB of token ids": lambda server: token_ids(server, 40),
    "12 bodies of 1 million token ids": lambda server: token_ids(server, 26),
    "stalled bodies without a key": strangers,
}
