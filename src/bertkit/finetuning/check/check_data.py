"""`bertkit check` of labeled files: a summary, faults that stop training, and things worth knowing."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.examples import Example, WordsExample
from bertkit.data.tables import Columns, NoLabels
from bertkit.finetuning.check.faults import Finding as Finding
from bertkit.finetuning.check.faults import (
    conflicts,
    corrupted_texts,
    duplicates,
    folded,
    invalid_tags,
    leaks,
    shared_passages,
)
from bertkit.tasks.read import ExampleFile, columns_for_dev, guess_task, read_examples, scan_examples
from bertkit.tasks.table import TASKS
from bertkit.text.tokenizer import Tokenizer

MIN_EXAMPLES = 5  # of a label; with fewer it can hardly be learned
MAX_IMBALANCE = 10  # ratio of the most frequent label to the rarest
MAX_LISTED_LABELS = 12  # in the printed report
TOKENIZED_AT_ONCE = 1000  # examples, which bounds the memory


@dataclass(frozen=True)
class TokenLengths:
    """The lengths of examples in tokens, with special tokens."""

    mean: float
    median: int
    most: int  # 95th percentile
    longest: int
    limit: int  # of the model
    over: int  # number of longer examples


@dataclass(frozen=True)
class FileSummary:
    """The number of examples and labels of a file."""

    file: str
    said: str  # one line with what was guessed about the file
    examples: int
    labels: dict[str, int]  # counts of labels; for `tag` of tags, for `choose` of the numbers of correct choices
    numbers: tuple[float, float, float] | None = None  # regress: minimum, mean, maximum
    lengths: TokenLengths | None = None


@dataclass(frozen=True)
class DataReport:
    """`stops` are faults that stop training or make its scores meaningless; `notes` are worth knowing."""

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
    """Read a training file, and a dev file if there is one, and list their problems.

    Invalid rows are listed; a file that cannot be read at all raises RequestError. With a tokenizer, lengths are
    compared with `limit` tokens.
    """
    task = task or guess_task(Path(train), columns)
    stops: list[Finding] = []
    read = [_read(task, Path(train), columns, stops)]
    if dev is not None:
        dev_columns = columns_for_dev(Path(train), Path(dev), read[0], columns)
        read.append(_read(task, Path(dev), dev_columns, stops, read[0].names))
    notes: list[Finding] = []
    for file in read:
        stops += invalid_tags(file.examples)
        notes += [*duplicates(file.examples), *conflicts(file.examples), *corrupted_texts(file.examples)]
    files = tuple(_summary(path, file, tokenizer, limit) for path, file in zip((train, dev), read, strict=False))
    for summary in files:
        notes += [*_long_texts(summary)]
    stops += _too_few_labels(task, files[0])
    notes += _uneven_labels(task, files[0])
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
    blocks = (examples[i : i + TOKENIZED_AT_ONCE] for i in range(0, len(examples), TOKENIZED_AT_ONCE))
    counts = np.array([count for block in blocks for count in token_counts(block, tokenizer)])
    median, most = (int(value) for value in np.quantile(counts, (0.5, 0.95), method="lower"))
    mean = round(float(counts.mean()), 1)
    return TokenLengths(mean, median, most, int(counts.max()), limit, int((counts > limit).sum()))


def token_counts(examples: Sequence[Example], tokenizer: Tokenizer) -> list[int]:
    """The number of tokens of each example with special tokens; of the longest sequence if it has several."""
    sentences = [example.words for example in examples if isinstance(example, WordsExample)]
    if len(sentences) == len(examples):
        return [len(encoding) for encoding in tokenizer.encode_words_batch(sentences)]
    sequences = [sequence for example in examples for sequence in example.sequences]
    firsts = tokenizer.count([first for first, _ in sequences])
    seconds = tokenizer.count([second or "" for _, second in sequences])
    # A pair has fewer special tokens than two texts.
    saved = 2 * len(tokenizer.encode("")) - len(tokenizer.encode("", ""))
    rows = zip(sequences, firsts, seconds, strict=True)
    lengths = iter([a if second is None else a + b - saved for (_, second), a, b in rows])
    return [max(islice(lengths, len(example.sequences))) for example in examples]


def _long_texts(summary: FileSummary) -> Iterator[Finding]:
    if summary.lengths and summary.lengths.over:
        share = summary.lengths.over / summary.examples
        what = f"{share:.1%} of {summary.file}; the length policy decides what is read of them"
        yield Finding(f"examples over {summary.lengths.limit} tokens", summary.lengths.over, what)


def _too_few_labels(task: str, train: FileSummary) -> Iterator[Finding]:
    row = TASKS[task]
    if row.labeled and not row.word_level and 0 < len(train.labels) < row.min_labels:
        what = f"every row of {train.file} has the label '{next(iter(train.labels))}'; there is nothing to learn"
        yield Finding("one label only", 0, what)
    if row.labeled and not row.exclusive and not train.labels:
        yield Finding("no labels", 0, f"no row of {train.file} has a label; there is nothing to learn")
    if train.numbers and train.numbers[0] == train.numbers[2]:
        yield Finding("one number only", 0, f"every row of {train.file} has {train.numbers[0]:g}")


def _uneven_labels(task: str, train: FileSummary) -> Iterator[Finding]:
    """Labels that are rare, imbalanced, or equal except for case and spaces."""
    if not TASKS[task].labeled or TASKS[task].word_level or len(train.labels) < 2:
        return
    (common, highest), *_, (rare, lowest) = train.labels.items()
    if highest >= MAX_IMBALANCE * lowest:
        what = f"'{common}' has {highest:,} rows, '{rare}' {lowest:,}; class_weights=balanced evens that out"
        yield Finding("uneven labels", 0, what)
    if scarce := [label for label, count in train.labels.items() if count < MIN_EXAMPLES]:
        what = f"{', '.join(map(repr, scarce[:5]))} in {train.file}; too few to learn or to measure"
        yield Finding(f"labels with under {MIN_EXAMPLES} rows", len(scarce), what)
    for name, count in Counter(map(folded, train.labels)).items():
        if count > 1:
            yield Finding("labels that differ in case or spaces only", count, f"'{name}' in {train.file}")


def _unknown_labels(task: str, files: Sequence[FileSummary]) -> Iterator[Finding]:
    train, dev = files
    if TASKS[task].labeled and train.labels:
        missing = [label for label in dev.labels if label not in train.labels]
        if missing:
            what = f"{', '.join(map(repr, missing[:5]))} in {dev.file}; a model predicts only labels of train"
            yield Finding("labels in dev that are not in train", len(missing), what)


def _lines(report: DataReport) -> Iterator[str]:
    yield f"{'task':10}{report.task}"
    for summary in report.files:
        yield f"{'file':10}{summary.said}"
        if summary.numbers:
            minimum, mean, maximum = summary.numbers
            yield f"{'numbers':10}{minimum:g} to {maximum:g}, mean {mean:.3g}"
        if summary.labels:
            yield f"{'labels':10}{', '.join(_label_counts(summary.labels))}"
        if summary.lengths:
            size = summary.lengths
            lengths = f"mean {size.mean}, median {size.median}, 95 % to {size.most}, most {size.longest}"
            yield f"{'tokens':10}{lengths}; {size.over:,} over {size.limit}"
    yield from (f"note: {note}" for note in report.notes)
    yield from (f"stop: {stop}" for stop in report.stops)


def _label_counts(labels: dict[str, int]) -> Iterator[str]:
    total = sum(labels.values())
    for label, count in list(labels.items())[:MAX_LISTED_LABELS]:
        yield f"{label} {count:,} ({count / total:.1%})"
    if len(labels) > MAX_LISTED_LABELS:
        yield f"and {len(labels) - MAX_LISTED_LABELS} more"
