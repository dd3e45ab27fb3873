"""The tasks that fine-tuning is measured on: where their files are in a data folder, how they are read and taught.

    python benchmarks/finetune_tasks.py MODEL DST      # a copy of a model's folder with weights of half the size

A data folder holds a folder for each task (`glue-sst2/train.tsv.zst`, ...), compressed or not. Machines that take few
megabytes get a model in float16; both sides of a comparison read the same folder, and both compute in float32.
"""

import argparse
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.data.examples import Example, QuestionExample, TextExample
from bertkit.data.tables import Location
from bertkit.errors import RequestError
from bertkit.finetuning.prepare import Prepared
from bertkit.finetuning.settings import FineTuneSettings, read_settings
from bertkit.settings import pick
from bertkit.tasks.folder import build_task
from bertkit.tasks.read import read_examples
from bertkit.tasks.table import TASKS as ROWS
from bertkit.tasks.task import Dataset, Task
from bertkit.text.corpus import CorpusReport, read_lines

HELD_OUT = 5  # every fifth article of SQuAD is for the test


@dataclass(frozen=True)
class BenchTask:
    """A task, its files without their compression's ending, and settings that fit minutes on one GPU."""

    name: str
    task: str
    train: str
    dev: str | None  # None: of the training file, by article
    metric: str
    settings: tuple[str, ...]
    rows: int | None = None  # of the training file, at most; evenly from its beginning to its end
    dev_rows: int | None = None


TASKS = {
    "sst2": BenchTask(
        "SST-2",
        "classify",
        "glue-sst2/train.tsv",
        "glue-sst2/dev.tsv",
        "accuracy",
        ("epochs=2", "learning_rate=5e-5", "max_length=128"),
        20_000,
    ),
    "mrpc": BenchTask(
        "MRPC",
        "classify",
        "glue-mrpc/train.tsv",
        "glue-mrpc/dev.tsv",
        "f1",
        ("epochs=4", "learning_rate=5e-5", "max_length=128"),
    ),
    "stsb": BenchTask(
        "STS-B",
        "regress",
        "glue-stsb/sts-train.csv",
        "glue-stsb/sts-dev.csv",
        "spearman",
        ("epochs=3", "learning_rate=5e-5", "max_length=128"),
    ),
    "conll2003": BenchTask(
        "CoNLL-2003",
        "tag",
        "conll2003/train.txt",
        "conll2003/valid.txt",
        "f1",
        ("epochs=2", "learning_rate=1e-4", "max_length=256"),
    ),
    "goemotions": BenchTask(
        "GoEmotions",
        "multilabel",
        "goemotions/train.tsv",
        "goemotions/dev.tsv",
        "macro_f1",
        ("epochs=3", "learning_rate=2e-4", "max_length=64"),  # of 5e-5 to 8e-4 the best for transformers
        20_000,
    ),
    "commonsenseqa": BenchTask(
        "CommonsenseQA",
        "choose",
        "commonsenseqa/train.jsonl",
        "commonsenseqa/dev.jsonl",
        "accuracy",
        ("epochs=2", "learning_rate=5e-5", "max_length=128"),
    ),
    "squad": BenchTask(
        "SQuAD by article",
        "answer",
        "squad/dev-v1.1.json",
        None,
        "f1",
        ("epochs=2", "learning_rate=2e-4", "max_length=384"),
    ),
    "wnut17": BenchTask(
        "WNUT-17",
        "tag",
        "wnut17/train.conll",
        "wnut17/dev.conll",
        "f1",
        ("epochs=4", "learning_rate=1e-4", "max_length=256"),
    ),
    "ncbi": BenchTask(
        "NCBI disease",
        "tag",
        "ncbi-disease/train.tsv",
        "ncbi-disease/devel.tsv",
        "f1",
        ("epochs=4", "learning_rate=1e-4", "max_length=256"),
    ),
    "trec6": BenchTask(
        "TREC, 6 classes",
        "classify",
        "trec6/train_5500.label",
        "trec6/TREC_10.label",
        "accuracy",
        ("epochs=4", "learning_rate=5e-5", "max_length=64"),
    ),
    "imdb": BenchTask(
        "IMDb",
        "classify",
        "imdb/train.jsonl",
        "imdb/test.jsonl",
        "accuracy",
        ("epochs=2", "learning_rate=5e-5", "max_length=512"),
        5_000,
        5_000,
    ),
}


def find_task(name: str) -> BenchTask:
    """A task by its key."""
    return pick(TASKS, name, "task")


def settings_of(bench: BenchTask, seed: int, *more: str) -> FineTuneSettings:
    """The task's settings; the last step's model counts, so that nothing is chosen on dev.

    One rate for all layers and a short warm-up, as in the plain loop that this is compared with.
    """
    plain = ("batch=32", "layer_decay=1", "warmup=0.1", "keep=last")
    return read_settings(*bench.settings, *plain, f"seed={seed}", *more)


def read_task_files(bench: BenchTask, data: Path) -> tuple[list[Example], list[Example]]:
    """All training and dev examples."""
    train = _read(bench, find_file(data, bench.train))
    if bench.dev is not None:
        return train, _read(bench, find_file(data, bench.dev))
    return [e for e in train if not _is_held_out(e)], [e for e in train if _is_held_out(e)]


def _read(bench: BenchTask, path: Path) -> list[Example]:
    if ".label" not in path.suffixes:
        return read_examples(bench.task, path).examples
    made: list[Example] = []
    for number, line in read_lines(path, report=CorpusReport(), encoding="latin-1"):
        kind, text = line.split(" ", 1)  # TREC: `NUM:dist How far is it from Denver to Aspen ?`
        made.append(TextExample(text, None, kind.split(":")[0], Location(path, number)))
    return made


def find_file(data: Path, name: str) -> Path:
    """The file as it is, or compressed."""
    for path in (data / name, data / f"{name}.zst", data / f"{name}.gz"):
        if path.is_file():
            return path
    raise RequestError(f"{data} holds no {name}, compressed or not; give the folder of the tasks with --data")


def prepare_task(
    bench: BenchTask, data: Path, start: Checkpoint, settings: FineTuneSettings, rows: int | None = None
) -> Prepared:
    """Examples as windows, made once for all seeds and both sides; `rows` limits both parts, to try things out."""
    train, dev = read_task_files(bench, data)
    content = ROWS[bench.task].arguments_from_data(train, data / bench.train)  # labels of all rows, whatever the limit
    task = build_task(bench.task, start, settings.reading, **content)
    train, dev = spread(train, rows or bench.rows), spread(dev, rows or bench.dev_rows)
    return Prepared(task, _part(task, train), _part(task, dev), ())


def spread(examples: list[Example], most: int | None) -> list[Example]:
    """At most so many, evenly from the first to the last: files may be sorted by label."""
    count = min(most or len(examples), len(examples))
    return [examples[number * len(examples) // count] for number in range(count)]


def _part(task: Task, examples: list[Example]) -> Dataset:
    return Dataset(examples, [task.windows(example, number) for number, example in enumerate(examples)])


def _is_held_out(example: Example) -> bool:
    assert isinstance(example, QuestionExample)
    return zlib.crc32(example.title.encode()) % HELD_OUT == 0


def halve(source: Path, target: Path) -> None:
    """Copy a model's folder; its weights become float16."""
    shutil.copytree(source, target)
    weights = target / "model.safetensors"
    tensors = load_file(weights)
    halves = {name: t.half() if t.dtype == torch.float32 else t for name, t in tensors.items()}
    save_file(halves, weights, metadata={"format": "pt"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    halve(options.model, options.target)
