"""Squared error against CoSENT for scored pairs, on a split of STS-B's training file: Spearman's correlation.

    python benchmarks/scored_pairs.py --train sts-train.csv --out RESULTS.json

Every seed draws 3,000 pairs to train on and 1,000 others to score; the model is that of the last step. Rates and epochs
are the same for both losses. The dev and test files of STS-B have no part in it.
"""

import argparse
import csv
import json
import tempfile
from datetime import date
from pathlib import Path

import numpy as np
import torch

from bertkit.checkpoint.bundled import model_folder
from bertkit.data.tables import Columns
from bertkit.finetuning.embeddings.data import read_pairs
from bertkit.finetuning.embeddings.settings import read_vector_request
from bertkit.finetuning.embeddings.tuning import tune_vectors

TRAIN, HELD_OUT = 3000, 1000


def score(pairs: list[tuple[str, str, float]], seed: int, model: Path, *settings: str) -> float:
    """Spearman's correlation times 100 on held-out pairs, after the last step."""
    draw = np.random.default_rng(seed).permutation(len(pairs))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = {"train": draw[:TRAIN], "held-out": draw[TRAIN : TRAIN + HELD_OUT]}
        for part, rows in parts.items():
            with (folder / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([("sentence1", "sentence2", "score"), *(pairs[row] for row in rows)])
        wanted = read_vector_request(*settings, "batch=64", "evaluations=1", f"seed={seed}")[0]
        files = folder / "train.csv", folder / "held-out.csv"
        return round(100 * tune_vectors(wanted, model, *files, folder / "run").score, 2)


def main() -> None:
    """Both losses, two rates, three seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=model_folder("sentences"))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(2)
    read = read_pairs(given.train, Columns(), scored=True)
    assert read.scores is not None
    pairs = [
        (read.texts[one], read.texts[other], float(value))
        for (one, other), value in zip(read.rows, read.scores, strict=True)
    ]
    facts = {"date": str(date.today()), "torch": torch.__version__, "model": given.model.name, "train": TRAIN}
    facts |= {"held_out": HELD_OUT, "epochs": 1, "command": "python benchmarks/scored_pairs.py --train ... --out ..."}
    runs: list[dict[str, object]] = []
    for seed in range(given.seeds):
        for rate in ("5e-5", "2e-4"):
            for loss in ("scores", "cosent"):
                found = score(pairs, seed, given.model, f"objective={loss}", f"learning_rate={rate}")
                runs.append({"loss": loss, "rate": rate, "seed": seed, "spearman": found})
                print(runs[-1], flush=True)
                given.out.write_text(json.dumps({**facts, "runs": runs}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
