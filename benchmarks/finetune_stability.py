"""Does fine-tuning collapse? Four small tasks, learning rates over a factor of ten, several seeds, last step's weights.

    python benchmarks/finetune_stability.py --data TASKS --out RESULT.json [--model MODEL] [--set key=value ...]

A run has collapsed when its last step predicts one class for every row of dev. A cell of the table is a task at a
rate; it counts as collapsed if any of its seeds did. Everything that is not given with --set is the default.
The fourth task is made from SQuAD: does this sentence answer the question? One row in twenty does.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from finetune_tasks import HELD_OUT, find_file
from many_runs import results_of

from bertkit.checkpoint.bundled import bundled_folder
from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint
from bertkit.files import whole_file
from bertkit.finetuning.evaluate import predict
from bertkit.finetuning.fine_tuning import run_prepared
from bertkit.finetuning.learner import load_start
from bertkit.finetuning.prepare import DataFiles, Prepared, prepare
from bertkit.finetuning.settings import FineTuneSettings, read_settings
from bertkit.text.corpus import CorpusReport, read_lines
from bertkit.text.sentences import split_sentences
from bertkit.train.runs import Run

FILES = {
    "MRPC": ("glue-mrpc/train.tsv", "glue-mrpc/dev.tsv"),
    "RTE": ("glue-rte/train.tsv", "glue-rte/dev.tsv"),
    "CoLA": ("glue-cola/train.tsv", "glue-cola/dev.tsv"),
}
PAIRS = "question-sentence"
TASKS = (*FILES, PAIRS)
RATES = (3e-5, 5e-5, 1e-4, 2e-4, 3e-4)
QUESTIONS = {"train": 400, "dev": 100}  # each with one sentence that answers it and nineteen that do not
SENTENCES = 20


def write_pairs(squad: Path, folder: Path) -> DataFiles:
    """Question-sentence pairs from SQuAD, 5 % of them positive; every fifth article is for dev."""
    articles = json.loads("".join(line for _, line in read_lines(squad, report=CorpusReport())))["data"]
    rng = np.random.default_rng(0)
    for part, wanted in QUESTIONS.items():
        own = [a for number, a in enumerate(articles) if (number % HELD_OUT == 0) == (part == "dev")]
        asked = [found for article in own for found in _answered(article)]
        rows = ["question\tsentence\tlabel"]
        for index in rng.permutation(len(asked))[:wanted]:
            question, answer, others = asked[index]
            chosen = rng.permutation(len(others))[: SENTENCES - 1]
            rows += [f"{question}\t{answer}\tyes", *(f"{question}\t{others[i]}\tno" for i in chosen)]
        (folder / f"{part}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return DataFiles(train=folder / "train.tsv", dev=folder / "dev.tsv")


def _answered(article: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    """(question, the sentence that answers it, the article's other sentences), where one sentence holds the answer."""
    contexts = [paragraph["context"] for paragraph in article["paragraphs"]]
    passages = [[_line(text[start:end]) for start, end in split_sentences(text)] for text in contexts]
    everything = list(dict.fromkeys(sentence for passage in passages for sentence in passage))
    found = []
    for passage, paragraph in zip(passages, article["paragraphs"], strict=True):
        for question in paragraph["qas"]:
            answer = _line(question["answers"][0]["text"])
            holding = [sentence for sentence in passage if answer in sentence]
            others = [sentence for sentence in everything if answer not in sentence]
            if len(holding) == 1 and len(others) >= SENTENCES - 1:
                found.append((_line(question["question"]), holding[0], others))
    return found


def _line(text: str) -> str:
    return " ".join(text.replace('"', "'").split())


@cache
def prepared_once(task: str, model: Path, data: Path, settings: FineTuneSettings) -> tuple[Checkpoint, Prepared]:
    """The model to start from and the task's windows, once in each process."""
    begin = load_checkpoint(model)
    with tempfile.TemporaryDirectory() as folder:
        if task == PAIRS:
            files = write_pairs(find_file(data, "squad/dev-v1.1.json"), Path(folder))
        else:
            train, dev = FILES[task]
            files = DataFiles(train=find_file(data, train), dev=find_file(data, dev))
        return begin, prepare("classify", begin, files, settings)


def run(task: str, rate: float, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One fine-tuning run and what its last step predicts."""
    torch.set_num_threads(1)
    settings = read_settings("max_length=128", "keep=last", *options.set, f"learning_rate={rate}", f"seed={seed}")
    same = replace(settings, learning=replace(settings.learning, seed=0, learning_rate=1.0))
    begin, prepared = prepared_once(task, options.model, options.data, same)
    start, began = load_start(begin, prepared.task, settings), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = run_prepared(Run(Path(folder)), prepared, start, settings, device=options.device)
    seconds = time.perf_counter() - began
    labels = [one.label for one in predict(start.model, prepared.task, prepared.dev.examples)]
    row = {"task": task, "rate": rate, "seed": seed, "seconds": round(seconds, 1), "steps": result.steps}
    row |= {"train": len(prepared.train.examples), "dev": len(prepared.dev.examples)}
    row |= {name: round(100 * result.plain[name], 2) for name in ("matthews", "accuracy", "macro_f1")}
    row |= {"dev_loss": round(result.scores["loss"], 4), "one_class": len(set(labels)) == 1}
    return row | {"reported": getattr(result, "collapsed", None)}


def table(rows: list[dict[str, Any]]) -> str:
    """Matthews' correlation of each cell's seeds; * where a seed predicts one class."""
    rates = sorted({row["rate"] for row in rows})
    lines = [f"{'':18}" + "".join(f"{rate:>20g}" for rate in rates)]
    for task in TASKS:
        cells = []
        for rate in rates:
            own = sorted((r for r in rows if (r["task"], r["rate"]) == (task, rate)), key=lambda r: r["seed"])
            cells.append(" ".join(f"{r['matthews']:.0f}{'*' if r['one_class'] else ''}" for r in own))
        lines.append(f"{task:18}" + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join([*lines, f"collapsed cells: {len(collapsed(rows))} of {len(TASKS) * len(rates)}"])


def collapsed(rows: list[dict[str, Any]]) -> list[list[Any]]:
    return sorted({(row["task"], row["rate"]) for row in rows if row["one_class"]})


def write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    flat = read_settings("max_length=128", "keep=last", *options.set).flat()
    content = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "model": options.model.name,
        "settings": {name: value for name, value in flat.items() if name not in ("learning_rate", "seed")},
        "collapsed_cells": collapsed(rows),
        "cells": len({(row["task"], row["rate"]) for row in rows}),
        "runs": sorted(rows, key=lambda row: (row["task"], row["rate"], row["seed"])),
    }
    with whole_file(options.out) as draft:
        draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=bundled_folder())
    parser.add_argument("--data", type=Path, required=True, help="folders glue-mrpc, glue-rte, glue-cola, squad")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", type=lambda text: text.split(","), default=list(TASKS))
    parser.add_argument("--rates", type=lambda text: [float(one) for one in text.split(",")], default=list(RATES))
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at once: one of them leaves a GPU idle")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    calls = [(t, rate, seed, options) for t in options.tasks for rate in options.rates for seed in range(options.seeds)]
    rows: list[dict[str, Any]] = []
    for row in results_of(run, calls, options.jobs):
        rows.append(row)
        write(options, rows)
    print(table(rows))


if __name__ == "__main__":
    main()
