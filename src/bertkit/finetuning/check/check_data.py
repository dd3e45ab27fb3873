"""What training would trip over in labeled files: what `bertkit check` says of them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.examples import Example, WordsExample
from bertkit.data.tables import Columns, NoLabels
from bertkit.finetuning.check.faults import Finding as Finding
from bertkit.finetuning.check.faults import broken_tags, conflicts, duplicates, leaks, shared_passages, spoiled_texts
from bertkit.tasks.read import ExampleFile, columns_for_dev, guess_task, read_examples, scan_examples
from bertkit.tasks.table import TASKS
from bertkit.text.tokenizer import Tokenizer

RARE = 5  # examples of a label, under which it can hardly be learned
UNEVEN = 10  # times as many examples of the commonest label as of the rarest
SHOWN = 12  # labels in the printed report
AT_ONCE = 1000  # examples tokenized at a time


@dataclass(frozen=True)
class TokenLengths:
    """How long the examples are in tokens, [CLS] and [SEP] included."""

    mean: float
    median: int
    most: int  # 95 % are no longer than this
    longest: int
    limit: int  # what the model reads at once
    over: int  # examples that are longer


@dataclass(frozen=True)
class FileSummary:
    """One file: what was guessed, how much is in it, how often each label."""

    file: str
    said: str
    examples: int
    labels: dict[str, int]  # of the tag and choose tasks: tags, and numbers of choices
    numbers: tuple[float, float, float] | None = None  # regress: least, mean, most
    lengths: TokenLengths | None = None


@dataclass(frozen=True)
class DataReport:
    """`stops` keep training from starting or make its numbers worthless, `notes` are worth knowing."""

    task: str
    files: tuple[FileSummary, ...]
    stops: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def to_json(self) -> dict[str, Any]:
        """The report as plain values for json.dumps."""
        return asdict(self)


def check_data(
    train: Path,
    dev: Path | None = None,
    *,
    task: str | None = None,
    columns: Columns | None = None,
    tokenizer: Tokenizer | None = None,
    limit: int = 512,
) -> DataReport:
    """Read a file, or two that belong together, and list what is wrong with them.

    Rows that cannot be used are listed; a file that cannot be read at all raises. With a tokenizer the lengths
    are counted against `limit` tokens.
    """
    task = task or guess_task(Path(train), columns)
    stops: list[Finding] = []
    read = [_read(task, Path(train), columns, stops)]
    if dev is not None:
        like_train = columns_for_dev(Path(train), Path(dev), read[0], columns)
        read.append(_read(task, Path(dev), like_train, stops, read[0].names))
    notes: list[Finding] = []
    for file in read:
        stops += broken_tags(file.examples)
        notes += [*duplicates(file.examples), *conflicts(file.examples), *spoiled_texts(file.examples)]
    files = tuple(_summary(path, file, tokenizer, limit) for path, file in zip((train, dev), read, strict=False))
    for summary in files:
        notes += [*_long_texts(summary)]
    stops += _one_label(task, files[0])
    notes += _uneven(task, files[0])
    if dev is not None:
        stops += _unknown_labels(task, files)
        notes += [*leaks(read[0].examples, read[1].examples), *shared_passages(read[0].examples, read[1].examples)]
    return DataReport(task, files, tuple(stops), tuple(notes))


def _read(
    task: str, path: Path, columns: Columns | None, stops: list[Finding], names: tuple[str, ...] | None = None
) -> ExampleFile:
    faults: list[str] = []
    try:
        read = scan_examples(task, path, columns, faults, names=names)
    except NoLabels as error:
        stops.append(Finding("no labels", 0, str(error)))
        return read_examples(task, path, columns, labeled=False)
    if faults:
        stops.append(Finding("rows that cannot be used", len(faults), faults[0], tuple(faults[1:6])))
    return read


def _summary(path: Path | None, read: ExampleFile, tokenizer: Tokenizer | None, limit: int) -> FileSummary:
    numbers = [number for example in read.examples for number in example.numbers]
    spread = (min(numbers), sum(numbers) / len(numbers), max(numbers)) if numbers else None
    lengths = _lengths(read.examples, tokenizer, limit) if tokenizer and read.examples else None
    counts = dict(Counter(name for example in read.examples for name in example.counted).most_common())
    return FileSummary(str(path), read.summary, len(read.examples), counts, spread, lengths)


def _lengths(examples: Sequence[Example], tokenizer: Tokenizer, limit: int) -> TokenLengths:
    counted = np.array(
        [n for at in range(0, len(examples), AT_ONCE) for n in token_counts(examples[at : at + AT_ONCE], tokenizer)]
    )
    median, most = (int(value) for value in np.quantile(counted, (0.5, 0.95), method="lower"))
    mean = round(float(counted.mean()), 1)
    return TokenLengths(mean, median, most, int(counted.max()), limit, int((counted > limit).sum()))


def token_counts(examples: Sequence[Example], tokenizer: Tokenizer) -> list[int]:
    """Tokens of each example, [CLS] and [SEP] included; of a choice the longest."""
    sentences = [example.words for example in examples if isinstance(example, WordsExample)]
    if len(sentences) == len(examples):
        return [len(encoding) for encoding in tokenizer.encode_words_batch(sentences)]
    pairs = [example.sequences for example in examples]
    firsts = tokenizer.count([first for own in pairs for first, _ in own])
    seconds = tokenizer.count([second or "" for own in pairs for _, second in own])
    alone = len(tokenizer.encode(""))
    shared = 2 * alone - len(tokenizer.encode("", ""))  # special tokens that a pair does not need twice
    counts, at = [], 0
    for own in pairs:
        sizes = [
            firsts[at + n] if own[n][1] is None else firsts[at + n] + seconds[at + n] - shared for n in range(len(own))
        ]
        counts.append(max(sizes))
        at += len(own)
    return counts


def _long_texts(summary: FileSummary) -> Iterator[Finding]:
    if summary.lengths and summary.lengths.over:
        share = summary.lengths.over / summary.examples
        what = f"{share:.1%} of {summary.file}; the length policy decides what is read of them"
        yield Finding(f"examples over {summary.lengths.limit} tokens", summary.lengths.over, what)


def _one_label(task: str, train: FileSummary) -> Iterator[Finding]:
    row = TASKS[task]
    if row.labeled and not row.word_level and 0 < len(train.labels) < row.least_labels:
        what = f"every row of {train.file} has the label '{next(iter(train.labels))}'; there is nothing to learn"
        yield Finding("one label only", 0, what)
    if row.labeled and not row.exclusive and not train.labels:
        yield Finding("no labels", 0, f"no row of {train.file} has a label; there is nothing to learn")
    if train.numbers and train.numbers[0] == train.numbers[2]:
        yield Finding("one number only", 0, f"every row of {train.file} has {train.numbers[0]:g}")


def _uneven(task: str, train: FileSummary) -> Iterator[Finding]:
    """Labels that are rare, far from even, or the same but for case and spaces."""
    if not TASKS[task].labeled or TASKS[task].word_level or len(train.labels) < 2:
        return
    (common, many), (rare, few) = next(iter(train.labels.items())), list(train.labels.items())[-1]
    if many >= UNEVEN * few:
        what = f"'{common}' has {many:,} rows, '{rare}' {few:,}; class_weights=balanced evens that out"
        yield Finding("uneven labels", 0, what)
    if scarce := [label for label, count in train.labels.items() if count < RARE]:
        what = f"{', '.join(map(repr, scarce[:5]))} in {train.file}; too few to learn or to measure"
        yield Finding(f"labels with under {RARE} rows", len(scarce), what)
    folded = Counter(" ".join(label.casefold().split()) for label in train.labels)
    for name, count in folded.items():
        if count > 1:
            yield Finding("labels that differ in case or spaces only", count, f"'{name}' in {train.file}")


def _unknown_labels(task: str, files: Sequence[FileSummary]) -> Iterator[Finding]:
    train, dev = files
    if TASKS[task].labeled and train.labels:
        missing = [label for label in dev.labels if label not in train.labels]
        if missing:
            what = f"{', '.join(map(repr, missing[:5]))} in {dev.file}; a model predicts only labels of train"
            yield Finding("labels in dev that train has not", len(missing), what)


def _lines(report: DataReport) -> Iterator[str]:
    yield f"{'task':10}{report.task}"
    for summary in report.files:
        yield f"{'file':10}{summary.said}"
        if summary.numbers:
            least, mean, most = summary.numbers
            yield f"{'numbers':10}{least:g} to {most:g}, mean {mean:.3g}"
        if summary.labels:
            yield f"{'labels':10}{', '.join(_shares(summary.labels))}"
        if summary.lengths:
            size = summary.lengths
            spread = f"mean {size.mean}, median {size.median}, 95 % to {size.most}, most {size.longest}"
            yield f"{'tokens':10}{spread}; {size.over:,} over {size.limit}"
    yield from (f"note: {note}" for note in report.notes)
    yield from (f"stop: {stop}" for stop in report.stops)


def _shares(labels: dict[str, int]) -> Iterator[str]:
    total = sum(labels.values())
    for label, count in list(labels.items())[:SHOWN]:
        yield f"{label} {count:,} ({count / total:.1%})"
    if len(labels) > SHOWN:
        yield f"and {len(labels) - SHOWN} more"
