"""The family tree, measured: nine models of about one size, the same text and the same minutes, then the same tasks.

    python benchmarks/family.py --rows bert,gpt --shards DIR --heldout DIR --tasks DIR --work DIR --out RESULT.json
        [--minutes 3] [--seeds 3] [--jobs 8]
    python benchmarks/family.py --table RESULT.json --out docs/family.md

Rows are pre-trained by the recipe family/ROW, one after the other (word2vec by `bertkit word2vec`). Then, side by
side, their frozen vectors are scored (`frozen_features`), they are fine-tuned (last step, defaults of the package), and
score BLiMP's sentences where they can (`blimp`). Every fact is in RESULT.json as soon as it is known, and is not
computed again: rows can be run in several commands and on several days. A row whose model is not in WORK any more
begins anew unless it was complete. SIGTERM saves a run in the middle of pre-training; the same command goes on.

--table writes the page, and beside it two pictures: NAME-scores.svg and NAME-masked-causal.svg.
"""

import argparse
import datetime
import gc
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from blimp import blimp
from domain import Facts
from frozen_features import Encoder, ModelLayers, StaticLayer, TaskExamples, score_features
from glue_scores import METRICS, Scoring, Stopped, fine_tune_once
from many_runs import results_of
from recipes_gpu import STOPPED, device, told

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint
from bertkit.errors import RequestError
from bertkit.finetuning.explore.glue import GlueFiles
from bertkit.inside.static.corpus import read_words
from bertkit.inside.static.files import open_vectors
from bertkit.inside.static.settings import static_settings
from bertkit.inside.static.training import train_vectors
from bertkit.model.model import parameter_count
from bertkit.pretraining.examples.batches import ExampleSource
from bertkit.pretraining.objectives.table import token_row
from bertkit.pretraining.pretraining import pretrain
from bertkit.pretraining.recipe import Recipe, read_recipe
from bertkit.progress import progress
from bertkit.settings import pick
from bertkit.text.shards.reader import open_shards
from bertkit.train.records import Records, number, read_records

SST2_ROWS = 10_000
STATIC_WIDTH, STATIC_EPOCHS = 256, 5
MOST_POINTS = 120  # of a curve in the result file


@dataclass(frozen=True)
class Row:
    """A model of the table; the objective is in plain words."""

    name: str
    title: str
    year: int
    objective: str
    finetune: tuple[str, ...] = ()  # settings that belong to the method


ROWS = {
    row.name: row
    for row in (
        Row("word2vec", "word2vec, mean", 2013, "a word's neighbors"),
        Row("elmo", "ELMo", 2018, "the next and the previous word"),
        Row(
            "ulmfit",
            "ULMFiT",
            2018,
            "the next word",
            finetune=("decay=slanted", "layer_decay=0.38", "unfreeze=0.5"),
        ),
        Row("gpt", "GPT", 2018, "the next word"),
        Row("bert", "BERT", 2018, "masked words, next sentence"),
        Row("xlnet", "XLNet", 2019, "words in a random order"),
        Row("roberta", "RoBERTa", 2019, "masked words"),
        Row("albert", "ALBERT", 2019, "masked words, order of sentences"),
        Row("electra", "ELECTRA", 2020, "replaced words"),
    )
}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all rows share."""

    shards: Path
    heldout: Path | None
    tasks: Path
    work: Path
    minutes: float
    seeds: int
    jobs: int
    epochs: int  # of word2vec
    recipe: tuple[str, ...]  # changes of every recipe, to try things out
    finetune: tuple[str, ...]
    pairs: int | None  # of each set of BLiMP
    train_only: bool

    def scoring(self, row: Row, task: str) -> Scoring:
        """How a row is fine-tuned for a task."""
        return Scoring(
            tasks=self.tasks,
            finetune=(*row.finetune, *self.finetune),
            rows=SST2_ROWS if task == "SST-2" else 10**9,
            jobs=self.jobs,
            names=tuple(METRICS),
        )

    @cached_property
    def found(self) -> list[GlueFiles]:
        """The tasks, SST-2 first: the others fill the places that it leaves."""
        found = Scoring(tasks=self.tasks, names=tuple(METRICS)).found()
        return sorted(found, key=lambda data: data.task.name != "SST-2")


class RowRun:
    """The facts of a row, in the order in which they are computed."""

    def __init__(self, row: Row, bench: Bench, facts: Facts) -> None:
        self.row, self.bench, self.facts = row, bench, facts
        self.folder = bench.work / row.name
        self.model = self.folder / ("vectors" if row.name == "word2vec" else "run/model")
        known = facts.content.setdefault("rows", {}).get(row.name, {})
        if known and not self.model.is_dir() and not self._complete(known):
            print(f"{row.name}: its model is gone, so it begins anew", flush=True)
            facts.content["rows"][row.name] = {}

    def get(self, *keys: str, make: Callable[[], Any]) -> Any:
        """A fact of this row."""
        return self.facts.get("rows", self.row.name, *keys, make=make)

    def train_once(self) -> None:
        """Pre-train the model, if that was not done."""
        if not self._complete(self.facts.content["rows"].get(self.row.name, {})):
            self.get("training", make=self.train_static if self.row.name == "word2vec" else self.train)

    def missing(self) -> list[tuple["RowParts", str, str, int]]:
        """Calls of `evaluate_part` whose result is not known: the longest first, so that the others fill the gaps."""
        known, static = self.facts.content["rows"].get(self.row.name, {}), self.row.name == "word2vec"
        if "training" not in known:
            return []
        parts = RowParts(self.row, self.bench, self.model)
        names = [data.task.name for data in self.bench.found]
        calls: list[tuple[RowParts, str, str, int]] = []
        if not static:
            calls += [
                (parts, "fine-tuned", name, seed)
                for name in names
                for seed in range(self.bench.seeds)
                if str(seed) not in known.get("fine-tuned", {}).get(name, {})
            ]
            calls += [(parts, "blimp", "", 0)] if "blimp" not in known else []
        return calls + [(parts, "features", name, 0) for name in names if name not in known.get("features", {})]

    def _complete(self, known: dict[str, Any]) -> bool:
        names = {data.task.name for data in self.bench.found}
        features = names <= set(known.get("features", {}))
        if self.row.name == "word2vec":
            return features
        seeds = {str(seed) for seed in range(self.bench.seeds)}
        tuned = all(seeds <= set(known.get("fine-tuned", {}).get(name, {})) for name in names)
        return features and tuned and "blimp" in known

    def train_static(self) -> dict[str, Any]:
        """Skip-gram over the words of the shards, on the CPU."""
        bench = self.bench
        corpus = read_words([bench.shards])
        settings = static_settings("skip-gram", width=STATIC_WIDTH, epochs=bench.epochs)
        vectors = train_vectors(corpus, settings, show=progress)
        shutil.rmtree(self.model, ignore_errors=True)
        vectors.save(self.model)
        seconds = number(vectors.record["seconds"])
        read = {"tokens": bench.epochs * len(corpus.ids), "targets": bench.epochs * len(corpus.ids)}
        return {**about("cpu"), "minutes": round(seconds / 60, 2), **read, "parameters": vectors.vectors.size}

    def train(self) -> dict[str, Any]:
        """Pre-training by the row's recipe; a run that was begun goes on."""
        bench, run, began = self.bench, self.folder / "run", time.perf_counter()
        held = [f"heldout={bench.heldout}"] if bench.heldout else []
        own = [f"shards={bench.shards}", *held, f"minutes={bench.minutes}", "steps=none", *bench.recipe]
        recipe = read_recipe(f"family/{self.row.name}", *own)
        pretrain(recipe, run, resume=True, show=progress)
        if not self.model.is_dir():
            raise Stopped
        records = read_records(run / "metrics.jsonl")
        facts = told(records, time.perf_counter() - began)
        share, model = target_share(recipe), load_checkpoint(self.model).model
        return {
            **about(),
            "minutes": bench.minutes,
            "tokens": facts["tokens"],
            "targets": round(number(facts["tokens"]) * share),
            "target_share": share,
            "parameters_in_layers": parameter_count(model.encoder.layers),
            "parameters": parameter_count(model),
            "heldout": facts.get("evaluation", {}),
            "recipe": list(bench.recipe),
            **{name: facts[name] for name in ("step", "seconds", "loss", "tokens_per_second", "compile_seconds")},
            "curve": curve(records),
        }


@dataclass(frozen=True)
class RowParts:
    """The parts of a row's evaluation; each can be computed in a process of its own."""

    row: Row
    bench: Bench
    model: Path

    def blimp(self, _name: str, _seed: int) -> dict[str, Any] | None:
        """Share of BLiMP's pairs in which the model prefers the right sentence."""
        return blimp(on_device(self.model), self.bench.tasks / "blimp", self.bench.pairs)

    def features(self, name: str, _seed: int) -> dict[str, Any]:
        """What frozen vectors are good for."""
        static = self.row.name == "word2vec"
        encoder: Encoder = StaticLayer(open_vectors(self.model)) if static else ModelLayers(on_device(self.model))
        return score_features(encoder, TaskExamples(self._data(name), self._scoring(name).rows), device())

    def fine_tuned(self, name: str, seed: int) -> dict[str, Any]:
        """The score of one fine-tuning run."""
        return fine_tune_once(self._data(name), self.model, self._scoring(name), seed)[2]

    def _data(self, name: str) -> GlueFiles:
        return next(data for data in self.bench.found if data.task.name == name)

    def _scoring(self, name: str) -> Scoring:
        return self.bench.scoring(self.row, name)


def evaluate_part(parts: RowParts, kind: str, name: str, seed: int) -> tuple[tuple[str, ...], Any]:
    """The keys of a result, and the result."""
    keys = {"blimp": ("blimp",), "features": ("features", name), "fine-tuned": ("fine-tuned", name, str(seed))}
    if parts.bench.jobs > 1:
        torch.set_num_threads(1)
    result = getattr(parts, kind.replace("-", "_"))(name, seed)
    free_memory()
    return (parts.row.name, *keys[kind]), result


def on_device(model: Path) -> Checkpoint:
    """A pre-trained model on the GPU, if there is one."""
    checkpoint = load_checkpoint(model)
    checkpoint.model.to(device())
    return checkpoint


def target_share(recipe: Recipe) -> float:
    """Targets for each token that is read, by a block of examples; ELMo has two, ELECTRA judges every token."""
    examples = ExampleSource(open_shards(recipe.shards), recipe.data).block(0)
    counts = token_row(recipe.data.objective).counts(examples)
    return round(max(counts.values()) / len(examples.ids), 4)


def curve(records: Records) -> dict[str, list[list[float]]]:
    """[tokens, seconds, loss] while training, and of each evaluation; the loss is that of the words."""

    def word_loss(losses: dict[str, float]) -> float | None:
        return next((value for name, value in losses.items() if name in WORD_LOSSES), None)

    lines = records.training[:: max(1, len(records.training) // MOST_POINTS)]
    spent = {line["step"]: (line["tokens"], line["seconds"]) for line in records.training}
    trained = [(line["tokens"], line["seconds"], word_loss(line["loss"])) for line in lines]
    held = [
        (*spent[line["step"]], word_loss(line["evaluation"])) for line in records.evaluations if line["step"] in spent
    ]
    return {
        name: [
            [value if isinstance(value, int) else round(value, 4) for value in point]
            for point in points
            if None not in point
        ]
        for name, points in (("training", trained), ("heldout", held))
    }


WORD_LOSSES = {f"{name}{end}" for name in ("mlm", "causal", "bilm", "plm") for end in ("", "_loss")}


def about(kind: str | None = None) -> dict[str, str]:
    """When and where."""
    name = torch.cuda.get_device_name() if (kind or device()) == "cuda" else "cpu"
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return {"date": today, "device": name, "torch": torch.__version__}


def free_memory() -> None:
    """Before other processes need it."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def measure(names: Sequence[str], bench: Bench, facts: Facts) -> int:
    """Train all rows, one after the other, then evaluate them side by side; the exit code.

    A row whose training fails is reported, and the next one begins.
    """
    failed, runs = 0, [RowRun(pick(ROWS, name, "row"), bench, facts) for name in names]
    for run in runs:
        try:
            run.train_once()
        except (Stopped, KeyboardInterrupt):
            return stopped(run.row.name)
        except Exception:  # whatever it is, the other rows are worth having
            print(f"{run.row.name} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            failed += 1
        free_memory()
    if bench.train_only:
        return 1 if failed else 0
    calls = sorted((call for run in runs for call in run.missing()), key=lambda call: call[3])  # seed by seed
    try:
        for keys, result in results_of(evaluate_part, calls, min(bench.jobs, max(1, len(calls)))):
            facts.get("rows", *keys, make=lambda result=result: result)
    except (Stopped, KeyboardInterrupt):
        return stopped("the evaluation")
    return 1 if failed else 0


def stopped(where: str) -> int:
    """The exit code of a run that can go on."""
    print(f"stopped in {where}; the same command goes on", flush=True)
    return STOPPED


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), help="of the table, with commas between them")
    for name in ("shards", "heldout", "tasks", "work", "out"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--minutes", type=float, default=3.0, help="of pre-training, each row")
    parser.add_argument("--seeds", type=int, default=3, help="of fine-tuning, each task")
    parser.add_argument("--jobs", type=int, default=1, help="fine-tunings at once: one of them leaves a GPU idle")
    parser.add_argument("--train-only", action="store_true", help="leave the evaluation to a later command")
    parser.add_argument("--epochs", type=int, default=STATIC_EPOCHS, help="of word2vec")
    parser.add_argument("--pairs", type=int, help="of each set of BLiMP, to try things out")
    for name in ("recipe", "finetune"):
        parser.add_argument(f"--{name}", nargs="*", default=[], metavar="KEY=VALUE", help="changes, to try things out")
    parser.add_argument("--table", type=Path, metavar="RESULT.json", help="write the page of a result file to --out")
    options = vars(parser.parse_args(arguments))
    table, out, names = options.pop("table"), options.pop("out"), options.pop("rows").split(",")
    needed = ["out"] if table else ["shards", "tasks", "work", "out"]
    if missing := [f"--{name}" for name in needed if not {**options, "out": out}[name]]:
        raise RequestError(f"give also {', '.join(missing)}")
    if table:
        from family_page import write_page

        write_page(table, out, tuple(ROWS.values()))
        return 0
    changes = {name: tuple(options.pop(name)) for name in ("recipe", "finetune")}
    bench = Bench(**options, **changes)
    bench.work.mkdir(parents=True, exist_ok=True)
    return measure(names, bench, Facts(out))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RequestError as error:
        sys.exit(f"family: {error}")
