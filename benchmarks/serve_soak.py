"""Hours of mixed traffic: valid requests whose replies are checked one by one, among others that are wrong or rude.

    python benchmarks/serve_soak.py --minutes 30 --models minilm=FOLDER --out RESULT.json

Every valid request has texts that no other has at the time, and an id. Its reply must carry the id and hold what the
Python API gives for just these texts, to 1e-4: a reply that went to another, or a row that fell into another request's
place, is seen. Beside MODELS, tiny ones of every task are served. The server's memory is sampled each second; what
counts is its growth from the end of the warm-up, a quarter of the time, to the last quarter.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch
from serve_fuzz import REFUSED, described, request, tiny_models
from serve_process import HOST, Connection, Reply, ServerProcess, bertkit_server, machine, post, write_report

import bertkit
from bertkit.tasks.table import TASKS

POOL = 200  # texts of each kind
NEAR = 1e-4
GROWTH = 0.05
PATIENCE = 60.0
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Kind:
    """Questions of one kind to one model: the fields of each, and what must come back for it."""

    path: str
    model: str
    rows: list[tuple[dict[str, Any], Any]]

    def draw(self, draw: Random) -> tuple[dict[str, Any], list[Any]]:
        """A request of one to four questions, and the replies it must get, in order."""
        chosen = draw.sample(self.rows, draw.randint(1, 4))
        fields = {name: [asked[name] for asked, _ in chosen] for name in chosen[0][0]}
        return {**fields, "model": self.model}, [expected for _, expected in chosen]

    def read(self, reply: Any) -> list[Any]:
        """The rows of a reply."""
        return [row["embedding"] for row in reply["data"]] if "data" in reply else reply["results"]


@dataclass
class Tally:
    """What has happened so far."""

    statuses: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)  # MB, each second


def main() -> None:
    options = read_options()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        models = [*options.models, *tiny_models(Path(name))]
        kinds = [kind for each in models for kind in questions(*each.split("=", 1))]
        server = bertkit_server(models, options.log or Path(name) / "log", OMP_NUM_THREADS="1")
        try:
            tally, load = asyncio.run(soak(server, kinds, options)), machine()
            alive = server.alive
        finally:
            code = server.end()
    report = {"machine": load, "minutes": options.minutes, "kinds": {f"{k.path} {k.model}": len(k.rows) for k in kinds}}
    report |= judged(tally, alive and code == 0)
    write_report(report, options.out)
    raise SystemExit(report["verdict"] != "fine")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=[], help="NAME=FOLDER, served beside tiny ones of every task")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=12, help="that ask for something")
    parser.add_argument("--rude", type=int, default=6, help="clients that do not")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="where the server's log stays")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def judged(tally: Tally, ended_well: bool) -> dict[str, Any]:
    """Counts, memory and the verdict."""
    quarter = max(1, len(tally.memory) // 4)
    warm, end = median(tally.memory[quarter : 2 * quarter]), median(tally.memory[-quarter:])
    growth = end / warm - 1
    fine = ended_well and not tally.faults and growth < GROWTH
    memory = {"warm": round(warm, 1), "end": round(end, 1), "growth": round(growth, 4)}
    memory |= {"every_ten_seconds": [round(each) for each in tally.memory[::10]]}
    counts = {"statuses": dict(sorted(tally.statuses.items())), "faults": len(tally.faults)}
    return {**counts, "first_faults": tally.faults[:20], "memory_mb": memory, "verdict": "fine" if fine else "faults"}


def questions(name: str, folder: str) -> list[Kind]:
    """What this model can be asked, with what the Python API answers; replies that two texts share are left out."""
    bert, draw = bertkit.load(folder), Random(name)
    texts = [" ".join(draw.choices(LETTERS, k=draw.randint(4, 12))) for _ in range(POOL)]
    vectors = [row.tolist() for row in bert.embed(texts)]
    found = [Kind("/v1/embeddings", name, distinct([({"input": t}, v) for t, v in zip(texts, vectors, strict=True)]))]
    heads = set(bert.model.heads)
    for head, make in HEADS.items():
        if head in heads:
            path = "/fill" if head == "masked_word" else f"/{head}"
            found.append(Kind(path, name, distinct(make(bert, texts))))
    return found


def plain(value: Any) -> Any:
    """As it looks after a way through JSON."""
    return json.loads(json.dumps(value, default=lambda each: each.tolist()))


def filled(bert: bertkit.Bert, texts: Sequence[str]) -> list[tuple[dict[str, Any], Any]]:
    blanks = [f"{text[:-1]}{bert.tokenizer.mask_token}" for text in texts]
    return [({"text": text}, plain([asdict(each) for each in bert.fill(text)])) for text in blanks]


def classified(bert: bertkit.Bert, texts: Sequence[str]) -> list[tuple[dict[str, Any], Any]]:
    return [({"texts": text}, plain(asdict(bert.classify(text)))) for text in texts]


def tagged(bert: bertkit.Bert, texts: Sequence[str]) -> list[tuple[dict[str, Any], Any]]:
    return [({"texts": text}, plain(asdict(bert.tag(text)))) for text in texts]


def answered(bert: bertkit.Bert, texts: Sequence[str]) -> list[tuple[dict[str, Any], Any]]:
    return [
        ({"question": text[:5], "passage": text}, plain(TASKS["answer"].reply(bert.answer(text[:5], text), best=1)))
        for text in texts
    ]


def chosen(bert: bertkit.Bert, texts: Sequence[str]) -> list[tuple[dict[str, Any], Any]]:
    choices = [[text[:3], text[2:9]] for text in texts]
    pairs = zip(texts, choices, strict=True)
    return [({"question": t, "choices": own}, plain(asdict(bert.choose(t, own)))) for t, own in pairs]


HEADS: dict[str, Callable[[bertkit.Bert, Sequence[str]], list[tuple[dict[str, Any], Any]]]] = {
    "masked_word": filled,
    "classify": classified,
    "tag": tagged,
    "answer": answered,
    "choose": chosen,
}


def distinct(rows: list[tuple[dict[str, Any], Any]]) -> list[tuple[dict[str, Any], Any]]:
    """Rows whose replies differ from all others by more than what is forgiven."""
    kept: list[tuple[dict[str, Any], Any]] = []
    for asked, expected in rows:
        if not any(alike(expected, other, 3 * NEAR) for _, other in kept):
            kept.append((asked, expected))
    if len(kept) < 8:
        raise SystemExit(f"only {len(kept)} of {len(rows)} replies differ: they prove nothing")
    return kept


def alike(one: Any, other: Any, near: float = NEAR) -> bool:
    """Equal, but for the last digits of numbers."""
    if isinstance(one, float) and isinstance(other, float | int):
        return abs(one - other) <= near * max(1.0, abs(one))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(value, other[key], near) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(alike(a, b, near) for a, b in zip(one, other, strict=True))
    return bool(one == other)


async def soak(server: ServerProcess, kinds: list[Kind], options: argparse.Namespace) -> Tally:
    """All clients at once, until the time is over."""
    tally, deadline, nonces = Tally(), time.monotonic() + 60 * options.minutes, count()
    routes = await described(server.port)

    async def polite(number: int) -> None:
        draw, connection = Random(f"{options.seed}-{number}"), Connection(server.port)
        while time.monotonic() < deadline:
            await ask(connection, draw.choice(kinds), draw, f"nonce-{next(nonces)}", tally)
        connection.close()

    async def rude(number: int) -> None:
        draw = Random(f"rude-{options.seed}-{number}")
        while time.monotonic() < deadline:
            with suppress(OSError, asyncio.IncompleteReadError):
                await draw.choice(RUDE)(server.port, draw, routes, tally)

    async def sample() -> None:
        while time.monotonic() < deadline:
            tally.memory.append(server.memory() / 1e6)
            if len(tally.memory) % 20 == 0:
                facts = f"{tally.memory[-1]:.0f} MB, {len(tally.faults)} faults, {dict(tally.statuses)}"
                print(f"{len(tally.memory)} s: {facts}", file=sys.stderr, flush=True)
            await asyncio.sleep(1)

    clients = [polite(number) for number in range(options.clients)] + [rude(number) for number in range(options.rude)]
    await asyncio.gather(sample(), *clients)
    return tally


async def ask(connection: Connection, kind: Kind, draw: Random, nonce: str, tally: Tally) -> None:
    """One valid request, asked again while the queue is full; anything but its own reply is a fault."""
    body, expected = kind.draw(draw)
    raw = post(kind.path, json.dumps(body).encode(), x_request_id=nonce)
    try:
        reply = await asyncio.wait_for(connection.send(raw), PATIENCE)
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        connection.close()
        tally.statuses["lost"] += 1
        tally.faults.append(f"{kind.path} {nonce}: lost: {error!r}")
        return
    tally.statuses[f"valid {reply.status}"] += 1
    if reply.status == 429:
        await asyncio.sleep(0.2)
        return await ask(connection, kind, draw, nonce, tally)
    if fault := wrong(reply, kind, expected, nonce):
        tally.faults.append(f"{kind.path} {nonce} {json.dumps(body)[:300]}: {fault}")


def wrong(reply: Reply, kind: Kind, expected: list[Any], nonce: str) -> str | None:
    """What is wrong with the reply to a valid request."""
    if reply.status != 200:
        return f"{reply.status}: {reply.body[:300]!r}"
    if reply.headers.get("x-request-id") != nonce:
        return f"the reply to {reply.headers.get('x-request-id')}"
    found = kind.read(json.loads(reply.body))
    return None if alike(expected, found) else f"crossed or changed: {str(found)[:300]} for {str(expected)[:300]}"


Routes = dict[str, dict[str, Any]]


async def fuzzed(port: int, draw: Random, routes: Routes, tally: Tally) -> None:
    """A body made at random."""
    _, raw = request(draw.randrange(10**9), 0, routes)
    await refused(port, raw, tally, "fuzzed")


async def oversized(port: int, draw: Random, routes: Routes, tally: Tally) -> None:
    """A body over the limit, and texts over theirs."""
    text = "x " * draw.choice((250_000, 5_000_000))
    await refused(port, post("/embed", json.dumps({"inputs": text}).encode()), tally, "oversized")
    await asyncio.sleep(1)


async def refused(port: int, raw: bytes, tally: Tally, what: str) -> None:
    """Send it; a status from 500 up is a fault, and so is none in time."""
    connection = Connection(port)
    try:
        reply = await asyncio.wait_for(connection.send(raw), PATIENCE)
        tally.statuses[f"{what} {reply.status}"] += 1
        if reply.status != 200 and reply.status not in REFUSED:
            tally.faults.append(f"{what} {raw[:300]!r}: {reply.status} {reply.body[:300]!r}")
    except TimeoutError:
        tally.faults.append(f"{what} {raw[:300]!r}: no answer")
    finally:
        connection.close()


async def gone(port: int, draw: Random, routes: Routes, tally: Tally) -> None:
    """A good request whose client hangs up before it is whole, or before its reply."""
    raw = post("/embed", json.dumps({"inputs": ["a b c"] * draw.choice((1, 500))}).encode())
    _, writer = await asyncio.open_connection(HOST, port)
    writer.write(raw[: draw.choice((len(raw), len(raw) // 2, 20))])
    await writer.drain()
    await asyncio.sleep(draw.random() * 0.05)
    writer.transport.abort()
    tally.statuses["gone"] += 1


async def noise(port: int, draw: Random, routes: Routes, tally: Tally) -> None:
    """What is no HTTP at all."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(
        draw.choice((draw.randbytes(200), b"\r\n" * 50, b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00" * 9))
    )
    with suppress(TimeoutError):
        await asyncio.wait_for(reader.read(1 << 16), 2)
    writer.close()
    tally.statuses["noise"] += 1


async def slow(port: int, draw: Random, routes: Routes, tally: Tally) -> None:
    """A body that comes a little at a time, and stops."""
    raw = post("/embed", json.dumps({"inputs": "a b c"}).encode())
    _, writer = await asyncio.open_connection(HOST, port)
    for start in range(0, len(raw) - 10, 20):
        writer.write(raw[start : start + 20])
        await asyncio.sleep(0.1)
    writer.close()
    tally.statuses["slow"] += 1


RUDE = (fuzzed, fuzzed, fuzzed, fuzzed, oversized, gone, gone, noise, slow)

if __name__ == "__main__":
    main()
