"""Files to texts that vectors can learn from: alone, in pairs, or in pairs with a score."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertkit.data.examples import TextExample
from bertkit.data.tables import TABLE_ENDINGS, Columns, NoLabels, ending
from bertkit.errors import RequestError
from bertkit.tasks.read import read_examples
from bertkit.text.corpus import CorpusReport, Document, corpus_files, is_jsonl, read_documents
from bertkit.text.sentences import split_sentences

TABLES = tuple(kind for kind in TABLE_ENDINGS if kind not in (".txt", ".jsonl"))
LEAST_WORDS = 4  # of a sentence from a corpus: what is shorter is a heading or a shout
MOST_CHARACTERS = 2000  # of one: what is longer has lost its stops

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class TextRows:
    """Texts, each of them once, and rows of one or two of them by number."""

    texts: Sequence[str]
    rows: Numbers  # N 1, or N 2
    scores: NDArray[np.float32] | None = None  # N
    kind: str = "twins"  # twins, neighbors, pairs or scores
    said: str = ""

    def __len__(self) -> int:
        return len(self.rows)


@dataclass
class _Collected:
    """Texts as they come in: equal ones get the same number."""

    numbers: dict[str, int] = field(default_factory=dict)
    rows: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, *texts: str) -> None:
        self.rows.append(tuple(self.numbers.setdefault(text, len(self.numbers)) for text in texts))

    def made(self, kind: str, said: str, scores: Sequence[float] | None = None) -> TextRows:
        known = None if scores is None else np.array(scores, dtype=np.float32)
        return TextRows(list(self.numbers), np.array(self.rows, dtype=np.int64), known, kind, said)


def read_texts(
    paths: Sequence[Path], columns: Columns | None = None, *, kind: str = "auto", most: int | None = None
) -> TextRows:
    """What the files hold: a table of pairs or scored pairs, or a corpus.

    `kind` asks for one of twins, neighbors, pairs, scores; auto takes the most telling that is there. A corpus gives
    at most `most` texts, an equal share from each file.
    """
    if len(paths) == 1 and _is_table(paths[0], columns or Columns()):
        found = read_pairs(paths[0], columns, scored={"scores": True, "pairs": False}.get(kind))
    else:
        found = read_corpus(paths, kind=kind, most=most)
    if kind not in ("auto", found.kind):
        raise RequestError(f"{paths[0]} gives {found.kind}, not {kind}; leave objective= out, or give another file")
    if len(found) < 2:
        raise RequestError(f"{paths[0]} has {len(found)} texts or pairs; vectors are learned from many, give more")
    return found


def read_pairs(path: Path, columns: Columns | None = None, *, scored: bool | None = None) -> TextRows:
    """Two columns of texts and, unless `scored` is False, a column of numbers; None: if there is one."""
    try:
        file = read_examples("regress", path, columns, labeled=scored is not False)
    except NoLabels:
        if scored:
            raise
        file = read_examples("regress", path, columns, labeled=False)
    collected, scores = _Collected(), []
    for example in file.examples:
        assert isinstance(example, TextExample)
        if example.pair is None:
            raise RequestError(f"{example.place}: a pair has two texts; name the second column with pair=...")
        collected.add(example.text, example.pair)
        scores += [example.label] if isinstance(example.label, float) else []
    return collected.made("scores" if scores else "pairs", file.summary, scores or None)


def read_corpus(paths: Sequence[Path], *, kind: str = "auto", most: int | None = None) -> TextRows:
    """Neighboring sentences of documents; or the lines of files that hold no documents, each a text."""
    files = corpus_files(paths)
    share = None if most is None else max(2, most // len(files))
    documents = any(_has_documents(file) for file in files) if kind == "auto" else kind == "neighbors"
    collected, left_out = _Collected(), 0
    for file in files:
        added, report = 0, CorpusReport()
        for document in read_documents([file], report=report):
            pairs, short = _neighbors(document) if documents else ([(line,) for line in document.paragraphs], 0)
            left_out += short
            for row in pairs:
                collected.add(*row)
                added += len(row)
            if share is not None and added >= share:
                break
    what = "pairs of neighboring sentences" if documents else "texts, a line each"
    said = f"{', '.join(file.name for file in files[:4])}: {len(collected.rows):,} {what}"
    if documents:
        said += f", {left_out:,} sentences under {LEAST_WORDS} words or over {MOST_CHARACTERS:,} characters left out"
    return collected.made("neighbors" if documents else "twins", said)


def scaled(scores: NDArray[np.float32], path: Path) -> NDArray[np.float32]:
    """Scores from 0 to 1, as cosines of texts are: the least becomes 0, the largest 1."""
    least, largest = float(scores.min()), float(scores.max())
    if least == largest:
        raise RequestError(f"{path}: every pair has the score {least:g}; there is nothing to learn")
    return (scores - least) / (largest - least)


def _is_table(path: Path, columns: Columns) -> bool:
    """By its ending; JSON lines are a table if they have a second text."""
    if not path.is_file() or not is_jsonl(path):
        return path.is_file() and ending(path) in TABLES
    try:
        return read_examples("regress", path, columns, labeled=False).columns.pair is not None
    except RequestError:
        return columns.pair is not None


def _has_documents(file: Path) -> bool:
    """Whether a blank line, or a row of its own, sets documents apart."""
    if is_jsonl(file):
        return True
    report = CorpusReport()
    documents = read_documents([file], report=report)
    return next(documents, None) is not None and next(documents, None) is not None and not report.notes


def _neighbors(document: Document) -> tuple[list[tuple[str, ...]], int]:
    """Sentences that follow each other in a document, each in one pair, and how many could not be used."""
    sentences = list(_sentences(document))
    pairs: list[tuple[str, ...]] = []
    waiting: str | None = None
    for sentence in sentences:
        if sentence is None:  # what stands around it is not next to each other
            waiting = None
        elif waiting is None:
            waiting = sentence
        else:
            pairs.append((waiting, sentence))
            waiting = None
    return pairs, sum(sentence is None for sentence in sentences)


def _sentences(document: Document) -> Iterator[str | None]:
    for paragraph in document.paragraphs:
        for start, end in split_sentences(paragraph):
            sentence = paragraph[start:end]
            usable = len(sentence.split(None, LEAST_WORDS)) >= LEAST_WORDS and len(sentence) <= MOST_CHARACTERS
            yield sentence if usable else None
