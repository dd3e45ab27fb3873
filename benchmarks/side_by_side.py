"""Compare two versions of this package that take turns: time and memory of the new one beside the old one.

    python benchmarks/side_by_side.py --old OLD/src --new src --model FOLDER --texts TEXTS.txt.zst --out RESULT.json
        [--workloads encode-short,encode-passages,latency-8] [--rounds 10] [--threads 2]
        [--data FOLDER with train.tsv and dev.tsv] [--shards DIR --recipe RECIPE.toml] [--segment 6]

Each version lives in a process of its own that waits while the other works; in every round both do the same work, in
alternating order. Training (`pretrain`, `finetune`) is one long run of each version: it is stopped (SIGSTOP) while the
other one works, and its own records of steps inside a segment give seconds per million tokens. The ratio is old seconds
/ new seconds: over 1 the new version is faster. Its 95 % interval is that of a bootstrap over rounds. Only the public
API and the commands are used, so that any two versions can be compared.
"""

import argparse
import json
import os
import platform
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

LATENCY = {"latency-8": 8, "latency-32": 32, "latency-128": 128, "latency-512": 512}  # tokens of one text
REPEATS = {8: 60, 32: 30, 128: 15, 512: 5}
CLIENTS = 16


def texts_of(path: Path, kind: str, count: int) -> list[str]:
    """Single sentences, or passages of about 200 words, from a corpus file."""
    from pyarrow import CompressedInputStream, OSFile

    with CompressedInputStream(OSFile(str(path)), "zstd") as stream:
        lines = [line for line in stream.read(4_000_000).decode("utf-8", "ignore").splitlines() if len(line) > 20]
    if kind == "short":
        return [line.split(". ")[0] for line in lines[: 3 * count : 3]][:count]
    words = " ".join(lines).split()
    return [" ".join(words[at : at + 60 + at % 280]) for at in range(0, 340 * count, 340)][:count]


class Works:
    """What a version can be asked to do; each gives seconds (or seconds per unit of work)."""

    def __init__(self, options: dict[str, Any]) -> None:
        import torch

        import bertkit

        self.options, self.torch = options, torch
        if options["threads"]:
            torch.set_num_threads(options["threads"])
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.bert = bertkit.load(options["model"]) if options["model"] else None
        if self.bert is not None and self.device == "cuda":
            self.bert.to("cuda", "bfloat16")
        self.texts: dict[str, list[str]] = {}

    def encode(self, kind: str) -> float:
        """Seconds to embed many texts."""
        counts = self.options["short"], self.options["passages"]
        if kind not in self.texts:
            self.texts[kind] = texts_of(Path(self.options["texts"]), kind, counts[kind == "passages"])
        return self._timed(lambda: self.bert.embed(self.texts[kind]))

    def latency(self, tokens: int) -> float:
        """Median seconds of one text."""
        text = " ".join(["cat"] * (tokens - 2))
        return median(self._timed(lambda: self.bert.embed([text])) for _ in range(REPEATS[tokens]))

    def _timed(self, work: Callable[[], Any]) -> float:
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        return time.perf_counter() - began

    def memory(self) -> dict[str, float]:
        """Peak MiB of the process, and of the GPU."""
        found = {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
        if self.device == "cuda":
            found["gpu"] = self.torch.cuda.max_memory_allocated() / 2**20
        return found


def peak_memory(process: subprocess.Popen[Any]) -> dict[str, float]:
    """Peak MiB of a process."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return {"process": int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024}


class Serving:
    """A server of this version, under a load of `CLIENTS` clients with one text each."""

    def __init__(self, options: dict[str, Any]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "bertkit", "serve", f"m={options['model']}", "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.texts = texts_of(Path(options["texts"]), "short", 256)
        self._wait()

    def _wait(self) -> None:
        for _ in range(600):
            try:
                HTTPConnection("127.0.0.1", self.port, timeout=2).request("GET", "/health")
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("the server did not start")

    def serve(self, requests: int) -> float:
        """Seconds per request."""

        def client(number: int) -> None:
            connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
            for at in range(number, requests, CLIENTS):
                body = json.dumps({"model": "m", "input": self.texts[at % len(self.texts)]})
                connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
                reply = connection.getresponse()
                assert reply.status == 200, reply.read()
                reply.read()

        threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (time.perf_counter() - began) / requests

    def memory(self) -> dict[str, float]:
        """Peak MiB of the server."""
        return peak_memory(self.process)


def worker() -> None:
    """Read one request for each line from standard input, write one answer for each."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    options = json.loads(sys.stdin.readline())
    works: Any = Serving(options) if options["kind"] == "serve" else Works(options)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(works, name)(*arguments)), file=answers, flush=True)
    if options["kind"] == "serve":
        works.process.terminate()


class TrainingRun:
    """A training command of one version, which is stopped while the other version works."""

    def __init__(self, source: Path, workload: str, options: argparse.Namespace, stack: ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.metrics = folder / "run" / "metrics.jsonl"
        words = [sys.executable, "-m", "bertkit", *training_command(workload, options), "--out", str(folder / "run")]
        environment = {**os.environ, "PYTHONPATH": str(source.resolve())}
        self.process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
        stack.callback(self.close)
        while len(self.records()) < options.warm_records:
            if self.process.poll() is not None:
                raise SystemExit("a version failed; its error is above")
            time.sleep(0.2)
        self.process.send_signal(signal.SIGSTOP)

    def records(self) -> list[dict[str, Any]]:
        """The steps that it has logged so far."""
        lines = self.metrics.read_text().splitlines() if self.metrics.exists() else []
        return [record for record in map(json.loads, lines) if "tokens" in record]

    def segment(self, seconds: float) -> float:
        """Let it work for a while: seconds per million tokens, between the first and the last record of that time."""
        before = len(self.records())
        self.process.send_signal(signal.SIGCONT)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        records = self.records()[before:]
        if len(records) < 3:
            raise SystemExit("too few records in a segment: it must be longer, or the run has ended")
        first, last = records[0], records[-1]
        return 1e6 * (last["seconds"] - first["seconds"]) / (last["tokens"] - first["tokens"])

    def memory(self) -> dict[str, float]:
        """Peak MiB of the process."""
        return peak_memory(self.process)

    def close(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.wait(timeout=60)


def training_command(workload: str, options: argparse.Namespace) -> list[str]:
    """A run that does not end by itself while it is measured."""
    if workload == "pretrain":
        words = ["pretrain", str(options.recipe), f"shards={options.shards}", "steps=1000000", "log_every=5"]
        return [*words, "evaluate_every=1000000", "save_every=1000000"]
    words = ["finetune", "classify", "--train", str(options.data / "train.tsv"), "--dev", str(options.data / "dev.tsv")]
    start = [] if options.model is None else ["--from", str(options.model)]
    same = ["layer_decay=1", "learning_rate=2e-5"]  # whose defaults are not the same in all versions
    return [*words, *start, *same, "epochs=1000", "max_length=128", "evaluations=1", "log_every=5", "save_minutes=1000"]


class Version:
    """One version in its process."""

    def __init__(self, source: Path, options: dict[str, Any], stack: ExitStack) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source.resolve())}
        command = [sys.executable, __file__, "--worker"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        stack.callback(self.close)
        self.ask(options)

    def ask(self, request: Any) -> Any:
        """Its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a version failed; its error is above")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def request_of(workload: str, options: argparse.Namespace) -> list[Any]:
    """What a worker is asked for this workload."""
    if workload in LATENCY:
        return ["latency", LATENCY[workload]]
    if workload.startswith("encode-"):
        return ["encode", workload.removeprefix("encode-")]
    return ["serve", options.requests] if workload == "serve" else [workload]


def compared(old: list[float], new: list[float]) -> dict[str, Any]:
    """The ratio of medians, and its 95 % interval."""
    draw, count = random.Random(0), len(old)
    ratios = []
    for _ in range(2000):
        rows = [draw.randrange(count) for _ in range(count)]
        ratios.append(median(old[row] for row in rows) / median(new[row] for row in rows))
    ratios.sort()
    facts = {"old seconds": median(old), "new seconds": median(new), "ratio": median(old) / median(new)}
    facts |= {"interval": [ratios[49], ratios[1949]], "rounds": count}
    return facts | {"verdict": "slower" if ratios[1949] < 0.98 else "as fast"}


def measure(workload: str, options: argparse.Namespace) -> dict[str, Any]:
    """Both versions in turns."""
    given = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    sources, seconds = (options.old, options.new), ([], [])  # type: tuple[Any, tuple[list[float], list[float]]]
    with ExitStack() as stack:
        if workload in ("pretrain", "finetune"):
            runs = [TrainingRun(source, workload, options, stack) for source in sources]
            asked = [partial(run.segment, options.segment) for run in runs]
            memories = [run.memory for run in runs]
        else:
            versions = [Version(source, {**given, "kind": workload}, stack) for source in sources]
            request = request_of(workload, options)
            for version in versions:
                version.ask(request)  # the first time is not counted
            asked = [partial(version.ask, request) for version in versions]
            memories = [partial(version.ask, ["memory"]) for version in versions]
        for round_ in range(options.rounds):
            for which in (0, 1) if round_ % 2 else (1, 0):
                seconds[which].append(asked[which]())
                print(workload, ("old", "new")[which], seconds[which][-1], flush=True)
        memory = [peak() for peak in memories]
    facts = compared(*seconds)
    ratio = {kind: round(memory[1][kind] / memory[0][kind], 3) for kind in memory[0]}
    return {**facts, "peak MiB": {"old": memory[0], "new": memory[1], "new / old": ratio}}


def main() -> None:
    if "--worker" in sys.argv:
        return worker()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("old", "new", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("model", "texts", "data", "shards", "recipe"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--workloads", default="encode-short,encode-passages,latency-8,latency-32,latency-128,serve")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: as it comes")
    parser.add_argument("--short", type=int, default=300)
    parser.add_argument("--passages", type=int, default=50)
    parser.add_argument("--requests", type=int, default=320)
    parser.add_argument("--segment", type=float, default=6, help="seconds that a training run works in each round")
    parser.add_argument("--warm-records", type=int, default=8, help="records of a training run before it is measured")
    options = parser.parse_args()
    content: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "workloads": {}}
    for workload in options.workloads.split(","):
        content["workloads"][workload] = facts = measure(workload, options)
        print(workload, json.dumps(facts), flush=True)
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
