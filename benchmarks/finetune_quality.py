"""Fine-tuning quality: this package against transformers' own heads, the same encoder, rows, settings and scoring.

    python benchmarks/finetune_quality.py --model MODEL --data DIR --out RESULT.json [--tasks sst2,mrpc] [--jobs 10]
    python benchmarks/finetune_quality.py ... --against random --set learning_rate=7e-5

Ours is `bertkit.finetune`, theirs an AutoModelFor... in a plain loop (finetune_peer.py); against `random`, the other
side is ours again, from fresh weights: what pre-training is worth. All end with the last step's weights: nothing is
chosen on dev. Every finished run is written at once, and a second call goes on where the first
was stopped. `seconds` are of the whole call: ours also evaluates each epoch, fits a decision layer and saves a folder;
with --jobs, several processes share the machine, and seconds say nothing about speed (that is finetune_speed.py).
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch
from finetune_peer import load_peer, score_peer, teach_peer
from finetune_tasks import TASKS, find_task, prepare_task, settings_of
from many_runs import results_of

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint
from bertkit.files import whole_file
from bertkit.finetuning.fine_tuning import run_prepared
from bertkit.finetuning.learner import load_start, random_start
from bertkit.finetuning.prepare import Prepared
from bertkit.finetuning.settings import FineTuneSettings
from bertkit.train.runs import Run

COMPARED = ("sst2", "mrpc", "stsb", "conll2003", "goemotions", "commonsenseqa", "squad")


def ours(
    begin: Checkpoint, prepared: Prepared, settings: FineTuneSettings, device: str, *, fresh: bool = False
) -> dict[str, float]:
    """Dev scores without the decision layer, which transformers has not."""
    start = load_start(begin, prepared.task, settings)
    start = random_start(start, prepared.task, settings) if fresh else start
    with tempfile.TemporaryDirectory() as folder:
        return dict(run_prepared(Run(Path(folder)), prepared, start, settings, device=device).plain)


def theirs(model: Path, prepared: Prepared, settings: FineTuneSettings, device: str) -> dict[str, float]:
    peer = load_peer(model, prepared, settings.learning.seed, torch.device(device))
    teach_peer(peer, settings)
    return score_peer(peer)


def measure(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Every task and seed on both sides that the file does not have yet; each row is written as soon as it is there."""
    missing = [
        (key, seed, side, options)
        for key in options.tasks
        for seed in range(options.seeds)
        for side in sides(options)
        if not any(same_run(row, key, seed, side, options) for row in rows)
    ]
    for row in results_of(run, missing, options.jobs):
        rows.append(row)
        write(options, rows)
        bench = find_task(row["task"])
        score, seconds = row["scores"][bench.metric], row["seconds"]
        print(f"{bench.name:18} seed {row['seed']} {row['side']:12} {score:.4f} {seconds:7.1f} s", flush=True)


def run(key: str, seed: int, side: str, options: argparse.Namespace) -> dict[str, Any]:
    """One side of one task, from one seed."""
    if options.threads:
        torch.set_num_threads(options.threads)
    begin, prepared = prepared_once(key, options.model, options.data, options.rows, *options.set)
    settings, began = settings_of(find_task(key), seed, *options.set), time.perf_counter()
    if side == "transformers":
        scores = theirs(options.model, prepared, settings, options.device)
    else:
        scores = ours(begin, prepared, settings, options.device, fresh=side == "random")
    row = {"task": key, "seed": seed, "side": side, **common(options)}
    row |= {"seconds": round(time.perf_counter() - began, 2)}
    row |= {"train": len(prepared.train.examples), "dev": len(prepared.dev.examples)}
    return row | {"scores": {name: round(value, 5) for name, value in scores.items()}}


@cache
def prepared_once(key: str, model: Path, data: Path, rows: int | None, *more: str) -> tuple[Checkpoint, Prepared]:
    """The encoder and a task's windows, once in each process."""
    begin = load_checkpoint(model)
    return begin, prepare_task(find_task(key), data, begin, settings_of(find_task(key), 0, *more), rows)


def common(options: argparse.Namespace) -> dict[str, Any]:
    """What all runs of a file share."""
    return {"limit": options.rows, "model": options.model.name, "set": options.set}


def same_run(row: dict[str, Any], key: str, seed: int, side: str, options: argparse.Namespace) -> bool:
    if any(row[name] != value for name, value in common(options).items()):
        known = {name: row[name] for name in common(options)}
        raise SystemExit(f"--out holds runs of {known}, not of {common(options)}; name another file")
    return (row["task"], row["seed"], row["side"]) == (key, seed, side)


def write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    on_cuda = options.device.startswith("cuda")
    machine = (
        torch.cuda.get_device_name()
        if on_cuda
        else f"{platform.machine()}, {options.threads or torch.get_num_threads()} threads"
    )
    content = {
        "machine": machine,
        "torch": torch.__version__,
        "precision": "bfloat16 for layers, float32 for weights and scoring" if on_cuda else "float32",
        "settings": {key: [*find_task(key).settings, "batch=32", "keep=last", *options.set] for key in options.tasks},
        "summary": [summary(key, rows, sides(options)) for key in TASKS if any(row["task"] == key for row in rows)],
        "runs": rows,
    }
    with whole_file(options.out) as draft:
        draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def sides(options: argparse.Namespace) -> tuple[str, str]:
    """Ours first."""
    return "bertkit", options.against


def summary(key: str, rows: list[dict[str, Any]], both: tuple[str, str]) -> dict[str, Any]:
    """Mean and deviation of each side, and whether ours is at most one deviation (the larger one) below."""
    bench, found = find_task(key), {"task": find_task(key).name, "metric": find_task(key).metric}
    for side in both:
        own = sorted((r for r in rows if (r["task"], r["side"]) == (key, side)), key=lambda row: row["seed"])
        values = [row["scores"][bench.metric] for row in own]
        if values:
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            seconds = round(statistics.fmean(row["seconds"] for row in own), 2)
            found[side] = {"mean": statistics.fmean(values), "sd": spread, "seeds": values, "seconds": seconds}
    if all(side in found for side in both):
        one, other = (found[side] for side in both)
        found["within_one_sd_or_above"] = one["mean"] >= other["mean"] - max(one["sd"], other["sd"])
    return found


def table(rows: list[dict[str, Any]], both: tuple[str, str]) -> str:
    lines = [f"{'task':18} {'metric':9} {both[0]:>15} {both[1]:>15}   seconds"]
    for key in TASKS:
        own = summary(key, rows, both)
        if all(side in own for side in both):
            cells = [f"{100 * own[side]['mean']:.2f} ± {100 * own[side]['sd']:.2f}" for side in both]
            seconds = " / ".join(f"{own[side]['seconds']:.1f}" for side in both)
            mark = "" if own["within_one_sd_or_above"] else "   BELOW"
            lines.append(f"{own['task']:18} {own['metric']:9} {cells[0]:>15} {cells[1]:>15}   {seconds}{mark}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", type=lambda text: text.split(","), default=list(COMPARED))
    parser.add_argument("--against", choices=["transformers", "random"], default="transformers")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="for all tasks and both sides")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, help="of each file, to try things out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="of each process")
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes at once: one of these small models leaves a GPU idle"
    )
    options = parser.parse_args()
    for key in options.tasks:
        find_task(key)  # a wrong name is said before the first run
    rows = json.loads(options.out.read_text(encoding="utf-8"))["runs"] if options.out.exists() else []
    measure(options, rows)
    print(table(rows, sides(options)))


if __name__ == "__main__":
    main()
