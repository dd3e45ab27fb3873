"""The row of `write`: a text for a text, such as its translation, written by an encoder-decoder model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from bertkit.data.columns import (
    TEXT_NAMES,
    WORD_NAMES,
    ExampleReader,
    choose_text_columns,
    find_or_guess,
    missing_column,
)
from bertkit.data.examples import Example
from bertkit.data.tables import Columns, Location, Row, Table, text_cell
from bertkit.errors import RequestError
from bertkit.tasks.row import RequestField, TaskMetrics, TaskRow, request_location
from bertkit.tasks.shared.length import TRUNCATING_KINDS

if TYPE_CHECKING:
    from bertkit.text.tokenizer import Tokenizer

SOURCE_NAMES = ("source", "src", "input")
TARGET_NAMES = ("target", "tgt", "output", "translation", "summary")
# Of a new model, unless the user sets them: those of small translation models.
FROM_SCRATCH = ("learning_rate=1e-3", "layer_decay=1", "decay=inverse-sqrt", "beta2=0.98", "label_smoothing=0.1")


@dataclass(frozen=True, slots=True)
class SourceExample(Example):
    """A text and the text to write for it; None: to be written."""

    source: str
    target: str | None
    location: Location

    @property
    def texts(self) -> tuple[str, ...]:
        """The source."""
        return (self.source,)

    @property
    def sequences(self) -> list[tuple[str, str | None]]:
        """The source."""
        return [(self.source, None)]

    @property
    def outcome(self) -> object:
        """The target."""
        return self.target


class WriteRow(TaskRow):
    """Text to text: translation, summaries, dates in another form."""

    name = "write"
    summary = "a text for each text, such as its translation"
    implementation = "bertkit.tasks.write:Write"
    head = "decoder"
    route = "write"
    # BLEU counts runs of four words, so that it cannot choose between texts that are shorter.
    metrics = TaskMetrics("chrf", ("bleu", "chrf", "exact_match", "token_f1"))
    example_unit = "pairs of texts"
    reports_length = True
    generates = True
    settings_part = "generation"
    default_start = "new"
    saved_fields = ("beams", "length_penalty", "new_tokens")
    length_kinds = TRUNCATING_KINDS
    fields = (RequestField("texts"),)
    request_summary = "Texts to write a text for."
    request_example: ClassVar[Mapping[str, object]] = {"texts": ["Two dogs play in the snow."]}
    output: ClassVar[Mapping[str, Any]] = {"text": str, "tokens": int, "ended": str}
    shown = ("text",)
    has_probabilities = False

    def default_settings(self, start: str) -> tuple[str, ...]:
        """A new model is trained with other rates than a pre-trained one."""
        return FROM_SCRATCH if start == self.default_start else ()

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """A column of sources and one of targets, and none that is usual for other tasks."""
        folded = {name.casefold() for name in table.names}
        marked = folded & set(SOURCE_NAMES) and folded & set(TARGET_NAMES)
        return bool(marked) and not folded & {*TEXT_NAMES, *WORD_NAMES}

    def reader(self, table: Table, columns: Columns, labeled: bool) -> ExampleReader:
        """Reads source and target; without a header they are the first two columns."""
        source = find_or_guess(table, columns.text, "text", SOURCE_NAMES)
        target = find_or_guess(table, columns.label, "label", TARGET_NAMES) if labeled else None
        if not table.header:
            source, target = source or table.names[0], target or (table.names[1:] or (None,))[0] if labeled else None
        if source is None:
            source = choose_text_columns(table, replace(columns, label=target)).text
        if labeled and target is None:
            raise missing_column(table, "looks like the text to write", "label")

        def make(row: Row) -> Example:
            text = text_cell(row, target) if target else None
            if text is not None and not text.strip():
                raise RequestError(f"{row.location}: the target in '{target}' is empty; fill it in or remove the row")
            return SourceExample(text_cell(row, source or ""), text, row.location)

        return replace(columns, text=source, pair=None, label=target), make

    def arguments_from_json(self, saved: Mapping[str, Any], labels: tuple[str, ...]) -> dict[str, Any]:
        """How texts are generated."""
        return {name: saved[name] for name in self.saved_fields if name in saved}

    def arguments_from_model(self, settings: Mapping[str, Any], tokenizer: "Tokenizer") -> dict[str, Any]:
        """The tokens with which a text starts and ends: those in config.json, or [CLS] and [SEP]."""
        return {
            "start_id": _id(settings, "decoder_start_token_id", tokenizer.cls_id),
            "end_id": _id(settings, "eos_token_id", tokenizer.sep_id),
        }

    def all_texts(self, examples: Sequence[Example]) -> list[str]:
        """Sources and targets, which share a vocabulary."""
        pairs = [example for example in examples if isinstance(example, SourceExample)]
        return [text for example in pairs for text in (example.source, example.target or "")]

    def output_cells(self, example: Example, prediction: Any) -> dict[str, Any]:
        """The text, its number of tokens, and how it ended."""
        return super().output_cells(example, prediction) | {"ended": "end" if prediction.ended else "limit"}

    def examples(self, texts: Sequence[str]) -> list[Example]:  # type: ignore[override]
        """An example for each text."""
        return [SourceExample(text, None, request_location(number)) for number, text in enumerate(texts)]


def _id(settings: Mapping[str, Any], name: str, default: int) -> int:
    value = settings.get(name)
    return value if isinstance(value, int) else default
