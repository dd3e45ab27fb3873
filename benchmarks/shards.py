"""Sharding measured: tokens/s and memory of the whole job, twice for equal bytes, and the bare `tokenizers` beside it.

    python benchmarks/shards.py SHARD... --vocab DIR --out RESULT.json

Ours is timed whole: starting, reading, decompressing, splitting sentences, tokenizing, checksums, writing. The library
is timed on its encoding alone, with the lines in memory and its own threads on all cores. Each is given per second on
the clock and per second of CPU, all processes and threads together, which other work on the machine disturbs less.
Memory is the sum over all processes of what each holds, shared pages divided among them.
"""

import argparse
import hashlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tokenizers

from bertkit.files import whole_file
from bertkit.text.corpus import CorpusReport, read_documents
from bertkit.text.shards.reader import open_shards

PROCESSES = 2
BATCH = 10_000  # lines for each call of the library


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path, nargs="+", help="the corpus, text files of any kind bertkit reads")
    parser.add_argument("--vocab", type=Path, required=True, help="the vocabulary: a folder with a tokenizer")
    parser.add_argument("--beside", type=Path, help="the file for the comparison with tokenizers (default: the first)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of the comparison")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [run_ours(options.shards, options.vocab, Path(folder) / name) for name in ("first", "second")]
        equal = digest(Path(folder) / "first") == digest(Path(folder) / "second")
        totals = open_shards(Path(folder) / "first", verify=True).manifest["totals"]
    together = beside(options.beside or options.shards[0], options.vocab, options.rounds)
    theirs = together["medians"]["tokenizers"]
    result = {
        "what": f"shards with {PROCESSES} processes",
        "machine": {"cpu": cpu_name(), "python": platform.python_version(), "tokenizers": tokenizers.__version__},
        "vocabulary": options.vocab.name,
        "shards": [shard.name for shard in options.shards],
        "totals": totals,
        "runs": runs,
        "byte_equal_when_repeated": equal,
        "beside_tokenizers": together,
        "whole_corpus_over_tokenizers": {
            unit: round(statistics.median(run[unit] for run in runs) / speed, 2) for unit, speed in theirs.items()
        },
    }
    with whole_file(options.out) as draft:
        draft.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


def run_ours(shards: list[Path], vocab: Path, out: Path) -> dict[str, object]:
    """Seconds, tokens/s and peak memory of `write_shards` in a fresh process."""
    load = os.getloadavg()[0]
    began, cpu, peak = time.perf_counter(), children_cpu(), 0
    child = subprocess.Popen([sys.executable, __file__, "--job=ours", str(vocab), str(out), *map(str, shards)])
    while child.poll() is None:
        peak = max(peak, memory_kib(child.pid))
        time.sleep(0.2)
    seconds = time.perf_counter() - began
    if child.returncode:
        raise SystemExit(child.returncode)
    tokens = open_shards(out).tokens
    return {
        **speeds(tokens, seconds, children_cpu() - cpu),
        "seconds": round(seconds, 2),
        "peak_mib": round(peak / 1024, 1),
        "load_before": round(load, 2),
    }


def speeds(tokens: int, seconds: float, cpu_seconds: float) -> dict[str, int]:
    return {"tokens_per_second": round(tokens / seconds), "tokens_per_cpu_second": round(tokens / cpu_seconds)}


def children_cpu() -> float:
    """CPU seconds of all children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def job_ours(vocab: Path, out: Path, shards: list[Path]) -> None:
    from bertkit.text.shards.writer import write_shards

    write_shards(shards, vocab, out, processes=PROCESSES)


def job_tokenizers(vocab: Path, _: Path, shards: list[Path]) -> None:
    """Print the tokens, the speed of encoding alone and a checksum of the ids."""
    from bertkit.text.tokenizer_files import load_backend

    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    backend = load_backend(vocab)[0]
    backend.encode_special_tokens = True  # as in shards
    lines = [text for item in read_documents(shards, report=CorpusReport()) for text in item.paragraphs]
    seconds = cpu_seconds = 0.0
    ids: list[np.ndarray] = []
    for start in range(0, len(lines), BATCH):
        batch = lines[start : start + BATCH]
        began, cpu = time.perf_counter(), time.process_time()
        encodings = backend.encode_batch_fast(batch, add_special_tokens=False)
        seconds += time.perf_counter() - began
        cpu_seconds += time.process_time() - cpu
        ids += [np.array(encoding.ids, np.uint32) for encoding in encodings]
    everything = np.concatenate(ids)
    print(json.dumps({**speeds(len(everything), seconds, cpu_seconds), "checksum": ids_checksum(everything)}))


def beside(shard: Path, vocab: Path, rounds: int) -> dict[str, object]:
    """Both on one file, in turns: medians of their speeds, and ours over theirs."""
    runs: dict[str, list[dict[str, int]]] = {"ours": [], "tokenizers": []}
    checksums = set()
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            runs["ours"].append(run_ours([shard], vocab, Path(folder) / "out"))
            opened = open_shards(Path(folder) / "out")
            checksums.add(ids_checksum(opened.gather([0], [opened.tokens])[0]))
        command = [sys.executable, __file__, "--job=tokenizers", str(vocab), "-", str(shard)]
        told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        checksums.add(told.pop("checksum"))
        runs["tokenizers"].append(told)
    units = ("tokens_per_second", "tokens_per_cpu_second")
    medians = {
        name: {unit: statistics.median(run[unit] for run in each) for unit in units} for name, each in runs.items()
    }
    ratios = {unit: round(medians["ours"][unit] / medians["tokenizers"][unit], 2) for unit in units}
    equal = len(checksums) == 1
    return {"file": shard.name, "runs": runs, "medians": medians, "ours_over_tokenizers": ratios, "ids_equal": equal}


def memory_kib(process: int) -> int:
    """The proportional share of memory of a process and its children."""
    try:
        rows = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        own = sum(int(row.split()[1]) for row in rows if row.startswith("Pss:"))
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:  # it has just ended
        return 0
    return own + sum(memory_kib(int(child)) for child in children)


def ids_checksum(ids: np.ndarray) -> str:
    return hashlib.sha256(ids.astype(np.uint32).tobytes()).hexdigest()


def digest(folder: Path) -> str:
    """SHA-256 over the names and contents of all files."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            total.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return total.hexdigest()


def cpu_name() -> str:
    found = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{len(found)} x {found[0].partition(': ')[2]}" if found else platform.processor()


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("--job="):
        job = {"ours": job_ours, "tokenizers": job_tokenizers}[sys.argv[1].removeprefix("--job=")]
        job(Path(sys.argv[2]), Path(sys.argv[3]), [Path(shard) for shard in sys.argv[4:]])
    else:
        main()
