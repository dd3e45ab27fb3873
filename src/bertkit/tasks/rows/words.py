"""Base row of the tasks on words: CoNLL files, tables with lists of words, requests with texts or lists of words."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from bertkit.data.columns import WORD_NAMES, ExampleReader, choose_text_columns, find_column, first_present
from bertkit.data.examples import Example, WordsExample
from bertkit.data.tables import (
    SAMPLE,
    TABLE_FORMATS,
    Columns,
    Location,
    Row,
    Table,
    cell,
    checked,
    ending,
    lines_of,
    present_text,
)
from bertkit.data.tagged import WordLabels, word_reader
from bertkit.errors import RequestError
from bertkit.tasks.row import RequestField, TaskRow, check_text_list, request_location
from bertkit.tasks.shared.length import LengthPolicy

CONLL_ENDINGS = tuple(end for row in TABLE_FORMATS.values() if row.holds == "words" for end in row.endings)
SENTENCE_TABLE_ENDINGS = (".jsonl", ".ndjson", ".parquet")  # rows with lists of words; other files are CoNLL


class WordRow(TaskRow):
    """One prediction for each word of a sentence."""

    head = "tag"
    word_level = True
    length = LengthPolicy("windows")  # every word has a prediction, so no text is cut
    length_kinds = ("windows",)
    fields = (RequestField("texts", "sentences"),)
    request_summary = "Texts, plain or as lists of words."
    request_example: ClassVar[Mapping[str, object]] = {"texts": ["Ada lives in London"]}
    example_unit = "sentences"
    word_labels: ClassVar[WordLabels]

    def fits_file(self, path: Path, columns: Columns) -> bool:
        """A file ending of CoNLL, or lines in columns with blank lines between sentences."""
        kind = ending(path)
        return kind in CONLL_ENDINGS or (kind in (".txt", ".tsv", ".tab") and _in_blocks(path, columns))

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """A column with lists of words."""
        words = first_present(table, WORD_NAMES)
        return words is not None and isinstance(rows[0].values.get(words), list)

    def format(self, path: Path) -> str:
        """CoNLL-U, CoNLL, or a table with lists of words."""
        if ending(path) in SENTENCE_TABLE_ENDINGS:
            return ""
        return "conllu" if ending(path) == ".conllu" else "conll"

    def reader(self, table: Table, columns: Columns, labeled: bool) -> ExampleReader:
        """Reads the words and their labels."""
        if ending(table.path) not in SENTENCE_TABLE_ENDINGS:  # CoNLL: its columns were chosen on opening
            columns = replace(columns, text=table.names[0], label=table.names[-1] if labeled else None)
        return word_reader(table, columns, labeled, self.word_labels)

    def unlabeled_reader(self, table: Table, columns: Columns) -> ExampleReader:
        """Reads lists of words if the file has such a column, else plain texts."""
        if columns.text is None and (words := first_present(table, WORD_NAMES) or _only_list(table)):
            columns = replace(columns, text=words)
        if columns.text is None:
            used = replace(choose_text_columns(table, columns), pair=None, label=None)
        else:
            used = replace(columns, text=find_column(table, columns.text, "text"), label=None)
        return used, lambda row: self.sentence(_words_or_text(row, used.text or ""), row.location)

    def examples(self, texts: Sequence[str | Sequence[str]]) -> list[Example]:  # type: ignore[override]
        """An example for each text or list of words."""
        return [
            self.sentence(text if isinstance(text, str) else check_text_list(text, f"texts[{n}]"), request_location(n))
            for n, text in enumerate(texts)
        ]

    def output_cells(self, example: Example, prediction: Any) -> dict[str, Any]:
        """The fields of the prediction, and the character spans of words of a plain text."""
        assert isinstance(example, WordsExample)
        characters = None if example.characters is None else [list(span) for span in example.characters]
        return super().output_cells(example, prediction) | {"characters": characters}

    def sentence(self, text: str | Sequence[str], location: Location) -> Example:
        """An unlabeled example; a plain text is split into words later, by the model's tokenizer."""
        if isinstance(text, str):
            return self.word_labels.make((), None, location, text)
        return self.word_labels.make(tuple(text), None, location, None)


def _in_blocks(path: Path, columns: Columns) -> bool:
    """Whether all lines of a file have the same number of cells, with blank lines between some of them."""
    lines = [line for _, line in islice(lines_of(path, columns.encoding), SAMPLE)]
    if lines and lines[0].startswith("-DOCSTART-"):
        return True
    text = "\n".join(lines).strip()
    widths = {len(line.split("\t" if "\t" in line else " ")) for line in lines if line.strip()}
    return "\n\n" in text and len(widths) == 1 and widths.pop() > 1


def _only_list(table: Table) -> str | None:
    """The only column of a table if it holds lists, as in CoNLL files without labels."""
    [name, *others] = table.names
    return name if not others and isinstance(table.sample[0].values[name], list) else None


def _words_or_text(row: Row, name: str) -> str | tuple[str, ...]:
    value = cell(row, name)
    if not isinstance(value, list):
        return present_text(row, name)
    for word in value:
        if not isinstance(word, str) or not word.strip():
            raise RequestError(f"{row.location}: {json.dumps(word)[:40]} is no word; repair or remove the row")
        checked(word, name, row.location)
    return tuple(value)
