"""Files to a task with its windows: everything that can be refused is refused before the first step."""

import math
import re
import statistics
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.data.examples import LABELED, Example, TaggedExample, TextExample
from bertkit.data.read import Columns, columns_for_dev, read_examples
from bertkit.errors import RequestError
from bertkit.finetuning.settings import FineTuneSettings
from bertkit.progress import ShowProgress, silent
from bertkit.settings import pick
from bertkit.tasks.classify import balanced_weights
from bertkit.tasks.metrics.table import METRICS
from bertkit.tasks.table import build_task
from bertkit.tasks.task import LossSettings, Task, Window

NUMBER = re.compile(r"[-+]?\d+(\.\d+)?", re.ASCII)
HELD_OUT = 0.1  # of the training file, where there is no dev file


@dataclass(frozen=True)
class Part:
    """Examples with their windows."""

    examples: list[Example]
    windows: list[list[Window]]  # of each example

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each example."""
        return tuple(sum(len(window.ids) for window in own) for own in self.windows)

    @property
    def flat(self) -> list[Window]:
        """The windows of all examples."""
        return [window for own in self.windows for window in own]


@dataclass(frozen=True)
class Prepared:
    """What a run learns from and is measured by."""

    task: Task
    train: Part
    dev: Part
    said: tuple[str, ...]  # what was guessed or cut, a sentence each

    @property
    def fingerprint(self) -> int:
        """Changes when a text, a label or their order changes."""
        found = 0
        for window in self.train.flat + self.dev.flat:
            found = zlib.crc32(np.array(window.ids, dtype=np.int32).tobytes() + repr(window.target).encode(), found)
        return found


@dataclass(frozen=True, kw_only=True)
class DataFiles:
    """Where the examples are."""

    train: Path
    dev: Path | None = None  # None: a tenth of the training file is held out
    columns: Columns | None = None


def prepare(
    name: str, start: Checkpoint, files: DataFiles, settings: FineTuneSettings, show: ShowProgress = silent
) -> Prepared:
    """Read both files, find the labels, and make every window."""
    train, dev, said = read_files(name, files, settings.learning.seed)
    task = build_task(name, start, settings.reading, **content_of(name, train, files.train))
    refuse_mismatch(task, settings)
    parts = []
    for title, examples in (("reading the training data", train), ("reading the dev data", dev)):
        with show(title, len(examples)) as meter:
            windows = []
            for number, example in enumerate(examples):
                windows.append(task.windows(example, number))
                meter.update(number + 1)
        parts.append(Part(examples, windows))
    return Prepared(task, parts[0], parts[1], (*said, *_cut_said(files.train, parts[0])))


def refuse_mismatch(task: Task, settings: FineTuneSettings) -> None:
    """Settings that mean nothing for a task are a mistake."""
    if settings.run.abstain is not None and task.name != "classify":
        raise RequestError(f"abstain={settings.run.abstain:g} goes with classify; '{task.name}' has no use for it")
    if settings.reading.pooling != "model" and task.name in ("tag", "answer"):
        raise RequestError(f"pooling={settings.reading.pooling}: '{task.name}' reads every token; leave it out")
    if settings.run.metric is not None:
        second = len(task.labels) == 2 or task.name != "classify"  # whose f1 it is
        names = [each for each in METRICS[task.name].names if each != "f1" or second]
        pick(dict.fromkeys([*names, "loss"]), settings.run.metric, "metric")


def read_files(name: str, files: DataFiles, seed: int) -> tuple[list[Example], list[Example], tuple[str, ...]]:
    """Training and dev examples, and what was guessed about them."""
    found = read_examples(name, files.train, files.columns)
    if files.dev is not None:
        columns = columns_for_dev(files.train, files.dev, found, files.columns)
        dev = read_examples(name, files.dev, columns, names=found.names)
        return found.examples, dev.examples, (found.said, dev.said)
    if len(found.examples) < 2:
        raise RequestError(f"{files.train} has {len(found.examples)} examples; give more, and a --dev file")
    train, dev_examples = hold_out(found.examples, seed, labeled=name in LABELED)
    if not dev_examples:
        raise RequestError(f"{files.train}: nothing can be held out, for each label has one example; give a --dev file")
    note = f"no dev file: {len(dev_examples)} of {len(found.examples)} training examples are held out"
    return train, dev_examples, (found.said, note)


def hold_out(examples: Sequence[Example], seed: int, *, labeled: bool = False) -> tuple[list[Example], list[Example]]:
    """A tenth of the examples at random, the same ones for the same seed, kept apart; no label with its last one."""
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(len(examples)).tolist()
    apart = set(order[: max(1, round(HELD_OUT * len(examples)))])
    if labeled:
        left = set(labels_of([example for number, example in enumerate(examples) if number not in apart]))
        for number in sorted(apart):
            own = set(_labels(examples[number]))
            if not own <= left:
                apart.remove(number)
                left |= own
    rest = [example for number, example in enumerate(examples) if number not in apart]
    return rest, [examples[number] for number in sorted(apart)]


def content_of(name: str, examples: Sequence[Example], file: Path) -> dict[str, Any]:
    """What the training data decide about a task: its labels, or the center and spread of its numbers."""
    if name in LABELED:
        labels = sorted_labels(labels_of(examples))
        if not labels:
            raise RequestError(f"{file}: no example has a label; there is nothing to learn")
        if len(labels) < (1 if name == "multilabel" else 2):
            raise RequestError(f"{file}: every example has the label '{labels[0]}'; at least two labels are needed")
        return {"labels": labels}
    if name != "regress":
        return {}
    numbers = [float(example.label) for example in examples if isinstance(example.label, int | float)]  # type: ignore
    spread = statistics.pstdev(numbers)
    if not spread:
        raise RequestError(f"{file}: every example has the number {numbers[0]:g}; there is nothing to learn")
    return {"center": statistics.fmean(numbers), "spread": spread}


def labels_of(examples: Sequence[Example]) -> dict[str, int]:
    """How often each label, or each tag, was given."""
    counts: dict[str, int] = {}
    for example in examples:
        for label in _labels(example):
            counts[label] = counts.get(label, 0) + 1
    return counts


def sorted_labels(labels: dict[str, int]) -> tuple[str, ...]:
    """By name; numbers by their value."""
    return tuple(sorted(labels, key=lambda label: (float(label) if NUMBER.fullmatch(label) else math.inf, label)))


def loss_settings(task: Task, train: Part, settings: FineTuneSettings) -> LossSettings:
    """Weights from the label counts of the training data, where they are asked for."""
    smoothing = settings.learning.label_smoothing
    if settings.learning.class_weights == "none":
        return LossSettings(label_smoothing=smoothing)
    if task.name not in LABELED:
        raise RequestError(f"class_weights=balanced goes with labels; '{task.name}' has none")
    counts = labels_of(train.examples)
    if task.name == "multilabel":  # a yes weighs as much as the many noes, ten times at most
        yes = [max(counts.get(label, 0), 1) for label in task.labels]
        weights = tuple(min(10.0, max(len(train.examples) - count, 0.5) / count) for count in yes)
    else:
        weights = balanced_weights(counts, task.labels)
    return LossSettings(label_smoothing=smoothing, class_weights=weights)


def prior_logits(task: Task, train: Part, loss: LossSettings) -> tuple[float, ...]:
    """The logits of a head that has read no text and minimizes the loss: how often each label occurs."""
    counts, rows = labels_of(train.examples), len(train.examples)
    weights = loss.class_weights or (1.0,) * len(task.labels)
    if task.name == "classify":
        shares = [weight * counts.get(label, 0) for label, weight in zip(task.labels, weights, strict=True)]
        smooth = loss.label_smoothing / len(shares)
        shares = [share / sum(shares) * (1 - loss.label_smoothing) + smooth for share in shares]
        return tuple(math.log(max(share, 0.5 / rows)) for share in shares)
    shares = [min(max(counts.get(label, 0), 0.5), rows - 0.5) / rows for label in task.labels]
    shares = [share * (1 - loss.label_smoothing) + loss.label_smoothing / 2 for share in shares]
    return tuple(math.log(weight * share / (1 - share)) for share, weight in zip(shares, weights, strict=True))


def _labels(example: Example) -> tuple[str, ...]:
    if isinstance(example, TaggedExample):
        return example.tags or ()
    assert isinstance(example, TextExample)
    return tuple(dict.fromkeys(example.label)) if isinstance(example.label, tuple) else (str(example.label),)


def _cut_said(path: Path, part: Part) -> tuple[str, ...]:
    """How many texts were cut or read through windows."""
    shown = [own[0].detail.seen if hasattr(own[0].detail, "seen") else own[0].detail for own in part.windows]
    cut = sum(each.cut > 0 for each in shown)
    windowed = sum(each.windows > 1 for each in shown)
    said = [f"{path.name}: {cut} of {len(shown)} texts are cut to the model's length"] if cut else []
    return (*said, f"{path.name}: {windowed} texts are read through windows") if windowed else tuple(said)
