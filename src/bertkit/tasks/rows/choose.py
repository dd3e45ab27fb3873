"""The row of `choose`: multiple choice, such as answers to a question or endings of a story."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from bertkit.data.choices import choice_reader, has_choices
from bertkit.data.columns import ExampleReader
from bertkit.data.examples import ChoiceExample, Example
from bertkit.data.tables import Columns, Row, Table
from bertkit.tasks.row import RequestField, TaskMetrics, TaskRow, check_same_count, check_text_list, request_location
from bertkit.tasks.rows.answer import has_questions
from bertkit.tasks.shared.length import TRUNCATING_KINDS, LengthPolicy


class ChooseRow(TaskRow):
    """Each choice is read together with the question; a softmax compares them."""

    name = "choose"
    summary = "which of several choices fits a question"
    implementation = "bertkit.tasks.choose:Choose"
    head = "choose"
    route = "choose"
    metrics = TaskMetrics("accuracy", ("accuracy",))
    length = LengthPolicy("tail")  # the ending of a story depends most on its last sentences
    length_kinds = TRUNCATING_KINDS
    fields = (RequestField("question"), RequestField("choices", "choices"))
    request_summary = "A question and its choices, or as many of both."
    request_example: ClassVar[Mapping[str, object]] = {
        "question": "The film was",
        "choices": ["a joy.", "of wood.", "seven."],
    }
    output = MappingProxyType({"choice": int, "chosen": str, "probability": float})
    shown = ("chosen", "probability")
    missing_from_lines = "choices"

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """Lists of choices, or several numbered columns of choices."""
        return has_choices(table, rows[0]) and not has_questions(table)

    def reader(self, table: Table, columns: Columns, labeled: bool) -> ExampleReader:
        """Reads the question, the choices and the index of the correct one."""
        return choice_reader(table, columns, labeled)

    def unlabeled_reader(self, table: Table, columns: Columns) -> ExampleReader:
        """Reads the question and the choices."""
        return choice_reader(table, columns, False)

    def output_cells(self, example: Example, prediction: Any) -> dict[str, Any]:
        """The index of the choice from 0, its text and its probability."""
        return {"choice": prediction.choice, "chosen": prediction.text, "probability": prediction.probability}

    def window_count(self, prediction: Any) -> int:
        """1: the sequences of the choices are not windows of a longer text."""
        return 1

    def examples(self, question: Sequence[str], choices: Sequence[Sequence[str]]) -> list[Example]:  # type: ignore[override]
        """An example for each question and its choices."""
        check_same_count(question, choices, "questions and lists of choices", "give as many")
        lists = [
            check_text_list(texts, f"what question {n} has to choose from") for n, texts in enumerate(choices, start=1)
        ]
        pairs = enumerate(zip(question, lists, strict=True))
        return [ChoiceExample(text, texts, None, request_location(n)) for n, (text, texts) in pairs]
