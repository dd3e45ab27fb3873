"""Adapters beside plain fine-tuning: accuracy on TREC's questions, by which linear maps have updates and at which rate.

    python benchmarks/finetune_adapters.py --data TASKS --model MODEL --out RESULT.json [--rows 600] [--epochs 4]

A tenth of the training rows is dev, by which a setting is to be chosen; the test file's 500 rows are scored once each.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

import torch

import bertkit
from bertkit.finetuning import learner
from bertkit.text.corpus import CorpusReport, read_lines

# Name -> (settings, rate of the updates relative to that of whole matrices)
CONFIGURATIONS: dict[str, tuple[dict[str, object], float]] = {
    "all weights": ({}, 1.0),
    "attention, rank 8, rate x 3": ({"rank": 8}, 3.0),
    "attention, rank 8, rate x 10": ({"rank": 8}, 10.0),
    "attention, rank 8, rate x 30": ({"rank": 8}, 30.0),
    "attention, rank 8, rate x 100": ({"rank": 8}, 100.0),
    "all, rank 8, rate x 30": ({"rank": 8, "matrices": "all"}, 30.0),
    "feed-forward, rank 8, rate x 30": ({"rank": 8, "matrices": "feed-forward"}, 30.0),
}


def questions(path: Path) -> list[dict[str, str]]:
    """Rows of a TREC file: "LABEL:fine question"."""
    lines = [line for _, line in read_lines(path, encoding="latin-1", report=CorpusReport())]
    return [{"label": line.partition(":")[0], "text": line.partition(" ")[2].strip()} for line in lines if line.strip()]


def measure(
    model: Path, train: list[dict[str, str]], test: list[dict[str, str]], name: str, epochs: int
) -> dict[str, object]:
    """One run: scores on dev and test, seconds, bytes of the model's folder."""
    settings, learner.UPDATE_RATE = CONFIGURATIONS[name]
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        run = bertkit.finetune(
            "classify", train, model=model, out=f"{folder}/run", test=test, epochs=epochs, **settings
        )
        seconds = time.perf_counter() - started
        size = sum(path.stat().st_size for path in Path(folder, "run", "model").iterdir())
    return {
        "dev": run.scores["accuracy"],
        "test": run.test_scores["accuracy"],
        "seconds": round(seconds),
        "bytes": size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--only", choices=CONFIGURATIONS, nargs="*", default=list(CONFIGURATIONS), help="By default all."
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    [train_file] = options.data.glob("trec6/train_5500.label*")
    train, test = questions(train_file), questions(options.data / "trec6" / "TREC_10.label")
    train = random.Random(0).sample(train, options.rows)
    result: dict[str, object] = {
        "rows": len(train),
        "test": len(test),
        "epochs": options.epochs,
        "threads": torch.get_num_threads(),
    }
    for name in options.only:
        result[name] = measure(options.model, train, test, name, options.epochs)
        print(name, result[name], flush=True)
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
