"""Reads the training data of embeddings: single texts, pairs with or without negatives, or pairs with scores."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertkit.data.examples import TextExample
from bertkit.data.tables import TABLE_ENDINGS, Columns, Location, NoLabels, Row, checked, ending, open_table
from bertkit.errors import RequestError
from bertkit.tasks.read import read_examples
from bertkit.text.corpus import CorpusReport, Document, corpus_files, is_jsonl, read_documents
from bertkit.text.sentences import split_sentences

TABLE_FILE_ENDINGS = tuple(kind for kind in TABLE_ENDINGS if kind not in (".txt", ".jsonl"))
# A column with a text that does not belong to the first one, or in JSON a list of them.
NEGATIVE_COLUMN = re.compile(r"(hard_)?neg(ative)?s?(_?\d+)?", re.IGNORECASE)
NO_TEXT = -1  # in place of an index, where a row has fewer texts than others
MIN_WORDS = 4  # in a sentence of a corpus: shorter ones are headings or exclamations
MAX_CHARACTERS = 2000  # in a sentence of a corpus: longer ones have no punctuation

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class TextRows:
    """Distinct texts, and rows of them by index: one, a pair, or a pair and its negatives."""

    texts: Sequence[str]
    rows: Numbers  # N 1, N 2 or wider; NO_TEXT where a row has fewer negatives
    scores: NDArray[np.float32] | None = None  # N
    kind: str = "twins"  # twins, neighbors, pairs or scores
    summary: str = ""

    def __len__(self) -> int:
        return len(self.rows)


@dataclass
class _TextRowsBuilder:
    """Builds TextRows from texts one after another: equal texts have the same index."""

    indices: dict[str, int] = field(default_factory=dict)
    rows: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, *texts: str) -> None:
        self.rows.append(tuple(self.indices.setdefault(text, len(self.indices)) for text in texts))

    def finish(self, kind: str, summary: str, scores: Sequence[float] | None = None) -> TextRows:
        values = None if scores is None else np.array(scores, dtype=np.float32)
        width = max(map(len, self.rows), default=0)
        rows = [row + (NO_TEXT,) * (width - len(row)) for row in self.rows]
        return TextRows(list(self.indices), np.array(rows, dtype=np.int64), values, kind, summary)


def read_texts(
    paths: Sequence[Path], columns: Columns | None = None, *, kind: str = "auto", most: int | None = None
) -> TextRows:
    """The rows of a table of pairs or scored pairs, or of a corpus.

    `kind` is one of twins, neighbors, pairs, scores, or auto, by what the files have. A corpus gives at most `most`
    texts, an equal share from each file.
    """
    if len(paths) == 1 and _is_table(paths[0], columns or Columns()):
        rows = read_pairs(paths[0], columns, scored={"scores": True, "pairs": False}.get(kind))
    else:
        rows = read_corpus(paths, kind=kind, most=most)
    if kind not in ("auto", rows.kind):
        raise RequestError(f"{paths[0]} gives {rows.kind}, not {kind}; leave objective= out, or give another file")
    if len(rows) < 2:
        raise RequestError(f"{paths[0]} has {len(rows)} texts or pairs; vectors are learned from many, give more")
    return rows


def read_pairs(path: Path, columns: Columns | None = None, *, scored: bool | None = None) -> TextRows:
    """Pairs from two columns of texts, with scores from a column of numbers; `scored` None: if there is one.

    Where the file has negatives, these are read instead of scores.
    """
    negatives = read_negatives(path, columns or Columns())
    if negatives and scored:
        raise RequestError(f"{path} has negatives, which pairs with scores do not take; leave objective=scores out")
    try:
        file = read_examples("regress", path, columns, labeled=scored is not False and not negatives)
    except NoLabels:
        if scored:
            raise
        file = read_examples("regress", path, columns, labeled=False)
    builder, scores = _TextRowsBuilder(), []
    for example in file.examples:
        assert isinstance(example, TextExample)
        if example.pair is None:
            raise RequestError(f"{example.location}: a pair has two texts; name the second column with pair=...")
        builder.add(example.text, example.pair, *negatives.get(example.location, ()))
        scores += [example.label] if isinstance(example.label, float) else []
    summary = f"{file.summary}, {sum(map(len, negatives.values())):,} negatives" if negatives else file.summary
    return builder.finish("scores" if scores else "pairs", summary, scores or None)


def read_negatives(path: Path, columns: Columns) -> dict[Location, tuple[str, ...]]:
    """The negatives of each row that has some, from columns called negative, negative_2, ... or negatives."""
    if not path.is_file():
        return {}  # said by whoever reads the pairs
    table = open_table(path, columns, labeled=False)
    names = [name for name in table.names if NEGATIVE_COLUMN.fullmatch(name) and name not in astuple(columns)]
    rows = (row for row in table.rows if names and not row.fault)
    found = {row.location: tuple(text for name in names for text in _negative_texts(row, name)) for row in rows}
    return {location: texts for location, texts in found.items() if texts}


def _negative_texts(row: Row, name: str) -> list[str]:
    """The texts of one cell; a row without negatives has an empty cell or none, not an empty list."""
    value = row.values.get(name)
    texts = value if isinstance(value, list) else [] if value is None or value == "" else [value]
    if value == [] or not all(isinstance(text, str) and text.strip() for text in texts):
        raise RequestError(
            f"{row.location}: '{name}' must be a text or a list of texts, none of them empty; "
            "a row without negatives leaves it out"
        )
    return [checked(text, name, row.location) for text in texts]


def read_corpus(paths: Sequence[Path], *, kind: str = "auto", most: int | None = None) -> TextRows:
    """Pairs of neighboring sentences of documents; or single lines, for files without documents."""
    files = corpus_files(paths)
    share = None if most is None else max(2, most // len(files))
    documents = any(_has_documents(file) for file in files) if kind == "auto" else kind == "neighbors"
    builder, left_out = _TextRowsBuilder(), 0
    for file in files:
        added, report = 0, CorpusReport()
        for document in read_documents([file], report=report):
            pairs, short = _neighbors(document) if documents else ([(line,) for line in document.paragraphs], 0)
            left_out += short
            for row in pairs:
                builder.add(*row)
                added += len(row)
            if share is not None and added >= share:
                break
    what = "pairs of neighboring sentences" if documents else "texts, a line each"
    summary = f"{', '.join(file.name for file in files[:4])}: {len(builder.rows):,} {what}"
    if documents:
        summary += f", {left_out:,} sentences under {MIN_WORDS} words or over {MAX_CHARACTERS:,} characters left out"
    return builder.finish("neighbors" if documents else "twins", summary)


def scaled(scores: NDArray[np.float32], path: Path) -> NDArray[np.float32]:
    """Scores scaled linearly from their minimum and maximum to 0 and 1, the usual range of cosines of texts."""
    lowest, highest = float(scores.min()), float(scores.max())
    if lowest == highest:
        raise RequestError(f"{path}: every pair has the score {lowest:g}; there is nothing to learn")
    return (scores - lowest) / (highest - lowest)


def _is_table(path: Path, columns: Columns) -> bool:
    """Whether a file is a table by its ending; JSON lines are one if they have a pair."""
    if not path.is_file() or not is_jsonl(path):
        return path.is_file() and ending(path) in TABLE_FILE_ENDINGS
    try:
        return read_examples("regress", path, columns, labeled=False).columns.pair is not None
    except RequestError:
        return columns.pair is not None


def _has_documents(file: Path) -> bool:
    """Whether a file has several documents: blank lines between them, or JSON lines."""
    if is_jsonl(file):
        return True
    report = CorpusReport()
    documents = read_documents([file], report=report)
    return next(documents, None) is not None and next(documents, None) is not None and not report.notes


def _neighbors(document: Document) -> tuple[list[tuple[str, ...]], int]:
    """(pairs of consecutive sentences, each sentence in one pair; number of sentences that are not usable)."""
    sentences = list(_sentences(document))
    pairs: list[tuple[str, ...]] = []
    first: str | None = None
    for sentence in sentences:
        if sentence is None:  # the sentences before and after it are not neighbors
            first = None
        elif first is None:
            first = sentence
        else:
            pairs.append((first, sentence))
            first = None
    return pairs, sum(sentence is None for sentence in sentences)


def _sentences(document: Document) -> Iterator[str | None]:
    """The sentences of a document; None for one that is too short or too long."""
    for paragraph in document.paragraphs:
        for start, end in split_sentences(paragraph):
            sentence = paragraph[start:end]
            usable = len(sentence.split(None, MIN_WORDS)) >= MIN_WORDS and len(sentence) <= MAX_CHARACTERS
            yield sentence if usable else None
