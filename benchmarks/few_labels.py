"""Classification with 8 and 32 rows a label: few=true, SetFit, plain fine-tuning, frozen vectors, TF-IDF.

    python benchmarks/few_labels.py draw --tasks TASKS --out DRAWS.json
    flock LOCK python benchmarks/few_labels.py measure --draws DRAWS.json --model MINILM --out PARTS.jsonl
    PYTHON-WITH-SETFIT benchmarks/few_labels_setfit.py --draws DRAWS.json --model MINILM --out PARTS.jsonl
    python benchmarks/few_labels.py table --parts PARTS.jsonl --out RESULT.json

TASKS holds trec6, intent-snips, glue-sst2 and ag-news. Half of the training rows (by a checksum of the text) are for
choosing settings (`draw --dev`), the other half for the draws that are reported; 500 test rows of each task are fixed.
A measurement that PARTS.jsonl already has is not repeated, so that a run can be done in pieces. Seconds are those of
training, from texts and labels in memory to a model that answers; models are loaded before.
"""

import subprocess
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

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
