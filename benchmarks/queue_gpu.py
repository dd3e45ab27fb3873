"""The server's queue and engine without HTTP, beside sentence-transformers fed the same way, on one GPU.

    python benchmarks/queue_gpu.py --model FOLDER --texts CORPUS.txt.zst --out RESULT.json

256 clients, each of whom sends a request when it has the reply to its last. Ours: plans made on a thread, `Workers`
with their queue and one thread that computes, rows back to the client, as in `bertkit serve`. Theirs: a thread that
takes whatever waits and gives it to `SentenceTransformer.encode` in one call, which sorts, pads and tokenizes; in
float32 and in bfloat16, with its own batch size and with that of all clients. Rounds are interleaved; the vectors of
both are compared. Needs no package of the server's.
"""

import argparse
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NoReturn

import numpy as np
import torch

from bertkit.files import whole_file
from bertkit.serve.memory import tune_gc
from bertkit.serve.models import load_models
from bertkit.serve.routes.embeddings import EmbeddingOptions, plan_embeddings
from bertkit.serve.service import Plan, Planned, Planner
from bertkit.serve.settings import GPU_TOKENS, ServeSettings
from bertkit.serve.worker import BatchDone, Ticket, Workers
from bertkit.text.corpus import CorpusReport, read_documents
from bertkit.text.sentences import split_sentences

NEAR = 0.999  # cosine of theirs in bfloat16 to ours
Request = list[str]
Reply = Callable[[Sequence[np.ndarray]], None]
Submit = Callable[[Request, Reply], None]


class Counted:
    """What the workers say of their batches."""

    def __init__(self) -> None:
        self.batches, self.tokens, self.sequences = 0, 0, 0

    def batch_done(self, batch: BatchDone) -> None:
        """One more."""
        self.batches, self.tokens = self.batches + 1, self.tokens + batch.tokens
        self.sequences += batch.sequences


class Ours:
    """The engine behind the queue, as the service wires them, with a thread in place of the event loop."""

    def __init__(self, folder: Path, device: torch.device, max_tokens: int, dtype: str) -> None:
        self._limits = ServeSettings(max_tokens=max_tokens)
        self._served = load_models([f"model={folder}"], device, dtype=dtype).named(None)
        self._options = EmbeddingOptions(settings=self._served.embed_settings())
        self.counted = Counted()
        self._loop, self._small = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._planner = Planner(self._small, self._queue)
        self._workers = Workers(
            self._deliver, self.counted, budget=max_tokens, max_waiting=self._limits.waiting_tokens, threads=1
        )
        self._workers.start()

    def submit(self, texts: Request, reply: Reply) -> None:
        """Put a request in."""
        make = partial(plan_embeddings, self._served, texts, self._options, self._limits)
        self._planner.submit(reply, make, sum(map(len, texts)))

    def _queue(self, made: Planned[Reply]) -> None:
        tickets = []
        for reply, plan in made:
            if isinstance(plan, Exception):
                _stop(f"a request was refused: {plan}")
            tickets.append(Ticket(plan.shared_encoder, plan.sequences, partial(_finish, plan, reply)))
        if self._workers.submit(tickets):
            _stop("the queue is full")

    def _deliver(self, done: list[Ticket]) -> None:
        self._loop.submit(_wake_all, done)

    def close(self) -> None:
        """Stop the threads."""
        self._workers.close()
        self._loop.shutdown()
        self._small.shutdown()


def _finish(plan: Plan, reply: Reply, ticket: Ticket) -> None:
    if ticket.failure is not None:
        _stop(f"the model failed: {ticket.failure}")
    reply(plan.finish(ticket.rows))


def _stop(why: str) -> NoReturn:
    """End at once: an exception in one of these threads would be seen by nobody, and the clients wait for ever."""
    print(why, file=sys.stderr, flush=True)
    os._exit(1)


def _wake_all(done: list[Ticket]) -> None:
    for ticket in done:
        ticket.on_done(ticket)


class Theirs:
    """sentence-transformers behind the simplest queue: all that waits goes into one call."""

    def __init__(self, folder: Path, device: torch.device, batch: int, dtype: torch.dtype) -> None:
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(str(folder), device=str(device)).to(dtype)
        self._batch = batch
        self._waiting: queue.SimpleQueue[tuple[Request, Reply] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def submit(self, texts: Request, reply: Reply) -> None:
        """Put a request in."""
        self._waiting.put((texts, reply))

    def _work(self) -> None:
        while first := self._waiting.get():
            taken = [first]
            while not self._waiting.empty() and (more := self._waiting.get()) is not None:
                taken.append(more)
            texts = [text for own, _ in taken for text in own]
            vectors, at = self._model.encode(texts, batch_size=self._batch, show_progress_bar=False), 0
            for own, reply in taken:
                reply(vectors[at : at + len(own)])
                at += len(own)

    def close(self) -> None:
        """Stop the thread."""
        self._waiting.put(None)
        self._thread.join()


@dataclass(frozen=True)
class Load:
    """Who asks for what, for how long."""

    requests: list[Request]
    clients: int
    seconds: float


def turn(submit: Submit, load: Load) -> dict[str, float]:
    """Every client sends a request, and the next from within its reply; what is in flight at the end is waited for."""
    waits: list[float] = []
    lock, idle, finished = threading.Lock(), [load.clients], threading.Event()
    started, before = time.perf_counter(), time.process_time()

    def ask(place: int) -> None:
        began = time.perf_counter()
        if began - started >= load.seconds:
            with lock:
                idle[0] -= 1
                if idle[0] == 0:
                    finished.set()
            return

        def reply(_: Sequence[np.ndarray]) -> None:
            waits.append(time.perf_counter() - began)
            ask(place + 1)

        submit(load.requests[place % len(load.requests)], reply)

    for client in range(load.clients):
        ask(client * len(load.requests) // load.clients)
    finished.wait()
    took = time.perf_counter() - started
    shares = 1000 * np.quantile(waits, (0.5, 0.99))
    return {
        "requests_per_second": round(len(waits) / took, 1),
        "texts_per_second": round(len(waits) * len(load.requests[0]) / took, 1),
        "p50_ms": round(float(shares[0]), 2),
        "p99_ms": round(float(shares[1]), 2),
        "cpu_ms_per_request": round(1000 * (time.process_time() - before) / len(waits), 4),
    }


def read_texts(path: Path, count: int = 4096) -> dict[str, list[str]]:
    """Short sentences; and half of them with paragraphs, none over MiniLM's 256 tokens."""
    short, longer = [], []
    for document in read_documents([path], report=CorpusReport()):
        first = document.paragraphs[0]
        start, end = split_sentences(first)[0]
        short += [first[start:end]] if 20 <= end - start <= 160 else []
        longer += [line for line in document.paragraphs if 160 <= len(line) <= 900][:1]
        if len(short) >= count and len(longer) >= count // 2:
            break
    mixed = [*short[: count // 2], *longer[: count // 2]]
    Random(0).shuffle(mixed)
    return {"short": short[:count], "mixed": mixed}


def grouped(texts: list[str], size: int) -> list[Request]:
    """Requests of so many texts."""
    return [texts[start : start + size] for start in range(0, len(texts) - size + 1, size)]


def vectors(engine: Ours | Theirs, texts: list[str]) -> np.ndarray:
    """What it gives for some texts."""
    found: queue.SimpleQueue[Sequence[np.ndarray]] = queue.SimpleQueue()
    engine.submit(texts, found.put)
    rows = np.stack([np.asarray(row, dtype=np.float32) for row in found.get(timeout=300)])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def engines(options: argparse.Namespace, device: torch.device) -> dict[str, Ours | Theirs]:
    """Ours, and theirs in each setting."""
    found: dict[str, Ours | Theirs] = {
        f"bertkit {dtype}": Ours(options.model, device, options.max_tokens, dtype) for dtype in ("float32", "bfloat16")
    }
    for dtype in (torch.float32, torch.bfloat16):
        for batch in (32, options.clients):
            name = f"sentence-transformers {str(dtype).removeprefix('torch.')} batch {batch}"
            found[name] = Theirs(options.model, device, batch, dtype)
    return found


def measure(found: dict[str, Ours | Theirs], options: argparse.Namespace) -> dict[str, Any]:
    """Workload -> engine -> rounds; a first round is lost."""
    rounds: dict[str, dict[str, list[dict[str, float]]]] = {}
    texts = read_texts(options.texts)
    for number in range(-1, options.rounds):
        for length, own in texts.items():
            for size in options.sizes:
                load = Load(grouped(own, size), options.clients, options.seconds)
                key = f"{length}, {size} in a request"
                for name, engine in found.items():
                    facts = turn(engine.submit, load)
                    print(number, key, name, json.dumps(facts), file=sys.stderr, flush=True)
                    if number >= 0:
                        rounds.setdefault(key, {}).setdefault(name, []).append(facts)
    return rounds


def medians(facts: list[dict[str, float]]) -> dict[str, float]:
    """Over the rounds."""
    return {name: median(each[name] for each in facts) for name in facts[0]}


def summary(rounds: dict[str, dict[str, list[dict[str, float]]]]) -> dict[str, Any]:
    """Medians; and ours over the best of theirs in the same precision."""
    found: dict[str, Any] = {}
    for key, names in rounds.items():
        rows = {
            name: {fact: median(each[fact] for each in facts) for fact in facts[0]} for name, facts in names.items()
        }
        ratios = {}
        for kind in ("float32", "bfloat16"):
            theirs = [row["texts_per_second"] for name, row in rows.items() if kind in name and "bertkit" not in name]
            ratios[kind] = round(rows[f"bertkit {kind}"]["texts_per_second"] / max(theirs), 2)
        found[key] = {**rows, "ours_over_best": ratios}
    return found


def main() -> None:
    options = read_options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = engines(options, device)
    texts = read_texts(options.texts, 64)["mixed"]
    ours = vectors(found["bertkit float32"], texts)
    likeness = {name: round(float((vectors(each, texts) * ours).sum(1).min()), 6) for name, each in found.items()}
    if min(likeness.values()) < NEAR:
        raise SystemExit(f"the vectors differ: {likeness}")
    tune_gc()  # as the server does
    rounds = measure(found, options)
    for each in found.values():
        each.close()
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    report = {"device": name, "torch": torch.__version__, "clients": options.clients, "cosine_to_ours": likeness}
    report |= {"max_tokens": options.max_tokens, "summary": summary(rounds), "rounds": rounds}
    with whole_file(options.out) as draft:
        draft.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report["summary"], indent=2))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a sentence-transformers folder")
    parser.add_argument("--texts", type=Path, required=True, help="documents apart by blank lines, or JSONL")
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 16], help="texts in a request")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one turn")
    usual = GPU_TOKENS if torch.cuda.is_available() else ServeSettings.max_tokens
    parser.add_argument("--max-tokens", type=int, default=usual)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
