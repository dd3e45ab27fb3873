"""Twenty adapters on one trunk: requests per second, lost requests, memory; beside one model's and twenty models'.

    python benchmarks/serve_adapters.py --model MODEL --out RESULT.json [--adapters 20] [--rounds 4] [--seconds 3]
        [--full]

The adapters are of rank 8 with random updates and a head of six labels: what they answer is nonsense, and compared with
the merged model's answer. In every round each server has the same load in turn: clients that send their next text when
they have the reply. In the last phase further adapters are loaded and dropped while the clients ask for all of them.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from serve_process import Connection, ServerProcess, bertkit_server, machine, post, write_report

import bertkit
from bertkit.checkpoint.adapters import PartUpdate, adaptable
from bertkit.checkpoint.save_load import folder_config, load_checkpoint, save_adapter
from bertkit.model.low_rank import LowRankUpdate

RANK, CLIENTS, LABELS = 8, 16, tuple("ABCDEF")
TEXTS = [f"how far is it from the city to the river number {number} ?" for number in range(50)]


def write_adapters(trunk: Path, folder: Path, names: Sequence[str]) -> None:
    """Random adapters of the attention's maps, as `finetune classify rank=8` saves them."""
    task = {"name": "classify", "labels": list(LABELS)}
    for seed, name in enumerate(names):
        start = replace(load_checkpoint(trunk, heads={"classify": len(LABELS)}, seed=seed), labels=LABELS, task=task)
        _, native = folder_config(start.model, LABELS)
        draw = torch.Generator().manual_seed(seed)
        updates = []
        for matrix, parts in adaptable(start.model, native=native).items():
            rows, columns = start.model.get_parameter(matrix).shape
            for number in range(len(parts) if ".attention." in matrix else 0):
                up = 0.05 * torch.randn(rows // len(parts), RANK, generator=draw)
                updates.append(
                    PartUpdate(
                        matrix, number, LowRankUpdate(up, torch.randn(RANK, columns, generator=draw) / columns**0.5)
                    )
                )
        save_adapter(start, folder / name, trunk, (RANK, float(RANK)), updates)


class Clients:
    """Closed loops: each sends its next request when it has the reply; the models take turns."""

    def __init__(self, port: int, models: Sequence[str]) -> None:
        self.port, self.models = port, models
        self.answered = self.lost = self.absent = 0
        self.seconds: list[float] = []

    async def run(self, until: float) -> None:
        """All clients until this moment."""
        await asyncio.gather(*(self._client(number, until) for number in range(CLIENTS)))

    async def _client(self, number: int, until: float) -> None:
        connection, step = Connection(self.port), number
        while time.perf_counter() < until:
            model = self.models[step % len(self.models)]
            body = json.dumps({"texts": TEXTS[step % len(TEXTS)], "model": model}).encode()
            started = time.perf_counter()
            try:
                status = (await connection.send(post("/classify", body))).status
            except (OSError, asyncio.IncompleteReadError):
                status = 0
            self.seconds.append(time.perf_counter() - started)
            self.answered += status == 200
            self.absent += status == 404 and model.startswith("new")  # between its drop and its load
            self.lost += status != 200 and not (status == 404 and model.startswith("new"))
            step += CLIENTS + 1
        connection.close()


async def come_and_go(port: int, names: Sequence[str], until: float) -> int:
    """Load and drop each in turn; returns how often."""
    connection, count = Connection(port), 0
    while time.perf_counter() < until:
        for verb in ("load", "drop"):
            reply = await connection.send(
                post(f"/adapters/{verb}", json.dumps({"name": names[count % len(names)]}).encode())
            )
            if reply.status != 200:
                raise SystemExit(f"{verb}: {reply.status} {reply.body!r}")
            await asyncio.sleep(0.05)
        count += 1
    connection.close()
    return count


def rate(server: ServerProcess, models: Sequence[str], seconds: float) -> float:
    """Requests per second."""
    clients = Clients(server.port, models)
    asyncio.run(clients.run(time.perf_counter() + seconds))
    if clients.lost:
        raise SystemExit(f"{clients.lost} requests were not answered")
    return clients.answered / seconds


async def churn(server: ServerProcess, models: Sequence[str], new: Sequence[str], seconds: float) -> dict[str, Any]:
    """The load on all models, while the new ones come and go."""
    clients, until = Clients(server.port, [*models, *new]), time.perf_counter() + seconds
    _, count = await asyncio.gather(clients.run(until), come_and_go(server.port, new, until - 0.2))
    answers = {"answered": clients.answered, "lost": clients.lost, "not_there": clients.absent}
    return {
        "seconds": seconds,
        "loads_and_drops": count,
        **answers,
        "requests_per_second": round(clients.answered / seconds, 1),
    }


def largest_difference(server: ServerProcess, folder: Path, names: Sequence[str]) -> float:
    """Of the probabilities of the served adapters and of the merged models."""

    async def ask(name: str) -> dict[str, float]:
        connection = Connection(server.port)
        reply = await connection.send(post("/classify", json.dumps({"texts": TEXTS[0], "model": name}).encode()))
        found: dict[str, float] = json.loads(reply.body)["results"][0]["probabilities"]
        return found

    differences = []
    for name in names:
        found, merged = asyncio.run(ask(name)), bertkit.load(folder / name).classify(TEXTS[0]).probabilities
        differences += [abs(found[label] - merged[label]) for label in LABELS]
    return max(differences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--adapters", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--full", action="store_true", help="Also as many full models, for their memory.")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names, new = [f"a{n}" for n in range(options.adapters)], [f"new{n}" for n in range(2)]
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, "adapters")
        write_adapters(options.model, folder, [*names, *new])
        sizes = [sum(path.stat().st_size for path in (folder / name).iterdir()) for name in names]
        whole = Path(work, "whole")
        bertkit.load(folder / names[0]).save(whole)
        logs = Path(work)
        one = bertkit_server([f"one={whole}"], logs / "one.log")
        many = bertkit_server(
            [f"trunk={options.model}", *(f"{n}={folder / n}" for n in names)],
            logs / "many.log",
            "--adapters",
            str(folder),
        )
        report: dict[str, Any] = {
            "machine": machine(),
            "adapters": len(names),
            "rank": RANK,
            "clients": CLIENTS,
            "largest_folder_bytes": max(sizes),
            "largest_difference_from_merged": largest_difference(many, folder, names),
        }
        loads = {"one_model": (one, ["one"]), "one_adapter": (many, names[:1]), "all_adapters": (many, names)}
        rates: dict[str, list[float]] = {name: [] for name in loads}
        for _ in range(options.rounds):
            for name, (server, models) in loads.items():
                rates[name].append(round(rate(server, models, options.seconds), 1))
        report["requests_per_second"] = rates
        report["median_share_of_one_model"] = {
            name: round(statistics.median(a / b for a, b in zip(found, rates["one_model"], strict=True)), 3)
            for name, found in rates.items()
        }
        report["memory_bytes"] = {"one_model": one.memory(), f"{len(names)}_adapters": many.memory()}
        one.end()
        report["come_and_go"] = asyncio.run(churn(many, names, new, 3 * options.seconds))
        report["memory_bytes"]["after_come_and_go"] = many.memory()
        many.end()
        if options.full:
            for name in names:
                bertkit.load(folder / name).save(Path(work, "full", name))
            full = bertkit_server([f"{n}={Path(work, 'full', n)}" for n in names], logs / "full.log")
            rate(full, names, options.seconds)  # packs every model's weights
            report["memory_bytes"][f"{len(names)}_full_models"] = full.memory()
            full.end()
    write_report(report, options.out)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
