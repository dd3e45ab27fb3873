"""Whatever is sent, the server answers or refuses: fuzzed bodies on every route, then clients that mean it ill.

    python benchmarks/serve_fuzz.py --bodies 100000 --out RESULT.json
    python benchmarks/serve_fuzz.py --start 40000 --bodies 60000 --no-attacks      goes on where another run ended

Body number N of a seed is always the same. A fault is a status of 500 or more, a reply that is no JSON or not the one
to this request, or none within 30 seconds. Then, with /health timed beside it: clients that send a byte a second, a
body of 1 GB with and without its length stated, 10,000 open connections, many token ids at once, and bodies that stall
from clients without a key.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from serve_process import Connection, ServerProcess, bertkit_server, get, machine, post, write_report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "serve"))
import serve_attacks
from serving import fill_folder, taught

TASKS = ("classify", "multilabel", "regress", "tag", "answer", "choose")
REFUSED = (400, 404, 405, 413, 415, 422, 429)
PATIENCE = 30.0
KEPT = 20  # faults told in full
WORDS = ["", "a", "[MASK]", "a [MASK] b", "|||", "a ||| b", "x " * 50, "\0", "é漢🙂", "\u202e", "none", "mean", "float"]
ODD: list[Any] = [None, True, False, 0, -1, 1, 5, 2**31, 2**63, 10**30, 1.5, -0.0, 1e308, {}, [], [[]], [[[]]]]
# What JSON parsers have stumbled over: invalid UTF-8, half a surrogate, NaN, nesting, a key given twice, no JSON.
RAW = [
    *(
        b"",
        b"null",
        b"[]",
        b"0",
        b'"',
        b"{",
        b"\xff\xfe",
        b"\x00" * 9,
        b'{"inputs":"\xc3\x28"}',
        b"GET / HTTP/1.1\r\n\r\n",
    ),
    *(b'{"inputs":"\\ud800"}', b'{"inputs":NaN}', b'{"inputs":1e999}', b'{"inputs":"a","inputs":["b"]}', b"inputs=a"),
    *(b"[" * 5000, b'{"inputs":' + b"[" * 900 + b"]" * 900 + b"}", b'\xef\xbb\xbf{"inputs":"a"}', b"1" * 5000),
]
KINDS = ["application/json"] * 30 + ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]


def main() -> None:
    options = read_options()
    with tempfile.TemporaryDirectory() as name:
        models = options.models or tiny_models(Path(name))
        server = bertkit_server(models, options.log or Path(name) / "log", OMP_NUM_THREADS="1")
        try:
            report = {"machine": machine(), "seed": options.seed, "start": options.start}
            report["fuzz"] = asyncio.run(fuzz(server, options))
            report["attacks"] = asyncio.run(serve_attacks.attack(server)) if options.attacks else {}
            alive = server.alive
        finally:
            report["exit_code"] = server.end()
    faults = report["fuzz"]["faults"] or any(not each["fine"] for each in report["attacks"].values())
    report["verdict"] = "fine" if alive and not faults and report["exit_code"] == 0 else "faults"
    write_report(report, options.out)
    raise SystemExit(report["verdict"] != "fine")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", help="as `bertkit serve` takes them; by default tiny ones of every task")
    parser.add_argument("--bodies", type=int, default=100_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after these, and say at which body")
    parser.add_argument("--no-attacks", dest="attacks", action="store_false", help="bodies alone")
    parser.add_argument("--log", type=Path, help="where the server's log stays")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def tiny_models(folder: Path) -> list[str]:
    """A folder for every task, and one that fills blanks; as the command line names them."""
    found = [f"{task}={taught.taught_folder(folder / task, task)}" for task in TASKS]
    return [f"fill={fill_folder(folder / 'fill')}", *found]


async def fuzz(server: ServerProcess, options: argparse.Namespace) -> dict[str, Any]:
    """Send them all; returns statuses by route, faults, and where it stopped."""
    routes = await described(server.port)
    numbers = iter(range(options.start, options.start + options.bodies))
    statuses: dict[str, Counter[int]] = {path: Counter() for path in routes}
    faults: list[dict[str, Any]] = []
    started, slowest, done = time.monotonic(), 0.0, 0

    async def client() -> None:
        nonlocal slowest, done
        connection = Connection(server.port)
        for number in numbers:
            if time.monotonic() - started > 60 * options.minutes:
                break
            path, raw = request(number, options.seed, routes)
            began = time.monotonic()
            status, fault = await asked(connection, raw, f"fuzz-{number}")
            slowest, done = max(slowest, time.monotonic() - began), done + 1
            statuses[path][status] += 1
            if fault:
                faults.append({"number": number, "path": path, "fault": fault, "sent": repr(raw[:600])})
                connection.close()
            if done % 5000 == 0:
                print(f"{done} bodies, {len(faults)} faults, {time.monotonic() - started:.0f} s", file=sys.stderr)
        connection.close()

    await asyncio.gather(*(client() for _ in range(options.clients)))
    total = Counter[int]()
    for each in statuses.values():
        total.update(each)
    facts: dict[str, Any] = {"bodies": done, "next": options.start + done}
    facts["seconds"] = round(time.monotonic() - started, 1)
    facts |= {"slowest_seconds": round(slowest, 3), "statuses": counted(total), "faults": len(faults)}
    by_route = {path: counted(each) for path, each in statuses.items()}
    return {**facts, "first_faults": faults[:KEPT], "routes": by_route}


def counted(statuses: Counter[int]) -> dict[str, int]:
    return {str(status): count for status, count in sorted(statuses.items())}


async def described(port: int) -> dict[str, dict[str, Any]]:
    """Every route that takes a body, with the example of its documentation."""
    connection = Connection(port)
    description = json.loads((await connection.send(get("/openapi.json"))).body)
    connection.close()
    schemas, found = description["components"]["schemas"], {}
    for path, operations in description["paths"].items():
        if content := operations.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json"):
            name = content["schema"].get("$ref", "").rpartition("/")[2]
            example = schemas.get(name, {}).get("example", {"inputs": "a"})
            found[path.replace("{name}", "tag").replace("{task}", "token-classification")] = example
    return found


def request(number: int, seed: int, routes: dict[str, dict[str, Any]]) -> tuple[str, bytes]:
    """Request `number`: its route and its bytes."""
    draw = Random(f"{seed}-{number}")
    path = list(routes)[number % len(routes)]
    body = draw.choice(RAW) if draw.random() < 0.05 else fuzzed(draw, routes[path], routes)
    more = {"content_encoding": "gzip"} if draw.random() < 0.005 else {}
    return path, post(path, body, content_type=draw.choice(KINDS), x_request_id=f"fuzz-{number}", **more)


def fuzzed(draw: Random, example: dict[str, Any], routes: dict[str, dict[str, Any]]) -> bytes:
    """A route's example with some fields changed, some from other routes, and now and then a byte."""
    fields = sorted({name for other in routes.values() for name in other} | set(MORE))
    asked = {name: value(draw) if draw.random() < 0.4 else given for name, given in example.items()}
    for name in draw.sample(fields, draw.choice((0, 0, 1, 2, 3))):
        asked[name] = value(draw)
    if asked and draw.random() < 0.1:
        asked.pop(draw.choice(list(asked)))
    raw = bytearray(json.dumps(asked, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass"))
    for _ in range(draw.choice((0,) * 17 + (1, 2, 8))):
        raw[draw.randrange(len(raw))] = draw.randrange(256)
    return bytes(raw[: draw.randint(0, len(raw))] if draw.random() < 0.05 else raw)


MORE = ("model", "layers", "pooling", "pairs", "dimensions", "encoding_format", "normalize", "too_long", "truncate")
MORE += ("parameters", "top", "layer", "head", "best", "pair", "raw_scores", "return_text", "add_special_tokens")


def value(draw: Random, depth: int = 0) -> Any:
    """Something that JSON can say; seldom something large."""
    kind = draw.random()
    if kind < 0.002 and depth == 0:
        return draw.choice(("x " * 30_000, ["a"] * 3000, list(range(5000)), "é" * 450_000))
    if kind < 0.4:
        return draw.choice(WORDS)
    if kind < 0.5:
        return "".join(chr(draw.choice((draw.randrange(128), draw.randrange(0x110000)))) for _ in range(8))
    if kind < 0.65 or depth > 2:
        return draw.choice(ODD)
    if kind < 0.9:
        return [value(draw, depth + 1) for _ in range(draw.randint(0, 4))]
    return {draw.choice(MORE): value(draw, depth + 1) for _ in range(draw.randint(0, 3))}


async def asked(connection: Connection, raw: bytes, nonce: str) -> tuple[int, str | None]:
    """The status, and what is wrong with the reply; a connection that the server had closed is opened again, once."""
    for attempt in (1, 2):
        try:
            reply = await asyncio.wait_for(connection.send(raw), PATIENCE)
        except TimeoutError:
            return 0, "no answer"
        except (OSError, asyncio.IncompleteReadError) as error:
            connection.close()
            if attempt == 2:
                return 0, repr(error)
            continue
        if reply.status != 200 and reply.status not in REFUSED:
            return reply.status, f"{reply.status}: {reply.body[:300]!r}"
        if reply.status != 400 and reply.headers.get("x-request-id") != nonce:  # 400: no request was read at all
            return reply.status, f"the reply to {reply.headers.get('x-request-id')}"
        with contextlib.suppress(ValueError):
            json.loads(reply.body)
            return reply.status, None
        return reply.status, None if reply.status == 400 else f"no JSON: {reply.body[:300]!r}"
    raise AssertionError


if __name__ == "__main__":
    main()
