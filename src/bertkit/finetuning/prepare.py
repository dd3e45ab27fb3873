"""Reads the files of a run and makes the task and its windows; invalid data and settings are refused here."""

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertkit.checkpoint.bundled import is_adapter
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.data.examples import Example
from bertkit.data.tables import Columns
from bertkit.errors import RequestError
from bertkit.finetuning.settings import AdapterSettings, FineTuneSettings
from bertkit.model.heads import HEADS
from bertkit.progress import ShowProgress, silent, tell
from bertkit.settings import pick
from bertkit.tasks.folder import build_task
from bertkit.tasks.read import ExampleFile, columns_for_dev, data_checksum, guess_task, read_examples
from bertkit.tasks.shared.labels import count_labels
from bertkit.tasks.shared.length import WINDOWED_KINDS
from bertkit.tasks.table import TASKS
from bertkit.tasks.task import Dataset, LossSettings, Task

# Settings of losses that few=true has not, of evaluations while training, and of the mean that its head reads.
UNUSED_BY_FEW = ("class_weights", "label_smoothing", "metric", "evaluations", "patience", "keep", "pooling", "rank")
HELD_OUT_SHARE = 0.1  # of the training examples, without a dev file


@dataclass(frozen=True)
class Prepared:
    """A task with its training and dev data."""

    task: Task
    train: Dataset
    dev: Dataset
    notes: tuple[str, ...]  # what was guessed or truncated
    test: Dataset | None = None  # for the score at the end
    checksums: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of the files, by their role
    columns: Mapping[str, str] = field(default_factory=dict)  # of the training file, by their role

    @property
    def fingerprint(self) -> int:
        """A checksum of texts, labels and their order."""
        checksum = 0
        for window in self.train.flat + self.dev.flat + (self.test.flat if self.test else []):
            ids = np.array(window.ids, dtype=np.int32).tobytes()
            checksum = zlib.crc32(ids + repr(window.target).encode(), checksum)
        return checksum


@dataclass(frozen=True, kw_only=True)
class DataFiles:
    """The files with the examples."""

    train: Path
    dev: Path | None = None  # None: a tenth of the training file is held out
    test: Path | None = None  # None: none, or the share of the training file that the settings say
    columns: Columns | None = None

    def checksums(self) -> dict[str, str]:
        """The SHA-256 of each file, by its role."""
        roles = {"train": self.train, "dev": self.dev}
        return {role: data_checksum(path) for role, path in roles.items() if path is not None}


def prepare(
    name: str, start: Checkpoint, files: DataFiles, settings: FineTuneSettings, show: ShowProgress = silent
) -> Prepared:
    """Read the files, build the task with the labels of the training data, and make all windows."""
    train, dev, test, notes, columns = read_files(name, files, settings.learning.seed, settings.run.test_share)
    if show is not silent:  # a wrong guess is seen before the training, not after it
        tell(notes)
    arguments = TASKS[name].arguments_from_data(train, files.train)
    if (part := TASKS[name].settings_part) is not None:
        arguments |= TASKS[name].arguments_from_settings(getattr(settings, part), train, files.train)
    task = build_task(name, start, settings.reading, **arguments)
    refuse_mismatch(task, settings)
    if settings.adapter != AdapterSettings():
        refuse_rank(task, settings, start)
    datasets = []
    for role, examples in (
        ("training", task.training_examples(train)),
        ("dev", dev),
        *([("test", test)] if test else []),
    ):
        with show(f"reading the {role} data", len(examples)) as meter:
            windows = []
            for number, example in enumerate(examples):
                windows.append(task.windows(example, number))
                meter.update(number + 1)
        datasets.append(Dataset(examples, windows))
    notes = (*notes, *task.score_notes, *_length_notes(files.train, datasets[0], task))
    held_out = datasets[2] if test else None
    return Prepared(task, datasets[0], datasets[1], notes, held_out, files.checksums(), columns)


def refuse_mismatch(task: Task, settings: FineTuneSettings) -> None:
    """Refuse settings that do not apply to the task."""
    if settings.run.abstain is not None and not task.row.abstains:
        able = ", ".join(row.name for row in TASKS.values() if row.abstains)
        raise RequestError(f"abstain={settings.run.abstain:g} goes with {able}; '{task.name}' does not use it")
    if settings.reading.pooling != "model" and not HEADS[task.head].pooled:
        raise RequestError(f"pooling={settings.reading.pooling}: '{task.name}' reads every token; leave it out")
    parts = {row.settings_part for row in TASKS.values() if row.settings_part is not None}
    for part in sorted(parts - {task.row.settings_part}):
        if (given := getattr(settings, part)) != type(given)():
            able = ", ".join(row.name for row in TASKS.values() if row.settings_part == part)
            raise RequestError(f"{', '.join(asdict(given))} go with {able}, and not with '{task.name}'; leave them out")
    if settings.learning.few:
        refuse_few_mismatch(task, settings)
    if settings.run.metric is not None:
        pick(dict.fromkeys([*task.metrics, "loss"]), settings.run.metric, "metric")


def refuse_rank(task: Task, settings: FineTuneSettings, start: Checkpoint) -> None:
    """Refuse settings of adapters that do not go with the others, and a start that is no trunk."""
    if not settings.adapter.rank:
        raise RequestError("alpha and matrices go with rank; give rank=8, or leave them out")
    if task.row.generates:
        raise RequestError(f"rank={settings.adapter.rank}: '{task.name}' generates text; leave rank out")
    if start.folder is None or is_adapter(start.folder):
        raise RequestError(
            f"an adapter names the folder of its trunk: start from a whole model, not {start.name or 'this'}"
        )
    for name, value in (("unfreeze", settings.learning.unfreeze), ("checkpointing", settings.run.checkpointing)):
        if value:
            raise RequestError(f"{name} changes which weights are trained or kept; with rank, leave it out")


def refuse_few_mismatch(task: Task, settings: FineTuneSettings) -> None:
    """Refuse few=true with another task than one label for a text, or with settings that it does not use."""
    if not (task.row.one_label_per_text and task.row.labeled):
        able = ", ".join(row.name for row in TASKS.values() if row.one_label_per_text and row.labeled)
        raise RequestError(f"few=true goes with {able}, not with '{task.name}'; leave it out")
    given, defaults = settings.flat(), FineTuneSettings().flat()
    if wrong := [name for name in UNUSED_BY_FEW if given[name] != defaults[name]]:
        raise RequestError(f"{wrong[0]}={given[wrong[0]]} has no effect with few=true; leave one of them out")


class ReadFiles(NamedTuple):
    """The examples of a run's files."""

    train: list[Example]
    dev: list[Example]
    test: list[Example]  # may be empty
    notes: tuple[str, ...]  # on what was guessed about the files
    columns: dict[str, str]  # of the training file, by their role


def read_files(name: str, files: DataFiles, seed: int, test_share: float = 0.0) -> ReadFiles:
    """Read all files; what has no file of its own is held out of the training examples."""
    file = read_examples(name, files.train, files.columns)
    if len(file.examples) < 2:
        _refuse_other_task(name, files)
    train, test, notes = file.examples, list[Example](), [file.summary]
    if test_share:
        if files.test is not None:
            raise RequestError(f"test_share={test_share:g} does not go with a test file; leave one of them out")
        train, test, note = _split(files.train, train, seed, name, "test", test_share)
        notes.append(note)
    elif files.test is not None:
        test, note = _read_like_train(name, files, file, files.test)
        notes.append(note)
    if files.dev is not None:
        dev, note = _read_like_train(name, files, file, files.dev)
    else:
        train, dev, note = _split(files.train, train, seed, name, "dev")
    return ReadFiles(train, dev, test, (*notes, note), file.roles)


def _read_like_train(name: str, files: DataFiles, train: ExampleFile, path: Path) -> tuple[list[Example], str]:
    """(examples of a dev or test file, its summary); columns and label names are those of the training file."""
    columns = columns_for_dev(files.train, path, train, files.columns)
    file = read_examples(name, path, columns, names=train.names)
    return file.examples, file.summary


def _split(
    path: Path, examples: list[Example], seed: int, name: str, role: str, share: float = HELD_OUT_SHARE
) -> tuple[list[Example], list[Example], str]:
    """(examples to train on, held-out examples, a note)."""
    if len(examples) < 2:
        raise RequestError(f"{path} has {len(examples)} examples; give more, and a --{role} file")
    train, held_out = hold_out(examples, seed, labeled=TASKS[name].labeled, share=share)
    if not held_out:
        raise RequestError(f"{path}: nothing can be held out, as each label has one example; give a --{role} file")
    return train, held_out, f"no {role} file: {len(held_out)} of {len(examples)} training examples are held out"


def _refuse_other_task(name: str, files: DataFiles) -> None:
    """Refuse a file that is read as one example and looks like one for another task: a table that is no CoNLL file."""
    likely = guess_task(files.train, files.columns)
    if likely != name:
        layout = ", such as CoNLL: a word and its label a line, a blank line after a sentence"
        raise RequestError(
            f"{files.train} is one example as '{name}' reads it, and looks like a file for '{likely}' "
            f"({TASKS[likely].summary}); choose that task, or give a file for '{name}'"
            f"{layout if TASKS[name].word_level else ''}"
        )


def hold_out(
    examples: Sequence[Example], seed: int, *, labeled: bool = False, share: float = HELD_OUT_SHARE
) -> tuple[list[Example], list[Example]]:
    """(training examples, held-out examples): a random share is held out, but never the last example of a label.

    Where each example has one label, the share is the same for every label, up to rounding.
    """
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(len(examples)).tolist()
    if labeled and all(len(example.names) == 1 for example in examples):
        order = _evenly_by_label(order, [example.names[0] for example in examples])
    held_out = set(order[: max(1, round(share * len(examples)))])
    if labeled:
        train_labels = set(count_labels([example for n, example in enumerate(examples) if n not in held_out]))
        for number in sorted(held_out):
            labels = set(examples[number].names)
            if not labels <= train_labels:
                held_out.remove(number)
                train_labels |= labels
    train = [example for number, example in enumerate(examples) if number not in held_out]
    return train, [examples[number] for number in sorted(held_out)]


def _evenly_by_label(order: Sequence[int], labels: Sequence[str]) -> list[int]:
    """The order with the examples of each label at even distances, so that every part of it has all labels' shares."""
    counts, seen = Counter(labels), Counter[str]()
    position: dict[int, float] = {}
    for number in order:
        position[number] = (seen[labels[number]] + 0.5) / counts[labels[number]]
        seen[labels[number]] += 1
    return sorted(order, key=position.__getitem__)


def loss_settings(task: Task, train: Dataset, settings: FineTuneSettings) -> LossSettings:
    """Label smoothing, and class weights from the label counts of the training data if they are set."""
    smoothing = settings.learning.label_smoothing
    if settings.learning.class_weights == "none":
        return LossSettings(label_smoothing=smoothing)
    weights = task.class_weights(count_labels(train.examples), len(train.examples))
    return LossSettings(label_smoothing=smoothing, class_weights=weights)


def _length_notes(path: Path, dataset: Dataset, task: Task) -> tuple[str, ...]:
    """How many texts were truncated or read in windows."""
    details = [windows[0].detail for windows in dataset.windows]
    seen = [getattr(detail, "seen", detail) for detail in details]
    cut, windowed = sum(text.cut > 0 for text in seen), sum(text.windows > 1 for text in seen)
    kind = next((kind for kind in task.row.length_kinds if kind in WINDOWED_KINDS), None)
    remedy = f"; length={kind} reads whole texts" if kind else ""
    notes = [f"{path.name}: {cut} of {len(seen)} texts are cut to {task.limit} tokens{remedy}"] if cut else []
    return (*notes, f"{path.name}: {windowed} texts are read through windows") if windowed else tuple(notes)
