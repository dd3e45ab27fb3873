"""One of several choices: answers to a question, or endings of a story."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from bertkit.data.choices import choice_maker, has_choices
from bertkit.data.examples import ChoiceExample, Example
from bertkit.data.tables import Columns, Row, Table
from bertkit.tasks.row import Detail, Maker, Measures, RequestField, TaskRow, request_place, same_count, text_list
from bertkit.tasks.rows.answer import has_questions
from bertkit.tasks.shared.length import CUTS, LengthPolicy


class ChooseRow(TaskRow):
    """Each choice is read together with the question; a softmax compares them."""

    name = "choose"
    summary = "which of several choices fits a question"
    written = "choice"
    implementation = "bertkit.tasks.choose:Choose"
    head = "choose"
    route = "choose"
    metrics = Measures("accuracy", ("accuracy",))
    length = LengthPolicy("tail")  # the end of a story is what its ending follows
    lengths = CUTS
    fields = (RequestField("question"), RequestField("choices", "choices"))
    request_summary = "A question and its choices, or as many of both."
    request_example: ClassVar[Mapping[str, object]] = {
        "question": "The film was",
        "choices": ["a joy.", "of wood.", "seven."],
    }
    output = MappingProxyType({"choice": int, "chosen": str, "probability": float})
    line_lacks = "choices"

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """Lists of choices, or numbered columns of them."""
        return has_choices(table, rows[0]) and not has_questions(table)

    def maker(self, table: Table, columns: Columns, labeled: bool) -> Maker:
        """Question, choices and the correct one of a row."""
        return choice_maker(table, columns, labeled)

    def asker(self, table: Table, columns: Columns) -> Maker:
        """The same without the correct one."""
        return choice_maker(table, columns, False)

    def own_cells(self, example: Example, prediction: Any, detail: Detail) -> dict[str, Any]:
        """The choice's number from 0, its text and its probability."""
        return {"choice": prediction.choice, "chosen": prediction.text, "probability": prediction.probability}

    def window_count(self, prediction: Any) -> int:
        """Each choice is a sequence of its own, not a window of a longer one."""
        return 1

    def examples(self, question: Sequence[str], choices: Sequence[Sequence[str]]) -> list[Example]:  # type: ignore[override]
        """A question with its choices each."""
        same_count(question, choices, "questions and lists of choices", "give as many")
        lists = [text_list(own, f"what question {number} has to choose from") for number, own in enumerate(choices)]
        both = enumerate(zip(question, lists, strict=True))
        return [ChoiceExample(asked, own, None, request_place(number)) for number, (asked, own) in both]
