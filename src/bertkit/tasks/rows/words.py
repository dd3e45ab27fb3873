"""What the tasks on the words of a sentence share: CoNLL and lists of words in files, texts or words in requests."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from bertkit.data.columns import WORDS, choose_text_columns, find, first_known
from bertkit.data.examples import Example, Place, WordsExample
from bertkit.data.formats import TABLE_FORMATS
from bertkit.data.tables import SAMPLE, Columns, Row, Table, cell, checked, ending, lines_of, present_text
from bertkit.data.tagged import WordLabels, tagged_maker
from bertkit.errors import RequestError
from bertkit.tasks.row import Detail, Maker, RequestField, TaskRow, request_place, text_list
from bertkit.tasks.shared.length import LengthPolicy

COLUMN_FILES = tuple(end for row in TABLE_FORMATS.values() if row.holds == "words" for end in row.endings)
TABLES_OF_SENTENCES = (".jsonl", ".ndjson", ".parquet")  # files with other endings are CoNLL columns


class WordRow(TaskRow):
    """A sentence in; an answer for each of its words out."""

    head = "tag"
    word_level = True
    length = LengthPolicy("windows")  # a word may stand anywhere, so that no text is cut
    lengths = ("windows",)
    fields = (RequestField("texts", "sentences"),)
    request_summary = "Texts, plain or as lists of words."
    request_example: ClassVar[Mapping[str, object]] = {"texts": ["Ada lives in London"]}
    example_unit = "sentences"
    word_labels: ClassVar[WordLabels]

    def fits_file(self, path: Path, columns: Columns) -> bool:
        """CoNLL columns."""
        kind = ending(path)
        return kind in COLUMN_FILES or (kind in (".txt", ".tsv", ".tab") and _in_blocks(path, columns))

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """Lists of words."""
        words = first_known(table, WORDS)
        return words is not None and isinstance(rows[0].values.get(words), list)

    def format(self, path: Path) -> str:
        """CoNLL-U, lists of words in a table, or CoNLL columns."""
        if ending(path) in TABLES_OF_SENTENCES:
            return ""
        return "conllu" if ending(path) == ".conllu" else "conll"

    def maker(self, table: Table, columns: Columns, labeled: bool) -> Maker:
        """Words and labels of a row."""
        if ending(table.path) not in TABLES_OF_SENTENCES:  # CoNLL: its columns were picked while opening
            columns = replace(columns, text=table.names[0], label=table.names[-1] if labeled else None)
        return tagged_maker(table, columns, labeled, self.word_labels)

    def asker(self, table: Table, columns: Columns) -> Maker:
        """Sentences in words where the file has lists of them, else plain texts."""
        if columns.text is None and (words := first_known(table, WORDS) or _only_list(table)):
            columns = replace(columns, text=words)
        if columns.text is None:
            used = replace(choose_text_columns(table, columns), pair=None, label=None)
        else:
            used = replace(columns, text=find(table, columns.text, "text"), label=None)
        return used, lambda row: self.sentence(_words_or_text(row, used.text or ""), row.place)

    def examples(self, texts: Sequence[str | Sequence[str]]) -> list[Example]:  # type: ignore[override]
        """A sentence of each text or list of words."""
        given = [text if isinstance(text, str) else text_list(text, f"texts[{n}]") for n, text in enumerate(texts)]
        return [self.sentence(text, request_place(number)) for number, text in enumerate(given)]

    def own_cells(self, example: Example, prediction: Any, detail: Detail) -> dict[str, Any]:
        """Fields of the prediction, and where the words stand in a plain text."""
        assert isinstance(example, WordsExample)
        characters = None if example.characters is None else [list(span) for span in example.characters]
        return super().own_cells(example, prediction, detail) | {"characters": characters}

    def sentence(self, given: str | Sequence[str], place: Place) -> Example:
        """Words as they are; a plain text is split later, by the model's tokenizer."""
        if isinstance(given, str):
            return self.word_labels.make((), None, place, given)
        return self.word_labels.make(tuple(given), None, place, None)


def _in_blocks(path: Path, columns: Columns) -> bool:
    """Whether a file has lines of as many cells each, with a blank line somewhere between them."""
    lines = [line for _, line in islice(lines_of(path, columns.encoding), SAMPLE)]
    if lines and lines[0].startswith("-DOCSTART-"):
        return True
    text = "\n".join(lines).strip()
    widths = {len(line.split("\t" if "\t" in line else " ")) for line in lines if line.strip()}
    return "\n\n" in text and len(widths) == 1 and widths.pop() > 1


def _only_list(table: Table) -> str | None:
    """CoNLL files have one column, of words, which is called by its number or as the user named it."""
    [name, *others] = table.names
    return name if not others and isinstance(table.sample[0].values[name], list) else None


def _words_or_text(row: Row, name: str) -> str | tuple[str, ...]:
    value = cell(row, name)
    if not isinstance(value, list):
        return present_text(row, name)
    for word in value:
        if not isinstance(word, str) or not word.strip():
            raise RequestError(f"{row.place}: {json.dumps(word)[:40]} is no word; repair or remove the row")
        checked(word, name, row.place)
    return tuple(value)
