"""A number for each word of a sentence, such as its reading time or complexity."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bertkit.data.columns import first_known, is_number
from bertkit.data.conll import open_conll
from bertkit.data.examples import Characters, Example, Place, WordsExample
from bertkit.data.tables import Columns, Row, Table, ending
from bertkit.data.tagged import WordLabels
from bertkit.data.texts import number_cell
from bertkit.errors import RequestError
from bertkit.tasks.row import Detail, Measures
from bertkit.tasks.rows.regress import scale_of
from bertkit.tasks.rows.texts import OFTEN
from bertkit.tasks.rows.words import COLUMN_FILES, WordRow, has_word_lists, in_blocks, places_of

if TYPE_CHECKING:
    import pyarrow

NUMBERS = ("ratings", "scores", "values", "numbers", "complexities", "reading_times", "times", "labels")


@dataclass(frozen=True, slots=True)
class RatedWordsExample(WordsExample):
    """A sentence in words, and a number for each of them unless it is unlabeled."""

    words: tuple[str, ...]
    ratings: tuple[float, ...] | None
    place: Place
    text: str | None = None
    characters: Characters | None = None

    @property
    def outcome(self) -> object:
        """The numbers."""
        return self.ratings

    @property
    def numbers(self) -> tuple[float, ...]:
        """Of each word."""
        return self.ratings or ()


def _read_number(row: Row, column: str, value: Any, table: Table) -> float:
    return number_cell(row, column, value)


class RateWordsRow(WordRow):
    """Token regression: a number for each word, scored at its first piece."""

    name = "rate-words"
    summary = "a number for each word"
    written = "words, values"
    implementation = "bertkit.tasks.rate_words:RateWords"
    route = "rate-words"
    metrics = Measures("spearman", ("pearson", "spearman", "mean_squared_error", "mean_absolute_error"))
    problem_type = "regression"
    numeric = True
    saved = ("center", "spread")
    has_probabilities = False
    request_example: ClassVar[Mapping[str, object]] = {"texts": ["The committee deliberated at length."]}
    word_labels = WordLabels("number", NUMBERS, _read_number, RatedWordsExample)

    def fits_file(self, path: Path, columns: Columns) -> bool:
        """CoNLL columns whose last one holds numbers."""
        kind = ending(path)
        if kind not in COLUMN_FILES[1:] and not (kind in (".txt", ".tsv", ".tab") and in_blocks(path, columns)):
            return False
        try:
            table = open_conll(path, columns, True)
        except RequestError:
            return False
        return _measures([cell for row in table.sample for cell in row.values.get(table.names[-1], ())])

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """Lists of words and lists of numbers."""
        label = columns.label or first_known(table, NUMBERS)
        if label is None or not has_word_lists(table, rows):
            return False
        lists = [row.values.get(label) for row in rows]
        numbers = [number for cells in lists if isinstance(cells, list) for number in cells]
        return all(isinstance(cells, list) for cells in lists) and _measures(numbers)

    def counts(self, examples: Sequence[Example], labeled: bool) -> list[str]:
        """Sentences."""
        return [f"{len(examples)} sentences"]

    def content(self, examples: Sequence[Example], file: Path) -> dict[str, Any]:
        """Center and spread of the numbers of all words."""
        return scale_of([number for example in examples for number in example.numbers], file)

    def own_columns(self, detail: Detail) -> "dict[str, pyarrow.DataType]":
        """Words, their places in a plain text, and their numbers."""
        import pyarrow as pa

        columns = {"words": pa.list_(pa.string()), "characters": pa.list_(pa.list_(pa.int64()))}
        return columns | {"values": pa.list_(pa.float64())}

    def own_cells(self, example: Example, prediction: Any, detail: Detail) -> dict[str, Any]:
        """The same of one prediction."""
        found = {"words": list(prediction.words), "characters": places_of(example)}
        return found | {"values": list(prediction.values)}


def _measures(cells: Sequence[object]) -> bool:
    """Whether cells are numbers, with fractions among them: whole ones may be the names of classes."""
    fractions = sum("." in str(cell) for cell in cells)
    return bool(cells) and all(is_number(str(cell)) for cell in cells) and fractions > OFTEN * len(cells)
