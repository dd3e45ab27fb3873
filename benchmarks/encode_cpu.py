"""Texts to vectors on a CPU: ours beside CTranslate2, OpenVINO, ONNX Runtime and sentence-transformers.

    python benchmarks/encode_cpu.py --model FOLDER --texts CORPUS.txt.zst --out RESULT.json

Each engine lives in a process of its own and waits while the others work; rounds are interleaved, so that what else
the machine does falls on all alike. Peers run with the batch size and the threading that was best for them on each
workload. The second model has BERT-base's shape and random weights.
"""

import argparse
import ctypes
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from shutil import copytree
from statistics import median
from time import perf_counter

import encode_cpu_peers as peers
import numpy as np

from bertkit.checkpoint.save_load import Checkpoint, save_checkpoint
from bertkit.config import BertConfig, family_config
from bertkit.files import whole_file
from bertkit.model.model import new_model
from bertkit.text.corpus import CorpusReport, read_documents
from bertkit.text.sentences import split_sentences
from bertkit.text.tokenizer import Tokenizer

LATENCY_TIMES = {8: 40, 32: 20, 128: 10, 512: 4}  # tokens: times in each round
MODELS = ("MiniLM-L6", "BERT-base shape")
SHORT_TEXTS, PASSAGES = 600, 100
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "red",
    "mat",
    "and",
    "saw",
    "two",
    "dogs",
    "run",
    "by",
    "an",
    "old",
    "green",
    "door",
]
LIBRARIES = ("torch", "ctranslate2", "openvino", "onnxruntime", "sentence-transformers", "transformers", "tokenizers")


def main() -> None:
    options = read_options()
    with tempfile.TemporaryDirectory() as name:
        folders = {"MiniLM-L6": without_limit(Path(copytree(options.model, f"{name}/minilm")))}
        folders["BERT-base shape"] = base_shape(options.model, Path(name) / "base")
        corpus = read_corpus(options.texts)
        results = {
            model: measure(folders[model], model, corpus, options) for model in folders if options.only in (None, model)
        }
    report = {"machine": machine(), "rounds": options.rounds, "models": results}
    with whole_file(options.out) as draft:
        draft.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(summary(results), indent=2))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a sentence-transformers folder of MiniLM-L6")
    parser.add_argument("--texts", type=Path, required=True, help="documents apart by blank lines, or JSONL")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=MODELS)
    parser.add_argument("--lengths", type=int, nargs="*", default=list(LATENCY_TIMES), help="of one text, in tokens")
    parser.add_argument("--workloads", nargs="*", default=["short", "passages"])
    parser.add_argument("--engines", nargs="+", default=[name for name in peers.ENGINES if name != "transformers"])
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


@dataclass(frozen=True)
class Corpus:
    """What texts are taken from."""

    sentences: list[str]
    passages: list[str]


def read_corpus(path: Path) -> Corpus:
    """A sentence from each of many documents; and paragraphs of 500 to 2,500 characters."""
    sentences: list[str] = []
    passages: list[str] = []
    for document in read_documents([path], report=CorpusReport()):
        first = document.paragraphs[0]
        start, end = split_sentences(first)[0]
        sentences += [first[start:end]] if 20 <= end - start <= 160 else []
        passages += [line for line in document.paragraphs if 500 <= len(line) <= 2500][:1]
        if len(sentences) >= 1200 and len(passages) >= 200:
            break
    return Corpus(sentences, passages)


def without_limit(folder: Path) -> Path:
    """The folder's limit of 256 tokens lifted to the model's 512: nobody is to cut what another computes."""
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_seq_length": 512}))
    return folder


def base_shape(minilm: Path, folder: Path) -> Path:
    """BERT-base's shape with random weights, over MiniLM's vocabulary."""
    model = new_model(family_config("bert", "base"), {}, pooler=True)
    save_checkpoint(Checkpoint(model=model, tokenizer=Tokenizer.load(minilm)), folder)
    path = folder / "config.json"  # CTranslate2's converter asks for a setting that newer files leave out
    path.write_text(json.dumps(json.loads(path.read_text()) | {"position_embedding_type": "absolute"}))
    return folder


def measure(folder: Path, model: str, corpus: Corpus, options: argparse.Namespace) -> dict[str, object]:
    workloads = {"short": corpus.sentences[:SHORT_TEXTS], "passages": corpus.passages[:PASSAGES]}
    workloads = {name: workloads[name] for name in options.workloads}
    with child("transformers", folder, {}) as connection:
        expected = {name: ask(connection, texts)[0] for name, texts in workloads.items()}
    found: dict[str, object] = {"workloads": {}}
    with ExitStack() as stack:
        loaded = {
            engine: [stack.enter_context(child(engine, folder, tuning)) for tuning in peers.TUNINGS[engine]]
            for engine in options.engines
        }
        for name, texts in workloads.items():
            described = describe(folder, texts, peak_rate())
            chosen = {engine: best_tuning(engine, loaded[engine], texts) for engine in loaded}
            found["workloads"][name] = described | rounds(chosen, texts, expected[name], described, options.rounds)
            print(json.dumps({model: {name: found["workloads"][name]}}), flush=True)
        found["one text"] = one_text(loaded, options.lengths, options.rounds)
    return found


@dataclass(frozen=True)
class Chosen:
    """An engine as it was quickest."""

    connection: Connection
    tuning: dict[str, object]


def best_tuning(engine: str, loaded: list[Connection], texts: list[str]) -> Chosen:
    """What was quickest on a part of the texts, the better of two tries each."""
    tunings = peers.TUNINGS[engine]
    ways = [
        Chosen(connection, tuning | {"batch": batch})
        for connection, tuning in zip(loaded, tunings, strict=True)
        for batch in (peers.BATCHES if "way" in tuning else [0])
    ]
    if len(ways) == 1:
        return ways[0]
    part = texts[:: max(1, len(texts) // 48)]
    return min(ways, key=lambda way: min(ask(way.connection, part, way.tuning["batch"], repeats=2)[1]))


def rounds(
    chosen: dict[str, Chosen], texts: list[str], expected: np.ndarray, described: dict[str, float], count: int
) -> dict[str, object]:
    """Every engine in turn, `count` times, after one time to get warm."""
    results: dict[str, dict[str, object]] = {}
    for name, way in chosen.items():
        vectors, _, _ = ask(way.connection, texts, way.tuning["batch"])
        results[name] = {"tuning": way.tuning, "wall": [], "cpu": []} | cosines(vectors, expected)
    for _ in range(count):
        for name, way in chosen.items():
            _, [wall], [cpu] = ask(way.connection, texts, way.tuning["batch"])
            results[name]["wall"].append(round(wall, 4))
            results[name]["cpu"].append(round(cpu, 4))
    for result in results.values():
        result["median"] = median(result["wall"])
        result["median cpu"] = median(result["cpu"])
        result["gflops"] = round(described["gflop"] / result["median"], 1)
        result["share of FMA peak"] = round(result["gflops"] / described["FMA peak, GFLOP/s"], 3)
    return {"engines": results}


def one_text(loaded: dict[str, list[Connection]], lengths: list[int], count: int) -> dict[str, object]:
    """Median milliseconds of one text at a time: each round's, and over all; text in, vector out."""
    results: dict[str, dict[str, object]] = {}
    for length in lengths:
        times = LATENCY_TIMES[length]
        text = " ".join((WORDS * 40)[: length - 2])
        chosen = {
            name: min(connections, key=lambda each: median(ask(each, [text], repeats=times)[1]))
            for name, connections in loaded.items()
        }
        each: dict[str, list[float]] = {name: [] for name in chosen}
        cpus: dict[str, list[float]] = {name: [] for name in chosen}
        for _ in range(count):
            for name, connection in chosen.items():
                _, walls, spent = ask(connection, [text], repeats=times)
                each[name].append(round(median(walls) * 1e3, 3))
                cpus[name].append(round(median(spent) * 1e3, 3))
        results[str(length)] = {
            name: {"median ms": median(each[name]), "median cpu ms": median(cpus[name]), "rounds": each[name]}
            for name in chosen
        }
        print(json.dumps({length: results[str(length)]}), flush=True)
    return results


@contextmanager
def child(engine: str, folder: Path, tuning: dict[str, object]):
    """An engine in its own process, loaded and waiting."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=peers.serve, args=(theirs, engine, folder, tuning), daemon=True)
    process.start()
    theirs.close()
    assert ours.recv() == "ready"
    yield ours
    ours.send(None)
    process.join()


def ask(
    connection: Connection, texts: list[str], batch: int = 0, repeats: int = 1
) -> tuple[np.ndarray, list[float], list[float]]:
    """Vectors, wall seconds and CPU seconds of each time."""
    connection.send((texts, batch, repeats))
    assert connection.poll(600), "an engine did not answer for ten minutes"
    return connection.recv()


def cosines(vectors: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    """With float32 transformers, over the texts."""
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
    found = (vectors.astype(np.float64) * expected).sum(1) / lengths
    return {"mean cosine": round(float(found.mean()), 6), "min cosine": round(float(found.min()), 6)}


def describe(folder: Path, texts: list[str], peak: float) -> dict[str, float]:
    """Texts, tokens, and the multiplications and additions that they need."""
    config = BertConfig(**shape(folder))
    lengths = np.array(Tokenizer.load(folder).count(texts))
    weights = 4 * config.width**2 + 2 * config.width * config.inner
    gflop = config.depth * (2 * weights * lengths.sum() + 4 * config.width * (lengths**2).sum()) / 1e9
    return {
        "texts": len(texts),
        "tokens": int(lengths.sum()),
        "median tokens": float(np.median(lengths)),
        "longest": int(lengths.max()),
        "gflop": round(float(gflop), 1),
        "FMA peak, GFLOP/s": round(peak, 1),
    }


def shape(folder: Path) -> dict[str, int]:
    config = json.loads((folder / "config.json").read_text())
    names = {"width": "hidden_size", "depth": "num_hidden_layers", "heads": "num_attention_heads"}
    return {ours: config[theirs] for ours, theirs in names.items()} | {"inner": config["intermediate_size"]}


PEAK = """
typedef float lanes __attribute__((vector_size(64)));
float run(long rounds, float times, float plus) {
    lanes one = {1}, t = one * times, p = one * plus;
    /* Eight sums, for none can be added to before its last addition is done; and no two alike, or one would do. */
    lanes a = one, b = a + 1, c = a + 2, d = a + 3, e = a + 4, f = a + 5, g = a + 6, h = a + 7;
    for (long r = 0; r < rounds; r++) {
        a = a * t + p; b = b * t + p; c = c * t + p; d = d * t + p;
        e = e * t + p; f = f * t + p; g = g * t + p; h = h * t + p;
    }
    a += b + c + d + e + f + g + h;
    return a[0];
}
"""


def peak_rate() -> float:
    """GFLOP/s of fused multiply-adds that touch no memory, on all cores: the best of five tries."""
    with tempfile.TemporaryDirectory() as name:
        source, library = Path(name) / "peak.c", Path(name) / "peak.so"
        source.write_text(PEAK)
        flags = ["-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC"]
        subprocess.run(["cc", *flags, str(source), "-o", str(library)], check=True)
        run = ctypes.CDLL(str(library)).run
        run.argtypes, run.restype = [ctypes.c_long, ctypes.c_float, ctypes.c_float], ctypes.c_float
        rates = []
        for _ in range(5):
            rounds, began = 20_000_000, perf_counter()
            with ThreadPoolExecutor(peers.CORES) as pool:
                list(pool.map(run, [rounds] * peers.CORES, [0.5] * peers.CORES, [0.5] * peers.CORES))
            rates.append(peers.CORES * rounds * 8 * 16 * 2 / (perf_counter() - began) / 1e9)
        return max(rates)


def machine() -> dict[str, object]:
    found: dict[str, object] = {"cores": os.cpu_count(), "python": platform.python_version()}
    flags = Path("/proc/cpuinfo").read_text()
    found["instructions"] = [name for name in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16") if name in flags]
    siblings = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    found["cores that share one's units"] = siblings.read_text().strip() if siblings.exists() else "unknown"
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def summary(results: dict[str, dict[str, object]]) -> dict[str, object]:
    """Each engine's time over ours: above 1 it is slower."""
    found = {}
    for model, result in results.items():
        for name, workload in result["workloads"].items():
            ours = workload["engines"]["bertkit"]["median"]
            found[f"{model}, {name}"] = {e: round(r["median"] / ours, 3) for e, r in workload["engines"].items()}
        for length, engines in result["one text"].items():
            ours = engines["bertkit"]["median ms"]
            found[f"{model}, one text of {length}"] = {e: round(r["median ms"] / ours, 3) for e, r in engines.items()}
    return found


if __name__ == "__main__":
    sys.exit(main())
