"""Requests per second and waits under load: `bertkit serve` beside infinity-emb and a plain FastAPI server.

    python benchmarks/serve_load.py --model FOLDER --texts CORPUS.txt.zst --peers VENV/bin/python --out RESULT.json

All servers are up at the same time and hold the same model; each gets its turn in every round, so that what else the
machine does falls on all alike. Clients send one text, wait for its vector, and send the next. Beside the clock stands
the CPU time of the server's process for each request, which a busy machine changes least; and the client's own, for it
must not be what is measured. PEERS is a Python for which infinity-emb is installed; for its ONNX engine the folder is
copied and a model.onnx put into it. Peers are measured in several settings and judged by their best.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import serve_peers
from queue_gpu import medians, read_texts
from serve_process import Connection, ServerProcess, machine, post, write_report

COUNT = 512  # requests of each workload, taken in turns
NEAR = 0.9999  # cosine to our vectors: else a peer computes something else
COMPARED = 8  # requests
OURS, INT8 = "bertkit", "bertkit, int8"
NEAR_INT8 = 0.998  # of the least of a few; its gate asks for a mean of 0.999


@dataclass(frozen=True)
class Turn:
    """One server under one load for some seconds."""

    requests: int
    seconds: float
    server_cpu: float
    client_cpu: float
    waits: list[float]

    def facts(self) -> dict[str, float]:
        """What is kept."""
        waits = 1000 * np.quantile(self.waits, (0.5, 0.99))
        return {
            "requests_per_second": round(self.requests / self.seconds, 2),
            "p50_ms": round(float(waits[0]), 2),
            "p99_ms": round(float(waits[1]), 2),
            "server_cpu_ms_per_request": round(1000 * self.server_cpu / self.requests, 3),
            "client_cpu_ms_per_request": round(1000 * self.client_cpu / self.requests, 3),
            "requests": self.requests,
        }


def main() -> None:
    options = read_options()
    loads = workloads(options.texts)
    with tempfile.TemporaryDirectory() as name:
        logs = options.logs or Path(name)
        logs.mkdir(parents=True, exist_ok=True)
        folder = with_onnx(options.model, Path(name) / "minilm")
        servers: dict[str, ServerProcess] = {}
        try:
            for each in options.servers:
                servers[each] = serve_peers.start(each, folder, logs, options.peers)
                servers[each].wait_for(loads["short"][0])  # one by one: infinity's ONNX engine writes into the folder
            likeness = compare(servers, loads["mixed"])
            rounds = measure(servers, loads, options)
        finally:
            codes = {each: server.end() for each, server in servers.items()}
    report = {"machine": machine(), "versions": versions(options.peers), "clients": options.clients}
    report |= {"seconds": options.seconds, "cosine_to_ours": likeness, "exit_codes": codes}
    write_report(report | {"summary": summary(rounds), "rounds": rounds}, options.out)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a sentence-transformers folder")
    parser.add_argument("--texts", type=Path, required=True, help="documents apart by blank lines, or JSONL")
    parser.add_argument("--peers", type=Path, help="a Python that has infinity-emb")
    parser.add_argument("--servers", nargs="+", choices=tuple(serve_peers.WAYS), default=list(serve_peers.WAYS))
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one server's turn at one workload")
    parser.add_argument("--logs", type=Path, help="where the servers' logs stay")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def workloads(path: Path) -> dict[str, list[bytes]]:
    """Requests of one text: short sentences; and half of them with paragraphs."""
    return {name: [asked(text) for text in texts] for name, texts in read_texts(path, COUNT).items()}


def asked(text: str) -> bytes:
    return post("/v1/embeddings", json.dumps({"input": text, "model": "minilm"}).encode())


def with_onnx(model: Path, folder: Path) -> Path:
    """A copy of the folder that holds the same weights for ONNX Runtime, too; written by a process of its own."""
    shutil.copytree(model, folder)
    script = "import bertkit, sys; bertkit.load(sys.argv[1]).export_onnx(sys.argv[2])"
    subprocess.run([sys.executable, "-c", script, str(folder), str(folder.parent / "onnx")], check=True)
    (folder / "onnx").mkdir()
    shutil.copy(folder.parent / "onnx" / "model.onnx", folder / "onnx" / "model.onnx")
    return folder


def compare(servers: dict[str, ServerProcess], requests: list[bytes]) -> dict[str, float]:
    """The smallest cosine of each server's vectors to ours; a peer whose vectors differ is not measured."""

    async def vectors(server: ServerProcess) -> np.ndarray:
        connection = Connection(server.port)
        replies = [json.loads((await connection.send(each)).body) for each in requests[:COMPARED]]
        connection.close()
        found = np.array([reply["data"][0]["embedding"] for reply in replies])
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    found = {name: asyncio.run(vectors(server)) for name, server in servers.items()}
    ours = found.get(OURS, next(iter(found.values())))
    likeness = {name: round(float((rows * ours).sum(1).min()), 6) for name, rows in found.items()}
    if strange := [name for name, cosine in likeness.items() if cosine < (NEAR_INT8 if name == INT8 else NEAR)]:
        raise SystemExit(f"{', '.join(strange)} give other vectors than ours: {likeness}")
    return likeness


def measure(
    servers: dict[str, ServerProcess], loads: dict[str, list[bytes]], options: argparse.Namespace
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Workload -> server -> what each round found. Servers take turns; each begins once, and a first round is lost."""
    names = list(servers)
    rounds: dict[str, dict[str, list[dict[str, float]]]] = {load: {name: [] for name in names} for load in loads}
    for number in range(-1, options.rounds):
        for load, requests in loads.items():
            for name in names[number % len(names) :] + names[: number % len(names)]:
                seconds = options.seconds if number >= 0 else min(2.0, options.seconds)
                facts = turn(servers[name], requests, options.clients, seconds).facts()
                print(number, load, name, json.dumps(facts), file=sys.stderr, flush=True)
                if number >= 0:
                    rounds[load][name].append(facts)
    return rounds


def turn(server: ServerProcess, requests: list[bytes], clients: int, seconds: float) -> Turn:
    """Closed loop: every client sends its next request when it has its reply."""
    waits: list[float] = []
    before, own = server.cpu_seconds(), time.process_time()
    started = time.perf_counter()

    async def client(number: int) -> None:
        connection = Connection(server.port)
        place = number * len(requests) // clients
        while (now := time.perf_counter()) - started < seconds:
            reply = await connection.send(requests[place % len(requests)])
            if reply.status != 200:
                raise SystemExit(f"answered {reply.status}: {reply.body[:300]!r}")
            waits.append(time.perf_counter() - now)
            place += 1
        connection.close()

    async def all_clients() -> None:
        await asyncio.gather(*(client(number) for number in range(clients)))

    asyncio.run(all_clients())
    took = time.perf_counter() - started
    return Turn(len(waits), took, server.cpu_seconds() - before, time.process_time() - own, waits)


def summary(rounds: dict[str, dict[str, list[dict[str, float]]]]) -> dict[str, Any]:
    """Medians over the rounds; and of each round, ours over the peer's, whose median is the ratio."""
    found: dict[str, Any] = {}
    for load, servers in rounds.items():
        found[load] = {}
        for name, facts in servers.items():
            found[load][name] = medians(facts)
            if name != OURS and OURS in servers:
                pairs = list(zip(servers[OURS], facts, strict=True))
                found[load][name] |= ratios(pairs)
            if name not in (OURS, INT8) and INT8 in servers:
                found[load][name]["int8"] = ratios(list(zip(servers[INT8], facts, strict=True)))
    return found


def ratios(pairs: list[tuple[dict[str, float], dict[str, float]]]) -> dict[str, float]:
    """Ours beside one peer: over 1 is better for ours, but for the wait."""
    faster = median(ours["requests_per_second"] / theirs["requests_per_second"] for ours, theirs in pairs)
    cheaper = median(theirs["server_cpu_ms_per_request"] / ours["server_cpu_ms_per_request"] for ours, theirs in pairs)
    wait = median(ours["p99_ms"] / theirs["p99_ms"] for ours, theirs in pairs)
    return {"ours_times_requests": round(faster, 2), "ours_times_less_cpu": round(cheaper, 2), "p99_of": round(wait, 2)}


def versions(peers: Path | None) -> dict[str, str]:
    """Of what was measured."""
    found = {name: version(name) for name in ("torch", "sentence-transformers", "fastapi", "uvicorn")}
    if peers is None:
        return found
    script = "import importlib.metadata as m;print(*(m.version(n) for n in ('infinity-emb', 'torch', 'onnxruntime')))"
    theirs = subprocess.run([str(peers), "-c", script], capture_output=True, text=True, check=True).stdout.split()
    return found | dict(zip(("infinity-emb", "infinity's torch", "infinity's onnxruntime"), theirs, strict=True))


if __name__ == "__main__":
    main()
