"""Do attributions find the words that count? The deletion test, on a classifier fine-tuned from real data.

    python benchmarks/deletion.py --model MODEL --train train.tsv --dev dev.tsv --out RESULT.json

A model is fine-tuned on some rows. For each text of the dev file the words are ranked by what they add to the label
that the model gives; the first 1, 2, ... of them become [MASK], and the label's probability is taken again. The sooner
it falls, the better the ranking. Beside integrated gradients: gradient x input, the order at random, and the words that
speak most against the label. Words that are hidden by chance are the floor: every ranking must fall below it.
"""

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

import numpy as np
import torch

import bertkit
from bertkit.data.examples import TextExample
from bertkit.data.tables import Columns
from bertkit.files import whole_file
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.settings import read_settings
from bertkit.inside.attribution.attribution import WhySettings, why
from bertkit.predict.bert import Bert
from bertkit.report.why import Why, WordShare
from bertkit.tasks.read import read_examples

HIDDEN = (1, 2, 3, 5)
Ranking = Callable[[Why, Why, np.random.Generator], Sequence[WordShare]]
RANKINGS: dict[str, Ranking] = {
    "integrated gradients": lambda integrated, gradient, rng: sorted(integrated.words, key=lambda w: -w.share),
    "gradient x input": lambda integrated, gradient, rng: sorted(gradient.words, key=lambda w: -w.share),
    "random": lambda integrated, gradient, rng: [integrated.words[n] for n in rng.permutation(len(integrated.words))],
    "against the label first": lambda integrated, gradient, rng: sorted(integrated.words, key=lambda w: w.share),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "train", "dev", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=800, help="to fine-tune on")
    parser.add_argument("--texts", type=int, default=200, help="of the dev file")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        accuracy, bert, seconds = taught(given, Path(folder))
    texts = [row.text for row in rows(given.dev, given.texts)]
    result = {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {given.threads} thread(s), torch {torch.__version__}",
        "fine-tuned": {"rows": given.rows, "seconds": round(seconds), "dev accuracy": accuracy},
        **measured(bert, texts),
    }
    with whole_file(given.out) as draft:
        draft.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(result, indent=1, ensure_ascii=False))


def rows(path: Path, count: int) -> list[TextExample]:
    found = read_examples("classify", path, Columns(text="sentence", label="label")).examples
    return [example for example in found[:count] if isinstance(example, TextExample)]


def taught(given: argparse.Namespace, folder: Path) -> tuple[float, Bert, float]:
    start = time.perf_counter()
    train = folder / "train.tsv"
    lines = [f"{row.text}\t{row.label}" for row in rows(given.train, given.rows)]
    train.write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    settings = read_settings("epochs=3", "batch=16", "learning_rate=1e-4")
    result = fine_tune("classify", settings, given.model, train, given.dev, folder / "run", device="cpu")
    return round(result.score, 4), bertkit.load(folder / "run" / "model"), time.perf_counter() - start


def measured(bert: Bert, texts: Sequence[str]) -> dict:
    rng, gaps, steps, spent = np.random.default_rng(0), [], [], {"integrated": 0.0, "gradient": 0.0}
    drops: dict[str, list[list[float]]] = {name: [] for name in RANKINGS}
    for text in texts:
        label, before = said(bert, text)
        found = {}
        for method in spent:
            start = time.perf_counter()
            found[method] = why(bert, text, target=label, settings=WhySettings(method=method))
            spent[method] += time.perf_counter() - start
        gaps.append(found["integrated"].gap)
        steps.append(found["integrated"].steps)
        for name, rank in RANKINGS.items():
            order = rank(found["integrated"], found["gradient"], rng)
            masked = [hide(bert, text, order[:count]) for count in HIDDEN]
            drops[name].append([before - each.probabilities[label] for each in bert.classify(masked)])
    return {
        "texts": len(texts),
        "completeness": {
            "texts with a gap under 1 %": sum(gap < 0.01 for gap in gaps),
            "median gap": float(np.median(gaps)),
            "largest gap": max(gaps),
            "steps": {str(n): steps.count(n) for n in sorted(set(steps))},
        },
        "milliseconds a text": {name: round(1000 * total / len(texts), 1) for name, total in spent.items()},
        "mean fall of the label's probability": {
            name: {
                f"{n} hidden": round(mean, 4) for n, mean in zip(HIDDEN, np.mean(rows, axis=0).tolist(), strict=True)
            }
            for name, rows in drops.items()
        },
        "answers changed by 3 hidden words": {
            name: round(sum(rows) / len(rows), 4)
            for name, rows in flipped(drops, [said(bert, text)[1] for text in texts]).items()
        },
    }


def flipped(drops: dict[str, list[list[float]]], before: Sequence[float]) -> dict[str, list[bool]]:
    """Two labels: the answer changes when the label's probability falls below a half."""
    at = HIDDEN.index(3)
    return {
        name: [chance - row[at] < 0.5 for chance, row in zip(before, values, strict=True)]
        for name, values in drops.items()
    }


def said(bert: Bert, text: str) -> tuple[str, float]:
    chances = bert.classify(text).probabilities
    label = max(chances, key=chances.__getitem__)
    return label, chances[label]


def hide(bert: Bert, text: str, words: Sequence[WordShare]) -> str:
    """The text with these words as blanks, one for each of their pieces: as long as before."""
    for each in sorted(words, key=lambda word: -word.start):
        blanks = " ".join([bert.tokenizer.mask_token] * len(each.pieces))
        text = f"{text[: each.start]} {blanks} {text[each.end :]}"
    return text


if __name__ == "__main__":
    main()
