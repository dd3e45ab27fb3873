"""The uses of a word: the sentences that contain it, its position, and its sense, if labeled."""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertkit.data.columns import first_present
from bertkit.data.tables import TABLE_ENDINGS, Columns, Table, ending, open_table, text_cell
from bertkit.errors import RequestError
from bertkit.progress import ShowProgress, silent
from bertkit.text.corpus import CorpusReport, corpus_files, corpus_size, read_documents
from bertkit.text.sentences import split_sentences

MIN_USES = 3  # for a map
MAX_USES = 1000  # of more, a random sample is used
MAX_CHARACTERS = 2000  # of a sentence; longer ones are cut around the word
SENSE_COLUMNS = ("sense", "label", "meaning", "sense_id")
TEXT_COLUMNS = ("text", "sentence", "context")


@dataclass(frozen=True)
class Use:
    """One use: `sentence[start:end]` is the word."""

    sentence: str
    start: int
    end: int
    source: str  # the file and the line
    sense: str | None = None


def read_uses(
    word: str, paths: Sequence[Path | str], *, most: int = MAX_USES, seed: int = 1, show: ShowProgress = silent
) -> list[Use]:
    """The uses of a word in text files, or in tables with a column of senses; one use per sentence."""
    pattern = word_pattern(word)
    files = corpus_files(paths)
    tables = [file for file in files if ending(file) in TABLE_ENDINGS and first_present(_open(file), SENSE_COLUMNS)]
    if tables and len(tables) != len(files):
        raise RequestError(f"{tables[0]} has a column of senses and other files have none; name one kind alone")
    candidates = _labeled(word, pattern, tables) if tables else _in_texts(word, pattern, files, show)
    uses = _sample(_unique_sentences(candidates), most, seed)
    if len(uses) < MIN_USES:
        often = ["never occurs in", "stands in 1 sentence of", "stands in 2 different sentences of"][len(uses)]
        where = f"{files[0]}" + (f" and {len(files) - 1} more" if len(files) > 1 else "")
        raise RequestError(f"'{word}' {often} {where}; a map needs {MIN_USES} different sentences with it")
    return uses


def word_pattern(word: str) -> re.Pattern[str]:
    """A pattern for the whole word, ignoring case."""
    if not any(character.isalnum() for character in word):
        raise RequestError(f"'{word}' is no word; name one with a letter or digit in it")
    return re.compile(rf"(?<!\w){re.escape(word.strip())}(?!\w)", re.IGNORECASE)


def _in_texts(word: str, pattern: re.Pattern[str], files: list[Path], show: ShowProgress) -> Iterator[Use]:
    report = CorpusReport()
    with show(f"looking for '{word}'", corpus_size(files)) as meter:
        for document in read_documents(files, report=report):
            for paragraph in document.paragraphs:
                if pattern.search(paragraph):  # most paragraphs need not be split
                    yield from _in_paragraph(pattern, paragraph, f"{document.source}, line {document.line}")
            meter.update(report.bytes, {})


def _in_paragraph(pattern: re.Pattern[str], paragraph: str, source: str) -> Iterator[Use]:
    for start, end in split_sentences(paragraph):
        if match := pattern.search(paragraph, start, end):
            yield _use(paragraph[start:end], match.start() - start, match.end() - start, source)


def _use(sentence: str, start: int, end: int, source: str, sense: str | None = None) -> Use:
    """A use; of a very long sentence, the part around the word."""
    if len(sentence) > MAX_CHARACTERS:
        first = max(0, start - MAX_CHARACTERS // 2)
        sentence, start, end = sentence[first : first + MAX_CHARACTERS], start - first, end - first
    return Use(sentence, start, end, source, sense)


def _open(file: Path) -> Table:
    return open_table(file, Columns())


def _labeled(word: str, pattern: re.Pattern[str], files: list[Path]) -> Iterator[Use]:
    for file in files:
        table = _open(file)
        text, sense = first_present(table, TEXT_COLUMNS), first_present(table, SENSE_COLUMNS)
        if text is None or sense is None:
            has = ", ".join(table.names[:8])
            raise RequestError(f"{file} has no column of texts ({', '.join(TEXT_COLUMNS)}); it has: {has}")
        yield from _rows(word, pattern, table, text, sense)


def _rows(word: str, pattern: re.Pattern[str], table: Table, text: str, sense: str) -> Iterator[Use]:
    for row in table.rows:
        if row.fault:
            raise RequestError(row.fault)
        sentence, label = text_cell(row, text), text_cell(row, sense)
        match = pattern.search(sentence)
        if match is None:
            raise RequestError(
                f"{row.location}: the text has no word '{word}'; every text of a table with a "
                f"column '{sense}' must have it: remove the row, or give plain text (.txt)"
            )
        if not label.strip():
            raise RequestError(f"{row.location}: '{sense}' is empty; write the sense or remove the row")
        yield _use(sentence, *match.span(), str(row.location), label.strip())


def _unique_sentences(uses: Iterable[Use]) -> Iterator[Use]:
    """One use per sentence: repeated sentences would be each other's nearest neighbors."""
    seen: set[int] = set()
    for use in uses:
        key = hash(use.sentence)
        if key not in seen:
            seen.add(key)
            yield use


def _sample(uses: Iterable[Use], most: int, seed: int) -> list[Use]:
    """A uniform sample of at most `most` uses, in the order of the text (reservoir sampling)."""
    if most < MIN_USES:
        raise RequestError(f"most={most} must be at least {MIN_USES}")
    rng, kept = random.Random(seed), list[tuple[int, Use]]()
    for number, use in enumerate(uses):
        if len(kept) < most:
            kept.append((number, use))
        elif (index := rng.randrange(number + 1)) < most:
            kept[index] = (number, use)
    return [use for _, use in sorted(kept, key=lambda pair: pair[0])]
