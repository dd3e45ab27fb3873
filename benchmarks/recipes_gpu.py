"""Search for a recipe on one GPU: each try is pre-trained by the clock, stored small, and scored by fine-tuning it.

    python benchmarks/recipes_gpu.py TRY... --shards DIR --heldout DIR --tasks DIR --out DIR --work DIR --minutes 4
    TRY: bundled-both                                                    called after its recipe
         "muon=bundled-both optimizer=muon 'stages=0.5: 2048 x 64'"   called muon, with changes

Every fact is in results.json, in WORK and OUT, as soon as it is known. Each model is one file NAME.tar of about 15 MB
(a small model folder, the run's metrics and report); the --keep best of them are in OUT. A try that fails is recorded
and the next one begins. SIGTERM saves the run and leaves with exit code 130; the same command goes on, also in the
middle of a run, as long as WORK is there: a run longer than one command may be cut by timeout -s TERM 570 python ...

Held-out loss is measured with one yardstick for all: 15 % of tokens, masks that never change, lengths 128 and 512, on
the model as trained and as stored. Fine-tuning starts from the stored model, which is what users get; scores are those
of the last step on dev, without thresholds fitted there; those of the best epoch stand beside them.
"""

import argparse
import gc
import json
import shlex
import shutil
import sys
import tarfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from glue_scores import FIXED, Scoring, Stopped, mean_of, score_tasks

from bertkit.checkpoint.bundled import SMALL_FILE
from bertkit.checkpoint.save_load import load_checkpoint, save_small
from bertkit.errors import RequestError
from bertkit.files import whole_file
from bertkit.pretraining.evaluation import evaluate
from bertkit.pretraining.examples.batches import DataSettings, ExampleSource
from bertkit.pretraining.examples.inputs import to_inputs
from bertkit.pretraining.objectives.module import ForPretraining
from bertkit.pretraining.objectives.table import objective_rows
from bertkit.pretraining.pretraining import pretrain
from bertkit.pretraining.recipe import Recipe, read_recipe
from bertkit.progress import progress
from bertkit.text.shards.reader import open_shards
from bertkit.train.distributed import Ranks
from bertkit.train.records import Line, Records, number, read_records

LENGTHS = (128, 512)  # of the yardstick
BLOCK_TOKENS = 16_384  # sixteen blocks are all of a held-out file of 2 MB, or most of it
MOST_BYTES = 16 * 2**20  # of a file that is to be brought home
STOPPED = 130
BROUGHT_HOME = ("metrics.jsonl", "report.html", "settings.toml", "code.json")


@dataclass(frozen=True)
class Try:
    """A recipe with changes, and what it is called."""

    name: str
    recipe: Path
    changes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all tries share."""

    shards: Path
    heldout: Path
    out: Path
    work: Path
    start: Path | None
    minutes: float | None
    keep: int
    scoring: Scoring

    def recipe(self, one: Try) -> Recipe:
        """The try's recipe over the bench's shards, for the bench's minutes unless it has its own."""
        time = [f"minutes={self.minutes}", "steps=none"] if self.minutes is not None else []
        return read_recipe(one.recipe, f"shards={self.shards}", f"heldout={self.heldout}", *time, *one.changes)


class Results:
    """results.json: everything that is known so far, written whole at each new fact, and to all its places."""

    def __init__(self, *places: Path) -> None:
        self.places = places
        first = places[0]
        self.facts: dict[str, Any] = json.loads(first.read_text(encoding="utf-8")) if first.is_file() else {}

    def of(self, name: str) -> dict[str, Any]:
        """What is known of a try."""
        found: dict[str, Any] = self.facts.setdefault("tries", {}).setdefault(name, {})
        return found

    def put(self, name: str, **facts: Any) -> None:
        """Add facts about a try."""
        self.of(name).update(facts)
        self.write()

    def write(self, **facts: Any) -> None:
        """Add facts about all of them."""
        self.facts.update(facts)
        for path in self.places:
            with whole_file(path) as draft:
                draft.write_text(json.dumps(self.facts, indent=2) + "\n", encoding="utf-8")


def read_try(text: str) -> Try:
    """`NAME=RECIPE.toml key=value ...`, quoted as in a shell."""
    words = shlex.split(text)
    if not words:
        raise RequestError("an empty try; name a recipe, such as bundled-both")
    name, equals, path = words[0].rpartition("=")
    recipe = Path(path)
    name = name if equals else recipe.stem
    if not name or Path(name).name != name:
        raise RequestError(f"'{name}' cannot name a try: its model becomes a file of that name")
    return Try(name, recipe, tuple(words[1:]))


def run_try(one: Try, bench: Bench, results: Results) -> None:
    """Pre-train, store, measure, fine-tune; what results.json has already is not done again."""
    known = results.of(one.name)
    for trouble in ("error", "trace"):
        known.pop(trouble, None)
    run, small = (bench.work / one.name / part for part in ("run", "small"))
    if "training" not in known:
        results.put(one.name, recipe=str(one.recipe), changes=list(one.changes))
        results.put(one.name, training=train(bench.recipe(one), run, bench.start))
    if "stored" not in known:
        results.put(one.name, stored=store(run, small, bench.work / f"{one.name}.tar"))
    if "heldout" not in known:
        found = {where: held_out(path, bench.heldout) for where, path in (("trained", run), ("stored", small))}
        results.put(one.name, heldout=found)
    wanted = [data for data in bench.scoring.found() if data.task.name not in known.get("scores", {})]
    for data, scores in score_tasks(wanted, small, bench.scoring):
        results.put(one.name, scores={**known.get("scores", {}), data.task.name: scores})
    if known.get("scores"):
        results.put(one.name, **mean_of(known["scores"]))


def train(recipe: Recipe, run: Path, start: Path | None) -> dict[str, Any]:
    """What came of the run, which goes on if it was begun."""
    began = time.perf_counter()
    pretrain(recipe, run, start=start, resume=True, show=progress)
    if not (run / "model").is_dir():
        raise Stopped
    return told(read_records(run / "metrics.jsonl"), time.perf_counter() - began)


def told(records: Records, wall: float) -> dict[str, Any]:
    """The run in a few numbers; `wall` is all that the last command has spent on it."""
    last: Line = records.training[-1]
    speeds = sorted(speed for _, speed in records.speed())
    usual = speeds[len(speeds) // 2] if speeds else float("nan")
    own = {name: last.get(name) for name in ("step", "seconds", "tokens", "loss", "right", "skipped")}
    final: Line = records.evaluations[-1] if records.evaluations else {}
    own |= {name: final.get(name) for name in ("evaluation", "averaged") if name in final}
    filled = records.samples[-1]["filled"] if records.samples else None
    return own | {
        "tokens_per_second": round(usual) if speeds else None,
        "compile_seconds": round(stalled(records, usual), 1),
        "wall_seconds": round(wall, 1),
        "filled": filled,
    }


def stalled(records: Records, usual: float) -> float:
    """Seconds in which the run stood still, by its own record: compiling, nearly all of it, then evaluating.

    Of an interval between two lines that took over twice its time at the usual speed, what is over.
    """
    lines: list[Line] = [{"seconds": 0.0, "tokens": 0}, *records.training]
    total = 0.0
    for before, after in pairwise(lines):
        seconds = number(after["seconds"]) - number(before["seconds"])
        expected = (number(after["tokens"]) - number(before["tokens"])) / usual
        total += seconds - expected if seconds > 2 * expected else 0.0
    return total


def store(run: Path, small: Path, archive: Path) -> dict[str, Any]:
    """Save the model small, and all that should be brought home in one file."""
    shutil.rmtree(small, ignore_errors=True)
    save_small(load_checkpoint(run / "model"), small)
    with whole_file(archive) as draft, tarfile.open(draft, "w") as tar:
        tar.add(small, "model")
        for name in BROUGHT_HOME:
            if (run / name).is_file():
                tar.add(run / name, name)
    size = archive.stat().st_size
    found: dict[str, Any] = {"weights_bytes": (small / SMALL_FILE).stat().st_size, "archive_bytes": size}
    return found | ({"note": f"over {MOST_BYTES:,} bytes"} if size > MOST_BYTES else {})


def held_out(folder: Path, heldout: Path) -> dict[str, dict[str, float]]:
    """Loss, share of right words and perplexity by length; {} for a model that fills no blanks."""
    loaded = load_checkpoint(folder, heads={"masked_word": None})
    if loaded.report.new:
        return {}
    place, found = Ranks(device=torch.device(device())), {}
    module, shards = ForPretraining(loaded.model, objective_rows(["mlm"])).to(place.device), open_shards(heldout)
    for length in LENGTHS:
        if length > loaded.model.config.max_length:
            continue
        settings = DataSettings(length=length, block=max(1, BLOCK_TOKENS // length), static=True, seed=1)
        fixed = length if place.device.type == "cuda" else None

        def inputs(examples: Any, fixed: int | None = fixed) -> tuple[Any, ...]:
            return to_inputs(examples, place.device, fixed_length=fixed, pad_id=loaded.model.config.pad_id)

        found[str(length)] = evaluate(module, ExampleSource(shards, settings), inputs, place)
    return found


def bring_home(bench: Bench, results: Results) -> None:
    """Copy the archives of the best tries by mean, those without one first, to OUT, and remove others from there."""
    means = {name: facts.get("mean", float("inf")) for name, facts in results.facts["tries"].items()}
    stored = [name for name in means if (bench.work / f"{name}.tar").is_file()]
    for place, name in enumerate(sorted(stored, key=lambda name: -means[name])):
        here, there = (folder / f"{name}.tar" for folder in (bench.work, bench.out))
        if place >= bench.keep:
            there.unlink(missing_ok=True)
        elif not there.is_file():
            with whole_file(there) as draft:
                shutil.copyfile(here, draft)


def device() -> str:
    """Where everything runs."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def search(tries: Sequence[Try], bench: Bench) -> int:
    """All tries, one after the other; the exit code."""
    results = Results(*(folder / "results.json" for folder in (bench.work, bench.out)))
    about = torch.cuda.get_device_name() if device() == "cuda" else "cpu"
    results.write(
        device=about, torch=torch.__version__, finetune=[*FIXED, *bench.scoring.finetune], seeds=bench.scoring.seeds
    )
    if bench.start:
        results.write(start=bench.start.name)
    for one in tries:
        try:
            run_try(one, bench, results)
        except (Stopped, KeyboardInterrupt):
            print(f"stopped in {one.name}; the same command goes on", flush=True)
            return STOPPED
        except Exception as error:  # whatever it is, the other tries are worth having
            trace = traceback.format_exc().splitlines()[-8:]
            results.put(one.name, error=f"{type(error).__name__}: {error}", trace=trace)
        print(one.name, json.dumps(_short(results.of(one.name))), flush=True)
        bring_home(bench, results)
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
    return 1 if any("error" in results.of(one.name) for one in tries) else 0


def _short(facts: dict[str, Any]) -> dict[str, Any]:
    scores = {name: each["median"] for name, each in facts.get("scores", {}).items()}
    held = facts.get("heldout", {}).get("stored", {}).get("128", {}).get("mlm_loss")
    chosen = {"error": facts.get("error"), "mean": facts.get("mean"), "heldout": held, **scores}
    return {name: value for name, value in chosen.items() if value is not None}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tries", nargs="+", metavar="TRY")
    for name in ("shards", "heldout", "out", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--tasks", type=Path, help="folders glue-cola, glue-sst2, ...; without it nothing is taught")
    parser.add_argument("--from", dest="start", type=Path, help="a model to carry on from, for all tries")
    parser.add_argument("--minutes", type=float, help="for each try; else as its recipe says")
    parser.add_argument("--seeds", type=int, default=1, help="of fine-tuning, for each task")
    parser.add_argument("--finetune", nargs="*", default=[], metavar="KEY=VALUE", help="for all, or CoLA:KEY=VALUE")
    parser.add_argument("--rows", type=int, default=15_000, help="to learn from, at most, in each task")
    parser.add_argument("--jobs", type=int, default=1, help="fine-tunings at once: one of them leaves a GPU idle")
    parser.add_argument("--keep", type=int, default=3, help="models to bring home: the best by mean")
    options = parser.parse_args(arguments)
    tries = [read_try(text) for text in options.tries]
    own = {name: value for name, value in vars(options).items() if name != "tries"}
    scored = {field.name: own.pop(field.name) for field in fields(Scoring) if field.name in own}
    bench = Bench(**own, scoring=Scoring(**{**scored, "finetune": tuple(options.finetune)}))
    for one in tries:  # a wrong key is said before the first minute is spent
        bench.recipe(one)
    bench.scoring.check()
    if len({one.name for one in tries}) < len(tries):
        raise RequestError("two tries have the same name; call them NAME=RECIPE.toml")
    for folder in (bench.work, bench.out):
        folder.mkdir(parents=True, exist_ok=True)
    return search(tries, bench)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RequestError as error:
        sys.exit(f"recipes_gpu: {error}")
