"""A load generator: texts per second and latencies of a running server.

Closed loop: each client sends its next request when it has the reply. Open loop: Poisson arrivals at a given rate;
latency counts from the moment a request is due, so that a server that stalls cannot slow down its own measurement.
"""

import asyncio
import json
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bertkit.connection import address_of, key_header
from bertkit.errors import BertkitError, RequestError

# The texts that are sent are random words of these.
LEXICON = ("the", "a", "cat", "dog", "film", "sat", "on", "mat", "rug", "rates", "rose", "again", "while", "nobody")
QUANTILES = (0.5, 0.9, 0.99)
REPLY_SECONDS = 70.0  # timeout of one reply; a bertkit server's own is 60


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is sent to a server, and for how long."""

    clients: int = 1
    batch: int = 1  # texts in a request
    length: int = 20  # words in a text
    seconds: float = 3.0
    rate: float | None = None  # requests per second; None: each client waits for its reply

    def __post_init__(self) -> None:
        for name in ("clients", "batch", "length", "seconds"):
            _check_positive(name, getattr(self, name))
        if self.rate is not None:
            _check_positive("rate", self.rate)


def _check_positive(name: str, number: float) -> None:
    if not (math.isfinite(number) and number > 0):
        raise RequestError(f"{name}={number} must be over 0, and finite")


@dataclass(frozen=True)
class LoadResult:
    """The measurement of one load."""

    load: Load
    seconds: float
    latencies: tuple[float, ...] = field(repr=False)  # seconds of each answered request, sorted
    refused: int = 0  # replies with a status other than 200

    @property
    def texts_per_second(self) -> float:
        """Texts in answered requests."""
        return len(self.latencies) * self.load.batch / self.seconds

    def latency(self, quantile: float) -> float:
        """Quantile of the latencies, in seconds."""
        return (
            self.latencies[min(len(self.latencies) - 1, int(quantile * len(self.latencies)))]
            if self.latencies
            else float("nan")
        )

    def to_json(self) -> dict[str, Any]:
        """As `bertkit bench --json` prints it."""
        latencies = (
            {f"p{quantile * 100:g}": round(self.latency(quantile), 6) for quantile in QUANTILES}
            if self.latencies
            else {}
        )
        rates = {"requests": len(self.latencies), "texts_per_second": round(self.texts_per_second, 2)}
        return {**asdict(self.load), **rates, "refused": self.refused, **latencies}


def measure(
    url: str,
    load: Load,
    *,
    key: str | None = "",
    model: str | None = None,
    seed: int = 0,
    timeout: float = REPLY_SECONDS,
) -> LoadResult:
    """Send this load to a server's /v1/embeddings; a key of None is that of BERTKIT_API_KEY.

    No reply within `timeout` seconds is an error.
    """
    return asyncio.run(_measure(replace(ServerAddress.of(url, key), timeout=timeout), load, model, seed))


@dataclass(frozen=True)
class ServerAddress:
    """A server's address, and the headers of every request to it."""

    host: str
    port: int
    secure: bool
    head: bytes
    timeout: float = REPLY_SECONDS

    @classmethod
    def of(cls, url: str, key: str | None) -> "ServerAddress":
        """From a URL such as http://127.0.0.1:8000."""
        parts = address_of(url)
        secure = parts.scheme == "https"
        lines = [f"POST {parts.path.rstrip('/')}/v1/embeddings HTTP/1.1", f"Host: {parts.netloc}"]
        head = "\r\n".join([*lines, "Content-Type: application/json"]).encode()
        head += b"".join(b"\r\n%s: %s" % (name.encode(), value) for name, value in key_header(key).items())
        return cls(str(parts.hostname), parts.port or (443 if secure else 80), secure, head)

    def request(self, body: bytes) -> bytes:
        """All bytes of one request."""
        return self.head + f"\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class _Connection:
    """One keep-alive connection."""

    def __init__(self, target: ServerAddress) -> None:
        self._target = target
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, body: bytes) -> int:
        """Send a request and read all of the reply; returns the status."""
        target = self._target
        try:
            async with asyncio.timeout(target.timeout):
                return await self._post(target, body)
        except TimeoutError as error:
            message = f"{target.host} port {target.port} did not answer within {target.timeout:g} s"
            raise BertkitError(f"{message}; is this a bertkit server, and is it overloaded?") from error

    async def _post(self, target: ServerAddress, body: bytes) -> int:
        if self._streams is None:
            secure = True if target.secure else None
            self._streams = await asyncio.open_connection(target.host, target.port, ssl=secure)
        reader, writer = self._streams
        writer.write(target.request(body))
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            status, length = _status_and_length(head)
        except (ValueError, IndexError, asyncio.LimitOverrunError) as error:
            address = f"{target.host} port {target.port}"
            raise BertkitError(f"{address} answered what is not HTTP; is this a bertkit server?") from error
        await reader.readexactly(length)
        if b"connection: close" in head:
            self.close()
        return status

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


Send = Callable[[_Connection, int, float], Awaitable[None]]  # (connection, number of the request, when it is due)


def _status_and_length(head: bytes) -> tuple[int, int]:
    """Of a reply, from its head in lower case."""
    if not head.startswith(b"http/"):
        raise ValueError("no HTTP")
    return int(head.split(b" ")[1]), int(head.partition(b"content-length:")[2].split(b"\r\n")[0])


def bodies(load: Load, model: str | None, seed: int, count: int = 64) -> list[bytes]:
    """Bodies of `count` different requests, which are sent in turn."""
    draw = random.Random(seed)
    named = {} if model is None else {"model": model}
    texts = [[" ".join(draw.choices(LEXICON, k=load.length)) for _ in range(load.batch)] for _ in range(count)]
    return [json.dumps({"input": batch, "encoding_format": "base64", **named}).encode() for batch in texts]


async def _measure(target: ServerAddress, load: Load, model: str | None, seed: int) -> LoadResult:
    requests = bodies(load, model, seed)
    latencies: list[float] = []
    refused = 0

    async def send(connection: _Connection, number: int, due: float) -> None:
        nonlocal refused
        status = await connection.post(requests[number % len(requests)])
        if status == 200:
            latencies.append(time.perf_counter() - due)
        else:
            refused += 1

    started = time.perf_counter()
    try:
        if load.rate is None:
            await asyncio.gather(*(_closed_loop(target, send, load, started, n) for n in range(load.clients)))
        else:
            await _open_loop(target, send, load, started, seed)
    except (OSError, asyncio.IncompleteReadError) as error:
        raise BertkitError(f"{target.host} port {target.port} gave no answer: {error}; is the server there?") from error
    if not latencies and refused:
        raise BertkitError(f"{target.host} port {target.port} refused all {refused} requests; look at its log")
    return LoadResult(load, time.perf_counter() - started, tuple(sorted(latencies)), refused)


async def _closed_loop(target: ServerAddress, send: Send, load: Load, started: float, client: int) -> None:
    connection = _Connection(target)
    number = client * 7
    while (now := time.perf_counter()) - started < load.seconds:
        await send(connection, number, now)
        number += 1
    connection.close()


async def _open_loop(target: ServerAddress, send: Send, load: Load, started: float, seed: int) -> None:
    """Requests are sent at random times, whatever the server does; one that finds no free connection opens another."""
    draw, free, running = random.Random(seed), [_Connection(target) for _ in range(load.clients)], set()
    due, number = started, 0

    async def send_one(due: float, number: int) -> None:
        connection = free.pop() if free else _Connection(target)
        try:
            await send(connection, number, due)
        finally:
            free.append(connection)

    while (due := due + draw.expovariate(load.rate or 1.0)) - started < load.seconds:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.ensure_future(send_one(due, number))
        running.add(task)
        number += 1
    await asyncio.gather(*running)
    for connection in free:
        connection.close()


def table(rows: Sequence[LoadResult], parameter: str) -> str:
    """Throughput and latencies by one parameter of the load, in the layout of bert-as-a-service's benchmark."""
    lines = [
        f"{parameter:>10} {'texts/s':>10} {'requests':>9} {'refused':>8} {'p50 ms':>9} {'p90 ms':>9} {'p99 ms':>9}"
    ]
    for row in rows:
        latencies = " ".join(f"{1000 * row.latency(quantile):>9.1f}" for quantile in QUANTILES)
        value = getattr(row.load, parameter)
        lines.append(f"{value:>10} {row.texts_per_second:>10.1f} {len(row.latencies):>9} {row.refused:>8} {latencies}")
    return "\n".join(lines)
