"""Files to a task with its windows: everything that can be refused is refused before the first step."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.data.examples import Example
from bertkit.data.tables import Columns
from bertkit.errors import RequestError
from bertkit.finetuning.settings import FineTuneSettings
from bertkit.model.heads import HEADS
from bertkit.progress import ShowProgress, silent
from bertkit.settings import pick
from bertkit.tasks.folder import build_task
from bertkit.tasks.read import columns_for_dev, read_examples
from bertkit.tasks.shared.labels import labels_of
from bertkit.tasks.table import TASKS
from bertkit.tasks.task import LossSettings, Part, Task

HELD_OUT = 0.1  # of the training file, where there is no dev file


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
    task = build_task(name, start, settings.reading, **TASKS[name].content(train, files.train))
    refuse_mismatch(task, settings)
    parts = []
    for title, examples in (("reading the training data", train), ("reading the dev data", dev)):
        with show(title, len(examples)) as meter:
            windows = []
            for number, example in enumerate(examples):
                windows.append(task.windows(example, number))
                meter.update(number + 1)
        parts.append(Part(examples, windows))
    return Prepared(task, parts[0], parts[1], (*said, *_cut_notes(files.train, parts[0])))


def refuse_mismatch(task: Task, settings: FineTuneSettings) -> None:
    """Settings that mean nothing for a task are a mistake."""
    if settings.run.abstain is not None and not task.row.abstains:
        able = ", ".join(row.name for row in TASKS.values() if row.abstains)
        raise RequestError(f"abstain={settings.run.abstain:g} goes with {able}; '{task.name}' has no use for it")
    if settings.reading.pooling != "model" and not HEADS[task.head].pooled:
        raise RequestError(f"pooling={settings.reading.pooling}: '{task.name}' reads every token; leave it out")
    if settings.run.metric is not None:
        pick(dict.fromkeys([*task.metrics, "loss"]), settings.run.metric, "metric")


def read_files(name: str, files: DataFiles, seed: int) -> tuple[list[Example], list[Example], tuple[str, ...]]:
    """Training and dev examples, and what was guessed about them."""
    found = read_examples(name, files.train, files.columns)
    if files.dev is not None:
        columns = columns_for_dev(files.train, files.dev, found, files.columns)
        dev = read_examples(name, files.dev, columns, names=found.names)
        return found.examples, dev.examples, (found.summary, dev.summary)
    if len(found.examples) < 2:
        raise RequestError(f"{files.train} has {len(found.examples)} examples; give more, and a --dev file")
    train, dev_examples = hold_out(found.examples, seed, labeled=TASKS[name].labeled)
    if not dev_examples:
        raise RequestError(f"{files.train}: nothing can be held out, for each label has one example; give a --dev file")
    note = f"no dev file: {len(dev_examples)} of {len(found.examples)} training examples are held out"
    return train, dev_examples, (found.summary, note)


def hold_out(examples: Sequence[Example], seed: int, *, labeled: bool = False) -> tuple[list[Example], list[Example]]:
    """A tenth of the examples at random, the same ones for the same seed, kept apart; no label with its last one."""
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(len(examples)).tolist()
    apart = set(order[: max(1, round(HELD_OUT * len(examples)))])
    if labeled:
        left = set(labels_of([example for number, example in enumerate(examples) if number not in apart]))
        for number in sorted(apart):
            own = set(examples[number].names)
            if not own <= left:
                apart.remove(number)
                left |= own
    rest = [example for number, example in enumerate(examples) if number not in apart]
    return rest, [examples[number] for number in sorted(apart)]


def loss_settings(task: Task, train: Part, settings: FineTuneSettings) -> LossSettings:
    """Weights from the label counts of the training data, where they are asked for."""
    smoothing = settings.learning.label_smoothing
    if settings.learning.class_weights == "none":
        return LossSettings(label_smoothing=smoothing)
    weights = task.class_weights(labels_of(train.examples), len(train.examples))
    return LossSettings(label_smoothing=smoothing, class_weights=weights)


def _cut_notes(path: Path, part: Part) -> tuple[str, ...]:
    """How many texts were cut or read through windows."""
    shown = [own[0].detail.seen if hasattr(own[0].detail, "seen") else own[0].detail for own in part.windows]
    cut = sum(each.cut > 0 for each in shown)
    windowed = sum(each.windows > 1 for each in shown)
    said = [f"{path.name}: {cut} of {len(shown)} texts are cut to the model's length"] if cut else []
    return (*said, f"{path.name}: {windowed} texts are read through windows") if windowed else tuple(said)
