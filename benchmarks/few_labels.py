"""Classification with 8 and 32 rows a label: few=true, SetFit, plain fine-tuning, frozen vectors, TF-IDF.

    python benchmarks/few_labels.py draw --tasks TASKS --out DRAWS.json
    python benchmarks/few_labels.py measure --draws DRAWS.json --model MINILM --out PARTS.jsonl
    PYTHON-WITH-SETFIT benchmarks/few_labels_setfit.py --draws DRAWS.json --model MINILM --out PARTS.jsonl
    python benchmarks/few_labels.py table --parts PARTS.jsonl --out RESULT.json

TASKS holds trec6, intent-snips, glue-sst2 and ag-news. Half of the training rows (by a checksum of the text) are for
choosing settings (`draw --dev`), the other half for the draws that are reported; 500 test rows of each task are fixed.
A measurement that PARTS.jsonl already has is not repeated, so that a run can be done in pieces. Seconds are those of
training, from texts and labels in memory to a model that answers; models are loaded before.
"""

import argparse
import json
import subprocess
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import bertkit

Row = tuple[str, str]  # text, label
TESTED = 500
DEV_TESTED = 300
DRAWS = {8: 10, 32: 3}  # rows a label: draws


def read_trec(folder: Path) -> tuple[list[Row], list[Row]]:
    """(training rows, test rows) of TREC with its six coarse labels."""
    parts = []
    for name in ("train_5500.label.zst", "TREC_10.label"):
        lines = [line.partition(" ") for line in read_lines(folder / name)]
        parts.append([(text.strip(), label.split(":")[0]) for label, _, text in lines])
    return parts[0], parts[1]


def read_tables(train: str, test: str, *, header: bool = True) -> Callable[[Path], tuple[list[Row], list[Row]]]:
    """A reader of two tables of a text and a label."""

    def read(folder: Path) -> tuple[list[Row], list[Row]]:
        parts = []
        for name in (train, test):
            rows = [line.rpartition("\t") for line in read_lines(folder / name)[1 if header else 0 :]]
            parts.append([(text.strip(), label) for text, _, label in rows])
        return parts[0], parts[1]

    return read


TASKS = {
    "trec6": read_trec,
    "intent-snips": read_tables("train.tsv.zst", "test.tsv"),
    "glue-sst2": read_tables("train.tsv.zst", "dev.tsv"),
    "ag-news": read_tables("train_10k_subset.tsv.zst", "test.tsv.zst", header=False),
}


def read_lines(path: Path) -> list[str]:
    """The lines of a file, which may be compressed."""
    if path.suffix == ".zst":
        data = subprocess.run(["zstd", "-dc", str(path)], capture_output=True, check=True).stdout
    else:
        data = path.read_bytes()
    return [line for line in data.decode("utf-8", errors="replace").split("\n") if line.strip()]


def draw(rows: Sequence[Row], per_label: int, seed: int) -> list[Row]:
    """`per_label` rows of each label, without repeated texts."""
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(len(rows))
    chosen: dict[str, dict[str, Row]] = defaultdict(dict)
    for number in order:
        text, label = rows[number]
        if len(chosen[label]) < per_label:
            chosen[label].setdefault(text, rows[number])
    return [row for label in sorted(chosen) for row in chosen[label].values()]


def all_draws(folder: Path, *, dev: bool) -> dict[str, Any]:
    """For each task its test rows and its draws; with `dev` those for choosing settings."""
    content = {}
    for name, read in TASKS.items():
        train, test = read(folder / name)
        half = [row for row in train if zlib.crc32(row[0].encode()) % 2 == (0 if dev else 1)]
        if dev:
            held_out, half = half[: len(half) // 2], half[len(half) // 2 :]
            test = held_out
        count = DEV_TESTED if dev else TESTED
        picked = np.random.Generator(np.random.Philox(key=7)).permutation(len(test))[:count]
        draws = {str(k): [draw(half, k, 1000 * dev + seed) for seed in range(n)] for k, n in DRAWS.items()}
        content[name] = {"test": [test[n] for n in sorted(picked)], "train": draws}
    return content


def few(rows: list[Row], model: Path, seed: int) -> Callable[[list[str]], list[str]]:
    """Contrastive tuning and a logistic regression, with its defaults."""
    return tuned(rows, model, few=True, seed=seed)


def plain(rows: list[Row], model: Path, seed: int) -> Callable[[list[str]], list[str]]:
    """All layers and a new head, with the defaults; the last weights, so that nothing is chosen on any row."""
    return tuned(rows, model, few=False, keep="last", seed=seed)


def tuned(rows: list[Row], model: Path, **settings: object) -> Callable[[list[str]], list[str]]:
    """A fine-tuned model; its dev rows are its training rows, which only the temperature sees."""
    run = bertkit.finetune("classify", rows, rows, model, **settings)
    if not run.finished:
        raise KeyboardInterrupt
    return lambda texts: [str(each.label) for each in run.model.classify(texts)]


def vectors(rows: list[Row], model: Path, seed: int) -> Callable[[list[str]], list[str]]:
    """A logistic regression on the last layer's mean vectors."""
    fitted = bertkit.Classifier(model).fit(*zip(*rows, strict=True))
    return lambda texts: list(fitted.predict(texts))


def tfidf(rows: list[Row], model: Path, seed: int) -> Callable[[list[str]], list[str]]:
    """A logistic regression on TF-IDF of words and pairs of words."""
    fitted = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(max_iter=1000))
    fitted.fit(*zip(*rows, strict=True))
    return lambda texts: list(fitted.predict(texts))


METHODS = {"few": few, "plain": plain, "vectors": vectors, "tfidf": tfidf}


def measure(options: argparse.Namespace) -> None:
    """Train and score what is asked for and not yet in the file."""
    torch.set_num_threads(options.threads)
    draws = json.loads(options.draws.read_text())
    done = {tuple(part["key"]) for part in read_parts(options.out)}
    for method in options.methods.split(","):
        for name in options.tasks.split(",") if options.tasks else draws:
            for size in options.sizes.split(","):
                for number in range(min(options.most, len(draws[name]["train"][size]))):
                    key = (method, name, size, number)
                    if key not in done:
                        write_part(options.out, key, draws[name], options.model)


def write_part(out: Path, key: tuple[str, str, str, int], task: dict[str, Any], model: Path) -> None:
    """One training: seconds (by the clock, and of all cores together) and the accuracy on the test rows."""
    method, _, size, number = key
    rows = [(text, label) for text, label in task["train"][size][number]]
    begin, cpu = time.perf_counter(), time.process_time()
    answer = METHODS[method](rows, model, number)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    texts, labels = zip(*task["test"], strict=True)
    right = np.mean([guess == label for guess, label in zip(answer(list(texts)), labels, strict=True)])
    row = {"key": key, "accuracy": float(right), "seconds": round(seconds, 2), "cpu": round(cpu, 2)}
    with out.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(row, flush=True)


def read_parts(path: Path) -> list[dict[str, Any]]:
    """The measurements so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(options: argparse.Namespace) -> None:
    """Means over draws, and each method beside SetFit on the draws that both have."""
    parts: dict[tuple[str, str], dict[str, dict[int, Any]]] = defaultdict(lambda: defaultdict(dict))
    for path in options.parts:
        for part in read_parts(path):
            method, name, size, number = part["key"]
            parts[name, size][method][number] = part
    rows = []
    for (name, size), methods in sorted(parts.items()):
        for method, measured in methods.items():
            shared = sorted(measured.keys() & methods.get("setfit", {}).keys())
            rows.append(
                {"task": name, "rows_a_label": int(size), "method": method, **summary(measured, sorted(measured))}
            )
            if method != "setfit" and shared:
                rows[-1]["on_draws_of_setfit"] = {"numbers": shared, **summary(measured, shared)}
                rows[-1]["setfit"] = summary(methods["setfit"], shared)
    versions = next((part["versions"] for path in options.parts for part in read_parts(path) if "versions" in part), {})
    content = {"model": options.model_name, "tested": TESTED, "setfit_versions": versions, "rows": rows}
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    for row in rows:
        print(row["task"], row["rows_a_label"], row["method"], row["draws"], row["accuracy"], row["cpu_seconds"])


def summary(measured: dict[int, Any], draws: Sequence[int]) -> dict[str, Any]:
    """Mean accuracy and its deviation over draws, and the mean seconds."""
    accuracy = [100 * measured[number]["accuracy"] for number in draws]
    return {
        "draws": len(draws),
        "accuracy": round(float(np.mean(accuracy)), 1),
        "accuracies": [round(value, 1) for value in accuracy],
        "deviation": round(float(np.std(accuracy, ddof=1)), 1) if len(draws) > 1 else None,
        "seconds": round(float(np.mean([measured[number]["seconds"] for number in draws])), 2),
        "cpu_seconds": round(float(np.mean([measured[number]["cpu"] for number in draws])), 2),
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    drawing = verbs.add_parser("draw")
    drawing.add_argument("--tasks", type=Path, required=True)
    drawing.add_argument("--dev", action="store_true")
    measuring = verbs.add_parser("measure")
    measuring.add_argument("--draws", type=Path, required=True)
    measuring.add_argument("--model", type=Path, required=True)
    measuring.add_argument("--methods", default=",".join(METHODS))
    measuring.add_argument("--sizes", default="8,32")
    measuring.add_argument("--tasks")
    measuring.add_argument("--most", type=int, default=100)
    measuring.add_argument("--threads", type=int, default=2)
    showing = verbs.add_parser("table")
    showing.add_argument("--parts", type=Path, nargs="+", required=True)
    showing.add_argument("--model-name", default="all-MiniLM-L6-v2")
    for each in (drawing, measuring, showing):
        each.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.verb == "draw":
        options.out.write_text(json.dumps(all_draws(options.tasks, dev=options.dev)))
    else:
        {"measure": measure, "table": table}[options.verb](options)


if __name__ == "__main__":
    main()
