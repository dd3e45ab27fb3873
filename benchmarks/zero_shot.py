"""Classification without labelled rows: accuracy, calibration on tasks that were not fitted on, time per decision.

    python benchmarks/zero_shot.py measure --data TASKS --model minilm=MINILM --out RESULT.json
    python benchmarks/zero_shot.py teach --data TASKS --model minilm=MINILM --out RUN --set minutes=12 frozen=1
    python benchmarks/zero_shot.py texts --data TASKS --out texts.jsonl
    bertkit finetune vectors --train texts.jsonl --from sentences --teacher MINILM --out VECTORS rank=32 ...

`measure` compares, on TREC-6, SNIPS, SST-2 and AG News with fixed descriptions, what a model answers with the nearest
label by the cosine of vectors (`similarity`). Scales are fitted on rows of the three other tasks; a task's test rows
are only scored. A second call with another model adds to the file. `teach` fine-tunes an entailment head on the
inference sets, and `texts` writes what a variant for labels may learn from a teacher: docs/LOG.md says what came of it.
"""

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from zero_shot_data import ROWS, SEED, TASKS, ZeroTask, inference_rows, plain_texts, task_rows

import bertkit
from bertkit.files import whole_file
from bertkit.predict.zero_shot import WAYS
from bertkit.tasks.shared.calibration import calibration_error, expected_calibration_error

RESAMPLES, REPEATS = 2000, 40
FIVE = ["refund", "delivery", "technical problem", "praise", "change of address"]
TEXT = "It has been two weeks now and my parcel has still not arrived, could you find out where it is?"
TAUGHT = {"epochs": 1, "warmup_steps": 80, "batch": 32, "max_length": 64, "keep": "last", "seed": 0}

PARTS = ("test", "tuning")
Table = tuple[np.ndarray, np.ndarray]  # scores and gold labels


def teach(options: argparse.Namespace) -> None:
    train, held = inference_rows(options.data)
    settings = TAUGHT | dict(pair.split("=") for pair in options.set)
    run = bertkit.finetune(
        "classify", train=train, dev=held, model=options.model.partition("=")[2], out=options.out, **settings
    )
    print(json.dumps({"rows": len(train), "held out": len(held), **run.scores}))


def measure(options: argparse.Namespace) -> None:
    """One model as it answers, and by similarity where it has vectors."""
    name, path = options.model.split("=")
    bert = bertkit.load(path)
    ways = ["answers"] if bert.checkpoint.embed is None else ["answers", "similarity"]
    tables = {key: {part: table(options, task, part, bert, ways) for part in PARTS} for key, task in TASKS.items()}
    found: dict[str, Any] = {"way": bert.zero_shot.way}
    found |= {way: by_task(tables, number) for number, way in enumerate(ways)}
    if "similarity" in ways:
        plain = found["similarity"]["right"]
        found["gain"] = paired([(found["answers"]["right"][key], plain[key]) for key in plain])
        for key in plain:
            found["answers"][key]["gain"] = paired([(found["answers"]["right"][key], plain[key])])
    found["milliseconds with five labels"] = milliseconds(bert)
    found["scale of all four tasks"] = round(fitted([sliced(each["tuning"], 0) for each in tables.values()]), 2)
    found["independent"] = independent(options, bert)
    known = json.loads(options.out.read_text()) if options.out.exists() else {"resamples": RESAMPLES, "models": {}}
    known["models"][name] = {"rows": options.rows, **shown(found)}
    with whole_file(options.out) as draft:
        draft.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(known["models"][name], indent=1))


def table(options: argparse.Namespace, task: ZeroTask, part: str, bert: bertkit.Bert, ways: Sequence[str]) -> Table:
    """Raw scores, texts x labels x ways, and the gold labels' indices."""
    texts, golds = part_rows(options, task, part)
    columns = [SCORES[way](bert, texts, task.labels) for way in ways]
    return np.stack(columns, axis=-1), np.array([list(task.labels).index(gold) for gold in golds])


def part_rows(options: argparse.Namespace, task: ZeroTask, part: str) -> tuple[list[str], list[str]]:
    return task_rows(options.data, getattr(task, "file" if part == "test" else part), task.labels, options.rows)


def similarity(bert: bertkit.Bert, texts: Sequence[str], labels: Mapping[str, str]) -> np.ndarray:
    return bert.similarity(list(texts), list(labels.values())).astype(np.float64)


def answers(bert: bertkit.Bert, texts: Sequence[str], labels: Mapping[str, str]) -> np.ndarray:
    """The scores before the scale, up to a number that is the same for all labels of a text."""
    assert bert.zero_shot.way is not None
    found = bert.classify(list(texts), labels=labels)
    return np.log([list(each.probabilities.values()) for each in found]) / WAYS[bert.zero_shot.way].exclusive.slope


SCORES = {"answers": answers, "similarity": similarity}


def independent(options: argparse.Namespace, bert: bertkit.Bert) -> dict[str, float]:
    """The calibration error of independent probabilities, with the scale that is shipped."""
    errors = {}
    for key, task in TASKS.items():
        texts, golds = part_rows(options, task, "test")
        found = bert.classify(texts[:250], labels=task.labels, multi_label=True)
        chances = np.array([list(each.probabilities.values()) for each in found])
        right = np.array([[label == gold for label in task.labels] for gold in golds[:250]])
        errors[key] = round(expected_calibration_error(chances.ravel(), right.ravel()), 4)
    return errors


def sliced(found: Table, column: int) -> Table:
    return found[0][..., column], found[1]


def by_task(tables: Mapping[str, Mapping[str, Table]], column: int) -> dict[str, Any]:
    """Each task with a scale that is fitted on the other three."""
    found: dict[str, Any] = {"right": {}}
    for key, parts in tables.items():
        scale = fitted([sliced(other["tuning"], column) for name, other in tables.items() if name != key])
        scores, gold = sliced(parts["test"], column)
        logits = scores * scale
        right = logits.argmax(axis=1) == gold
        low, high = interval(right)
        found[key] = {
            "accuracy": percent(right.mean()),
            "interval": [low, high],
            "chance": percent(1 / logits.shape[1]),
        }
        found[key] |= {"ece": round(calibration_error(logits, gold), 4), "scale": round(scale, 2)}
        found["right"][key] = right
    return found | {"mean": percent(np.mean([each.mean() for each in found["right"].values()]))}


def fitted(tables: Sequence[Table]) -> float:
    """The median of the scales with the lowest loss on each task: one hard task does not make all others unsure."""
    return float(np.median([best_scale(scores, gold) for scores, gold in tables]))


def best_scale(scores: np.ndarray, gold: np.ndarray) -> float:
    def loss(log: float) -> float:
        return -float(log_softmax(scores * np.exp(log), axis=1)[np.arange(len(gold)), gold].mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-1, 6), method="bounded").x))


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


def milliseconds(bert: bertkit.Bert) -> float:
    """For one text and five labels that were asked before, the median."""
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
    parser.add_argument("--model", help="NAME=PATH")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="teach: settings of fine-tuning")
    options = parser.parse_args()
    {"teach": teach, "texts": plain_texts, "measure": measure}[options.step](options)


if __name__ == "__main__":
    main()
