"""Text → counts of words, in bounded memory for a corpus of any size.

The text is split at white space into chunks, which C code counts; the exact word split then runs once for each
distinct chunk. When the table is full, it is written to disk as a sorted run; the runs are merged at the end. A run
is a UTF-8 file of `word TAB count` lines in code point order, so that separate counts can be merged, too.
"""

import heapq
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from bertkit.files import whole_file
from bertkit.text.corpus import CorpusReport, read_documents
from bertkit.text.sentences import split_sentences
from bertkit.text.wordpiece import basic_words

WORDS_IN_MEMORY = 2_000_000  # about 150 bytes each in a Python dictionary, 300 MB in total
CHECK_EVERY = 8_000_000  # characters between two checks of the size of the chunk table
MAX_WORD = 100  # characters; WordPiece makes longer words [UNK], so they are not counted
MAX_RUNS = 64  # files open at once

WordCount = tuple[str, int]

# Python's str.split splits at these; BERT drops them as control characters, which joins the text around them.
JOINING_SPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
# For ASCII without control characters, basic_words splits the same way.
ASCII_WORDS = re.compile(r"[0-9A-Za-z]+|[^\x00-\x200-9A-Za-z\x7f]")


@dataclass(frozen=True)
class WordCounts:
    """The most frequent words with their counts; rare words may be left out to bound the memory."""

    counts: dict[str, int]
    unique: int  # distinct words, including those left out
    total: int  # words, including those left out
    least: int  # words rarer than this were left out


@dataclass(frozen=True)
class CorpusCounts:
    """The counts of one pass over a corpus; a sentence's length is in words separated by white space."""

    words: WordCounts
    sentences_by_length: dict[int, int]
    report: CorpusReport


def count_corpus(
    paths: Sequence[Path | str] | Path,
    *,
    lowercase: bool,
    room: int = WORDS_IN_MEMORY,
    watch: Callable[[int], None] | None = None,
) -> CorpusCounts:
    """Count the words and sentences of a corpus; `watch` is called with the bytes on disk read so far."""
    report = CorpusReport(sentences=0, words=0)
    lengths: Counter[int] = Counter()
    documents = read_documents(paths, report=report)
    with tempfile.TemporaryDirectory(prefix="bertkit-words-") as folder:
        counter = WordCounter(Path(folder), lowercase=lowercase, room=room)
        for document in documents:
            for paragraph in document.paragraphs:
                lengths.update(counter.add(paragraph[start:end]) for start, end in split_sentences(paragraph))
            if watch:
                watch(report.bytes)
        words = counter.result()
    report.sentences = lengths.total()
    report.words = sum(length * count for length, count in lengths.items())
    report.unique_words = words.unique
    if counter.too_long:
        reason = f"word over {MAX_WORD} characters, left out of the vocabulary"
        report.note(reason, f"begins {counter.first_long[:20]!r}", counter.too_long)
    return CorpusCounts(words, dict(lengths), report)


class WordCounter:
    """Counts words; what does not fit in memory is written to `folder` in sorted runs."""

    def __init__(self, folder: Path, *, lowercase: bool, room: int = WORDS_IN_MEMORY) -> None:
        self.folder = folder
        self.lowercase = lowercase
        self.room = room
        self.too_long = 0
        self.first_long = ""
        self._chunks: Counter[str] = Counter()
        self._words: Counter[str] = Counter()
        self._unchecked = 0
        self._runs: list[Path] = []

    def add(self, text: str) -> int:
        """Count the words of a text, and return the number of chunks that white space splits it into."""
        chunks = text.split()
        # With such characters only a plain space separates words in both splits.
        self._chunks.update(text.split(" ") if JOINING_SPACE.search(text) else chunks)
        self._unchecked += len(text)
        if self._unchecked > CHECK_EVERY:
            self._unchecked = 0
            self._make_room()
        return len(chunks)

    def result(self) -> WordCounts:
        """The counts of all texts; over `room` words, the rarest are left out."""
        self._fold()
        if not self._runs and len(self._words) <= self.room:
            return WordCounts(dict(self._words), len(self._words), self._words.total(), 1)
        self._spill()
        self._merge_runs()
        [run] = self._runs
        words_by_count = Counter(count for _, count in read_run(run))
        least = _least_count(words_by_count, self.room)
        kept = {word: count for word, count in read_run(run) if count >= least}
        total = sum(count * words for count, words in words_by_count.items())
        return WordCounts(kept, words_by_count.total(), total, least)

    def _make_room(self) -> None:
        # Long chunks (text without spaces) fill memory with few entries, so characters count, too.
        if len(self._chunks) + sum(map(len, self._chunks)) // 50 > self.room:
            self._fold()
        if len(self._words) > self.room:
            self._spill()
        if len(self._runs) >= MAX_RUNS:
            self._merge_runs()

    def _fold(self) -> None:
        """Split the chunks into words, and add their counts."""
        words = self._words
        for chunk, count in self._chunks.items():
            for word in split_chunk(chunk, lowercase=self.lowercase):
                if len(word) <= MAX_WORD:
                    words[word] += count
                else:
                    self.too_long += count
                    self.first_long = self.first_long or word
        self._chunks = Counter()

    def _spill(self) -> None:
        run = self.folder / f"run-{len(self._runs)}.tsv"
        write_run(run, sorted(self._words.items()))
        self._runs.append(run)
        self._words = Counter()

    def _merge_runs(self) -> None:
        merged = self.folder / "merged.tsv"
        write_run(merged, merge_runs(map(read_run, self._runs)))
        for run in self._runs:
            run.unlink()
        self._runs = [merged.rename(self.folder / "run-0.tsv")]


def split_chunk(chunk: str, *, lowercase: bool) -> list[str]:
    """The words of a text, as `basic_words` splits it; faster for ASCII."""
    if chunk.isascii():
        if chunk.isalnum():
            return [chunk.lower() if lowercase else chunk]
        if chunk.isprintable():
            return ASCII_WORDS.findall(chunk.lower() if lowercase else chunk)
    return [word.text for word in basic_words(chunk, lowercase=lowercase)]


def write_run(path: Path, counts: Iterable[WordCount]) -> None:
    """Write words and counts, which are sorted by word."""
    with whole_file(path) as draft, draft.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{word}\t{count}\n" for word, count in counts)


def read_run(path: Path) -> Iterator[WordCount]:
    """Words and counts of one run, sorted by word."""
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            word, _, count = line.rpartition("\t")
            yield word, int(count)


def merge_runs(runs: Iterable[Iterator[WordCount]]) -> Iterator[WordCount]:
    """One sorted stream from several, with the counts of equal words added."""
    for word, equal in groupby(heapq.merge(*runs), key=itemgetter(0)):
        yield word, sum(count for _, count in equal)


def _least_count(words_by_count: Counter[int], room: int) -> int:
    """The smallest count such that at most `room` words have that count or a larger one."""
    least, fitting = max(words_by_count, default=0) + 1, 0
    for count in sorted(words_by_count, reverse=True):
        fitting += words_by_count[count]
        if fitting > room:
            break
        least = count
    return least
