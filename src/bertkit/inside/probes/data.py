"""The data of probes: sentences with labels from any tagged file, or with trees from CoNLL-U."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

from bertkit.data.examples import TaggedExample
from bertkit.data.tables import Columns, ending
from bertkit.errors import RequestError
from bertkit.inside.probes.linear import LinearSettings
from bertkit.inside.probes.structural import MAX_WORDS, StructureSettings
from bertkit.inside.probes.tree_files import Tree, read_trees
from bertkit.inside.probes.word_vectors import PIECES, ReadCounts
from bertkit.report.page import JsonResult
from bertkit.settings import pick
from bertkit.tasks.read import read_examples

WHATS = {
    "pos": "parts of speech",
    "ner": "names",
    "arcs": "relations between words and their heads",
    "structure": "the whole tree",
}
MAX_SEED = 2**63 - 1
HELD_OUT_EVERY = 5  # of a single file, one sentence in five is held out
Probed: TypeAlias = TaggedExample | Tree
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """What is probed, and how probes are trained."""

    what: str = "pos"
    pieces: str = "mean"  # the vector of a word with several pieces: their mean, the first or the last
    column: str | None = None  # of the labels; None: UPOS, or the last column
    sentences: int | None = None  # maximum number of training sentences; None: all
    rank: int = StructureSettings.rank  # of the structural probe
    epochs: int = LinearSettings.epochs
    seed: int = 0

    def __post_init__(self) -> None:
        pick(WHATS, self.what, "probe")
        pick(PIECES, self.pieces, "way to join pieces:")
        for name in ("sentences", "rank", "epochs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RequestError(f"{name}={value} must be 1 or more")
        if not 0 <= self.seed <= MAX_SEED:
            raise RequestError(f"seed={self.seed} must be from 0 to {MAX_SEED}")
        if self.column is not None and self.what in ("arcs", "structure"):
            raise RequestError(
                f"column={self.column} goes with pos and ner; {self.what} reads a CoNLL-U file's own columns"
            )


@dataclass(frozen=True, kw_only=True)
class ProbeReport(JsonResult):
    """What every probe reports besides its scores."""

    what: str
    counts: dict[str, ReadCounts] = field(default_factory=dict)  # train, test
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProbeData:
    """Training and test sentences, and notes on how they were chosen."""

    train: list[Probed]
    test: list[Probed]
    notes: tuple[str, ...] = ()


def read_probe_files(files: Sequence[Path], settings: ProbeSettings) -> ProbeData:
    """Training data from all files but the last, test data from the last; of a single file, the last fifth."""
    if not files:
        raise RequestError("no files were named; name one to train on and one to test on")
    parts = [_read(Path(file), settings) for file in files]
    notes = []
    if len(parts) == 1:
        [sentences] = parts
        held_out = len(sentences) // HELD_OUT_EVERY
        if not held_out:
            raise RequestError(
                f"{files[0]} has {len(sentences)} sentences, too few to hold out a fifth; name a second file"
            )
        parts = [sentences[:-held_out], sentences[-held_out:]]
        notes.append(f"the last {held_out:,} of {len(sentences):,} sentences are held out")
    train = [sentence for part in parts[:-1] for sentence in part]
    if settings.sentences is not None and settings.sentences < len(train):
        notes.append(f"trained on {settings.sentences:,} of {len(train):,} sentences, drawn by seed {settings.seed}")
        train = _sample(train, settings.sentences, settings.seed)
    if settings.what != "structure":
        return ProbeData(train, parts[-1], tuple(notes))
    return _of_usable_length(ProbeData(train, parts[-1], tuple(notes)), files[-1])


def _read(path: Path, settings: ProbeSettings) -> list[Probed]:
    if settings.what in ("arcs", "structure"):
        return list(read_trees(path))
    if settings.what == "ner" and settings.column is None and ending(path) == ".conllu":
        raise RequestError(
            f"{path}: CoNLL-U has no column for names; give a column file, or name a column: --column xpos"
        )
    examples = read_examples("tag", path, Columns(label=settings.column)).examples
    return [example for example in examples if isinstance(example, TaggedExample)]


def _sample(sentences: Sequence[Item], count: int, seed: int) -> list[Item]:
    """A random sample, in the original order."""
    chosen = np.sort(np.random.default_rng(seed).permutation(len(sentences))[:count])
    return [sentences[number] for number in chosen]


def _of_usable_length(data: ProbeData, path: Path) -> ProbeData:
    """The sentences of 2 to MAX_WORDS words: the memory for distances is quadratic in the number of words."""
    train, test = (
        [sentence for sentence in part if 2 <= len(sentence.words) <= MAX_WORDS] for part in (data.train, data.test)
    )
    notes = list(data.notes)
    for name, before, after in (("train on", data.train, train), ("test on", data.test, test)):
        if len(after) < len(before):
            lengths = f"of one word or over {MAX_WORDS}"
            notes.append(f"{len(before) - len(after):,} sentences {lengths} left out of {len(before):,} to {name}")
    if not train or not test:
        raise RequestError(f"{path}: no sentence of 2 to {MAX_WORDS} words to {'test on' if train else 'train on'}")
    return ProbeData(train, test, tuple(notes))
