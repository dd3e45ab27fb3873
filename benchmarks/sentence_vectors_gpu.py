"""Tune the bundled model's vectors on one GPU, store them as a change of it, and score both on STS.

    python benchmarks/sentence_vectors_gpu.py --model MODEL --teacher MINILM --corpus CORPUS/*.zst --tasks TASKS
        --out OUT --work WORK --set minutes=2 ...

MODEL is the folder that the variant will stand beside: the change is one of its weights as they are stored. TASKS holds
glue-stsb/ and sts12-16/. STS12 to STS16 are Spearman's correlation times 100 over all pairs of a year together.
OUT gets results.json (each fact as soon as it is known), delta.safetensors (what `tools/bundle.py --sentences` takes),
metrics.jsonl and, unless --no-model, tuned.tar: the tuned model as int8 rows.
"""

import argparse
import json
import shutil
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit.checkpoint.delta import load_delta, save_delta
from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_small
from bertkit.errors import RequestError
from bertkit.files import whole_file
from bertkit.finetuning.embeddings.data import TextRows, read_pairs
from bertkit.finetuning.embeddings.session import pair_spearman
from bertkit.finetuning.embeddings.settings import VectorTuning, read_vector_request
from bertkit.finetuning.embeddings.tuning import tune_vectors
from bertkit.model.pooling import EmbedSettings
from bertkit.progress import progress

# Expected to be near the best for the released shape under a budget of 2 MB; later keys win.
SETTINGS = ("rank=32", "batch=512", "max_length=64", "most=600000", "epochs=4", "warmup=0.03", "learning_rate=1e-3")
SETTINGS += ("evaluations=8", "log_every=50")
YEARS = ("2012", "2013", "2014", "2015", "2016")


@dataclass(frozen=True)
class Bench:
    """What the command was given."""

    model: Path
    teacher: Path
    corpus: Sequence[Path]
    tasks: Path
    out: Path
    work: Path
    budget: int
    settings: VectorTuning

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.work / "run"


class Results:
    """Facts, in a file as soon as they are known."""

    def __init__(self, path: Path) -> None:
        self.path, self.facts = path, dict[str, Any]()

    def put(self, **facts: Any) -> None:
        """Add some, write all, print the new ones."""
        self.facts |= facts
        with whole_file(self.path) as draft:
            draft.write_text(json.dumps(self.facts, indent=2) + "\n", encoding="utf-8")
        print(json.dumps(facts), flush=True)


def joined(files: Sequence[Path]) -> TextRows:
    """The pairs of several files as one."""
    parts = [read_pairs(file, scored=True) for file in files]
    texts = [text for part in parts for text in part.texts]
    starts = np.cumsum([0, *(len(part.texts) for part in parts)])
    rows = np.concatenate([part.rows + start for part, start in zip(parts, starts, strict=False)])
    return TextRows(texts, rows, np.concatenate([part.scores for part in parts if part.scores is not None]))


def yardsticks(tasks: Path) -> dict[str, TextRows]:
    """Name -> scored pairs, those that TASKS holds."""
    found = {
        f"STS-B {part}": joined(files)
        for part in ("dev", "test")
        if (files := sorted((tasks / "glue-stsb").glob(f"sts-{part}.csv*")))
    }
    for year in YEARS:
        if files := sorted((tasks / "sts12-16").glob(f"{year}.*.test.tsv*")):
            found[f"STS{year[2:]}"] = joined(files)
    return found


def scores(checkpoint: Checkpoint, sticks: dict[str, TextRows]) -> dict[str, float]:
    """Spearman times 100 on each, and the mean over STS12 to STS16."""
    found = {name: round(100 * pair_spearman(checkpoint, pairs), 2) for name, pairs in sticks.items()}
    years = [found[name] for name in found if not name.startswith("STS-B")]
    return found | ({"STS12-16": round(sum(years) / len(years), 2)} if years else {})


def bench(given: Bench, *, with_model: bool) -> None:
    """Tune, score, store, score again."""
    results, sticks = Results(given.out / "results.json"), yardsticks(given.tasks)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    results.put(device=name, torch=torch.__version__, settings=given.settings.flat())
    base = on(given.model, device)
    plain = replace(base, embed=EmbedSettings(pooling="mean", normalize=True))
    results.put(plain=scores(plain, sticks), teacher=scores(on(given.teacher, device), sticks))
    began = time.perf_counter()
    files = [*given.corpus]
    dev = given.tasks / "glue-stsb" / "sts-dev.csv"
    done = tune_vectors(
        given.settings, given.model, files, dev, given.run, teacher=given.teacher, resume=True, show=progress
    )
    results.put(result=done.to_json(), seconds=round(time.perf_counter() - began, 1))
    shutil.copy(given.run / "metrics.jsonl", given.out)
    tuned = on(given.run, device)
    results.put(tuned=scores(tuned, sticks))
    delta = given.out / "delta.safetensors"
    report = save_delta(base, tuned, delta, given.budget, texts=sample(sticks), least_cosine=0)
    results.put(delta=asdict(report), stored=scores(load_delta(base, delta), sticks))
    if with_model:
        keep_model(tuned, given)


def on(folder: Path, device: torch.device) -> Checkpoint:
    """A model folder, on the device."""
    checkpoint = load_checkpoint(folder)
    checkpoint.model.to(device)
    return checkpoint


def sample(sticks: dict[str, TextRows]) -> list[str]:
    """Texts over which the stored model is held against the tuned one: some of every yardstick."""
    return [text for pairs in sticks.values() for text in pairs.texts[:200]]


def keep_model(tuned: Checkpoint, given: Bench) -> None:
    """The tuned model as int8 rows in one file."""
    small = given.work / "small"
    shutil.rmtree(small, ignore_errors=True)
    tuned.model.cpu()
    save_small(tuned, small)
    with whole_file(given.out / "tuned.tar") as draft, tarfile.open(draft, "w") as tar:
        tar.add(small, "model")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "teacher", "tasks", "out", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, nargs="+", required=True)
    parser.add_argument("--budget", type=int, default=2_000_000, help="bytes that the change may take")
    parser.add_argument("--no-model", action="store_true", help="do not bring the tuned model home")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of finetune vectors")
    options = vars(parser.parse_args(arguments))
    settings = read_vector_request(*SETTINGS, *options.pop("set"))[0]
    with_model = not options.pop("no_model")
    given = Bench(**options, settings=settings)
    for folder in (given.work, given.out):
        folder.mkdir(parents=True, exist_ok=True)
    bench(given, with_model=with_model)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RequestError as error:
        sys.exit(f"sentence_vectors_gpu: {error}")
