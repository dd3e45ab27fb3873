"""Classification without labelled rows: accuracy, calibration on tasks that were not fitted on, time per decision.

    python benchmarks/zero_shot.py teach --data TASKS --model MINILM --out RUN --set minutes=12 frozen=1
    python benchmarks/zero_shot.py texts --data TASKS --out texts.jsonl
    bertkit finetune vectors --train texts.jsonl --from sentences --teacher MINILM --out VECTORS rank=32 ...
    python benchmarks/zero_shot.py measure --data TASKS --vectors minilm=MINILM --entailment minilm=RUN/model
        --against minilm=minilm --out RESULT.json

`teach` fine-tunes an entailment head on the inference sets; `texts` writes what a variant for labels learns from.
`measure` compares, on TREC-6, SNIPS, SST-2 and AG News with fixed descriptions: `similarity` (the nearest vector), the
head, and both added. Scales are fitted on rows of the three other tasks, and the task's test rows are only scored.
"""

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax
from zero_shot_data import ROWS, SEED, TASKS, ZeroTask, inference_rows, plain_texts, task_rows

import bertkit
from bertkit.files import whole_file
from bertkit.predict.zero_shot import WAYS
from bertkit.tasks.shared.calibration import calibration_error

RESAMPLES, REPEATS = 2000, 40
FIVE = ["refund", "delivery", "technical problem", "praise", "change of address"]
TEXT = "It has been two weeks now and my parcel has still not arrived, could you find out where it is?"
TAUGHT = {"epochs": 1, "warmup_steps": 80, "batch": 32, "max_length": 64, "keep": "last", "seed": 0}

Scores = dict[str, np.ndarray]  # part ("test", "tuning") -> texts, labels, ways
Table = tuple[np.ndarray, np.ndarray]  # scores and gold labels


def teach(options: argparse.Namespace) -> None:
    train, held = inference_rows(options.data)
    settings = TAUGHT | dict(pair.split("=") for pair in options.set)
    run = bertkit.finetune("classify", train=train, dev=held, model=options.model, out=options.out, **settings)
    print(json.dumps({"rows": len(train), "held out": len(held), **run.scores}))


def measure(options: argparse.Namespace) -> None:
    """Every model by every way that it has, and by both."""
    models: dict[str, dict[str, bertkit.Bert]] = {}
    for way in ("vectors", "entailment"):
        for name, path in (pair.split("=") for pair in getattr(options, way)):
            models.setdefault(name, {})[way] = bertkit.load(path)
    found = {name: measured(options.data, ways, options.rows) for name, ways in models.items()}
    for name, base in (pair.split("=") for pair in options.against):
        found[name]["gain over " + base] = gain(found[name], found[base])
    result = {
        "rows": options.rows,
        "resamples": RESAMPLES,
        "models": {name: shown(each) for name, each in found.items()},
    }
    with whole_file(options.out) as draft:
        draft.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(options.out.read_text())


def measured(data: Path, ways: Mapping[str, bertkit.Bert], rows: int) -> dict[str, Any]:
    """Accuracy and calibration by each way and by both; `right` holds which texts were right, for comparisons."""
    tables = {
        key: {part: table(data, task, part, ways, rows) for part in ("test", "tuning")} for key, task in TASKS.items()
    }
    sets = {way: [number] for number, way in enumerate(ways)} | ({"both": [0, 1]} if len(ways) == 2 else {})
    found: dict[str, Any] = {name: by_task(tables, columns) for name, columns in sets.items()}
    found["milliseconds with five labels"] = {way: seconds(bert) for way, bert in ways.items()}
    found["scales of all four tasks"] = {
        name: fitted([sliced(each["tuning"], columns) for each in tables.values()]).tolist()
        for name, columns in sets.items()
    }
    return found


def table(data: Path, task: ZeroTask, part: str, ways: Mapping[str, bertkit.Bert], rows: int) -> Table:
    """Raw scores, texts x labels x ways, and the gold labels' indices."""
    file = task.file if part == "test" else task.tuning
    texts, golds = task_rows(data, file, task.labels, rows)
    columns = [SCORES[way](bert, texts, task.labels) for way, bert in ways.items()]
    return np.stack(columns, axis=-1), np.array([list(task.labels).index(gold) for gold in golds])


def cosines(bert: bertkit.Bert, texts: Sequence[str], labels: Mapping[str, str]) -> np.ndarray:
    return bert.similarity(list(texts), list(labels.values())).astype(np.float64)


def odds(bert: bertkit.Bert, texts: Sequence[str], labels: Mapping[str, str]) -> np.ndarray:
    """Log-odds of entailment, from independent probabilities."""
    found = bert.classify(list(texts), labels=labels, multi_label=True)
    chances = np.clip([list(each.probabilities.values()) for each in found], 1e-12, 1 - 1e-12)
    return np.log(chances / (1 - chances)) / WAYS["entailment"].independent.slope


SCORES = {"vectors": cosines, "entailment": odds}


def sliced(found: Table, columns: Sequence[int]) -> Table:
    return found[0][..., columns], found[1]


def by_task(tables: Mapping[str, Mapping[str, Table]], columns: Sequence[int]) -> dict[str, Any]:
    """Each task with scales that are fitted on the other three."""
    found: dict[str, Any] = {"right": {}}
    for key, parts in tables.items():
        scales = fitted([sliced(other["tuning"], columns) for name, other in tables.items() if name != key])
        scores, gold = sliced(parts["test"], columns)
        logits = scores @ scales
        right = logits.argmax(axis=1) == gold
        low, high = interval(right)
        found[key] = {
            "accuracy": percent(right.mean()),
            "interval": [low, high],
            "chance": percent(1 / logits.shape[1]),
        }
        found[key] |= {"ece": round(calibration_error(logits, gold), 4), "scales": scales.round(3).tolist()}
        found["right"][key] = right
    return found | {"mean": percent(np.mean([each.mean() for each in found["right"].values()]))}


def fitted(tables: Sequence[Table]) -> np.ndarray:
    """The scale of each way with the lowest mean loss, every task counting the same; none is negative."""

    def loss(logs: np.ndarray) -> float:
        each = [-log_softmax(x @ np.exp(logs), axis=1)[np.arange(len(y)), y].mean() for x, y in tables]
        return float(np.mean(each) + 1e-4 * np.square(logs).sum())

    ways = tables[0][0].shape[-1]
    start = np.log(
        np.maximum(
            [1 / x.std() for x in np.moveaxis(np.concatenate([x.reshape(-1, ways) for x, _ in tables]), -1, 0)], 0.1
        )
    )
    return np.exp(minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-6}).x)


def gain(one: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Of each way of `one`, points over the similarity by the vectors of `base`; paired, tasks count the same."""
    plain = base["vectors"]["right"]
    found = {}
    for name in one:
        if isinstance(one[name], dict) and "right" in one[name]:
            found[name] = paired([(one[name]["right"][key], plain[key]) for key in plain])
    return found


def paired(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """The mean difference of accuracies in points with its 95 % interval, rows drawn within each task."""
    draw, means = np.random.default_rng(SEED), []
    for _ in range(RESAMPLES):
        chosen = [draw.integers(0, len(x), len(x)) for x, _ in pairs]
        means.append(np.mean([x[i].mean() - y[i].mean() for (x, y), i in zip(pairs, chosen, strict=True)]))
    low, high = np.percentile(means, [2.5, 97.5])
    return {
        "points": percent(np.mean([x.mean() - y.mean() for x, y in pairs])),
        "interval": [percent(low), percent(high)],
    }


def interval(right: np.ndarray) -> tuple[float, float]:
    draw = np.random.default_rng(SEED)
    means = [right[draw.integers(0, len(right), len(right))].mean() for _ in range(RESAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5])
    return percent(low), percent(high)


def seconds(bert: bertkit.Bert) -> float:
    """Milliseconds for one text and five labels that were asked before, the median."""
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        bert.classify(TEXT, labels=FIVE)
        times.append(1000 * (time.perf_counter() - begin))
    return round(statistics.median(times), 2)


def percent(share: float) -> float:
    return round(100 * float(share), 2)


def shown(found: Mapping[str, Any]) -> dict[str, Any]:
    """Without the arrays."""
    return {
        name: {key: value for key, value in each.items() if key != "right"} if isinstance(each, dict) else each
        for name, each in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("teach", "texts", "measure"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=ROWS, help="measure: of each task, at most")
    parser.add_argument("--model", default="bundled", help="teach: the model to start from")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    for way in SCORES:
        parser.add_argument(f"--{way}", nargs="*", default=[], metavar="NAME=MODEL")
    parser.add_argument(
        "--against", nargs="*", default=[], metavar="NAME=NAME", help="whose similarity is to be beaten"
    )
    options = parser.parse_args()
    {"teach": teach, "texts": plain_texts, "measure": measure}[options.step](options)


if __name__ == "__main__":
    main()
