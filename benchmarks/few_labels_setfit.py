"""SetFit's side of few_labels.py, in an environment of its own: setfit 1.2.0, with the versions that its result names.

    python3 -m venv ENV && ENV/bin/pip install torch==2.13.0 && ENV/bin/pip install setfit==1.2.0
    ENV/bin/python benchmarks/few_labels_setfit.py --draws DRAWS.json --model MINILM --out PARTS.jsonl

With 8 rows a label SetFit's defaults: one epoch over all pairs, the rarer kind repeated until both are equally many.
With 32 rows that would be up to 43,008 pairs; there `num_iterations=20`, its usual setting before that, gives 40 pairs
for each row. Always batch 16, body rate 2e-5, CosineSimilarityLoss, a logistic regression as head.
"""

import argparse
import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from setfit import SetFitModel, Trainer, TrainingArguments

ITERATIONS = {"8": None, "32": 20}
PACKAGES = ("setfit", "sentence-transformers", "transformers", "torch")


def measure(task: dict[str, Any], size: str, number: int, folder: str) -> dict[str, Any]:
    """One training: seconds, and accuracy on the test rows."""
    rows = task["train"][size][number]
    labels = sorted({label for _, label in rows})
    model = SetFitModel.from_pretrained(folder, labels=labels)
    data = Dataset.from_dict({"text": [text for text, _ in rows], "label": [labels.index(label) for _, label in rows]})
    arguments = TrainingArguments(
        num_iterations=ITERATIONS[size], seed=number, report_to="none", save_strategy="no", show_progress_bar=False
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    begin, cpu = time.perf_counter(), time.process_time()
    trainer.train()
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    predicted = model.predict([text for text, _ in task["test"]], use_labels=True)
    right = [str(guess) == label for guess, (_, label) in zip(predicted, task["test"], strict=True)]
    return {"accuracy": sum(right) / len(right), "seconds": round(seconds, 2), "cpu": round(cpu, 2)}


def main() -> None:
    """Measure the draws that are asked for and not yet in the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", default="8,32")
    parser.add_argument("--tasks")
    parser.add_argument("--most", type=int, default=100, help="draws of each size at most")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    draws = json.loads(options.draws.read_text())
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {tuple(json.loads(line)["key"]) for line in lines}
    versions = {name: version(name) for name in PACKAGES}
    for number in range(options.most):
        for size in options.sizes.split(","):
            for name in options.tasks.split(",") if options.tasks else draws:
                key = ("setfit", name, size, number)
                if key in done or number >= len(draws[name]["train"][size]):
                    continue
                row = {"key": key, **measure(draws[name], size, number, options.model), "versions": versions}
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(row, flush=True)


if __name__ == "__main__":
    main()
