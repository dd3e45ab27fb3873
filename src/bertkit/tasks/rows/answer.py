"""An answer that stands in a passage, as in SQuAD."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from bertkit.data.columns import first_known
from bertkit.data.examples import Example, QuestionExample
from bertkit.data.squad import PASSAGES, QUESTIONS, question_maker
from bertkit.data.tables import Columns, Row, Table, ending, lines_of
from bertkit.tasks.row import (
    Detail,
    Maker,
    Measures,
    RequestField,
    RequestOption,
    TaskRow,
    request_place,
    same_count,
)
from bertkit.tasks.shared.length import LengthPolicy

SQUAD_START = 5000  # characters in which a SQuAD file shows its shape
SPAN = {"start": int, "end": int, "score": float, "probability": float}
GIVEN_ANSWERS = ("answers", "human_ans_indices", "answer_text", "answer_start")


class AnswerRow(TaskRow):
    """The start and the end of a span of the passage, or that there is no answer."""

    name = "answer"
    summary = "the answer to a question, where it stands in a passage"
    written = "answer, start, end"
    implementation = "bertkit.tasks.answer:Answer"
    head = "answer"
    route = "answer"
    metrics = Measures("f1", ("f1", "exact_match", "answerable_f1", "answerable_exact_match", "unanswerable_accuracy"))
    # An answer may stand anywhere, so that no passage is cut; 128 shared tokens are the usual SQuAD recipe's.
    length = LengthPolicy("windows", stride=128)
    lengths = ("windows",)
    fields = (RequestField("question"), RequestField("passage"))
    options = (RequestOption("best", 1, 20, "How many candidates to list."),)
    request_summary = "A question and the passage to answer it from, or as many of both."
    request_example: ClassVar[Mapping[str, object]] = {
        "question": "Where does Ada live?",
        "passage": "Ada lives in London and Alan lives in Rome.",
    }
    candidate = MappingProxyType({"text": str, **SPAN})
    output = MappingProxyType({"answer": str, **SPAN, "no_answer": float})
    example_unit = "questions"
    has_probabilities = False
    line_lacks = "a passage"
    formats = MappingProxyType({"json": "squad"})

    def fits_file(self, path: Path, columns: Columns) -> bool:
        """SQuAD's JSON."""
        if ending(path) != ".json":
            return False
        lines = (line for _, line in islice(lines_of(path, columns.encoding), 200))
        start = "".join(lines)[:SQUAD_START]
        return start.lstrip().startswith("{") and '"data"' in start

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """Questions, passages and answers."""
        return has_questions(table)

    def maker(self, table: Table, columns: Columns, labeled: bool) -> Maker:
        """Question, passage and answers of a row."""
        return question_maker(table, columns, labeled)

    def counts(self, examples: Sequence[Example], labeled: bool) -> list[str]:
        """Questions, and how many have no answer."""
        unanswerable = sum(isinstance(e, QuestionExample) and e.labeled and not e.answers for e in examples)
        return super().counts(examples, labeled) + ([f"{unanswerable} without an answer"] if unanswerable else [])

    def own_cells(self, example: Example, prediction: Any, detail: Detail) -> dict[str, Any]:
        """The answer, where it stands, and its score."""
        score = prediction.candidates[0].score if prediction.candidates else None
        cells = {"answer": prediction.text, "start": prediction.start, "end": prediction.end, "score": score}
        return cells | {"probability": prediction.probability, "no_answer": prediction.no_answer}

    def examples(self, question: Sequence[str], passage: Sequence[str]) -> list[Example]:  # type: ignore[override]
        """A question with its passage each."""
        same_count(question, passage, "questions and passages")
        both = enumerate(zip(question, passage, strict=True))
        return [QuestionExample(str(n), q, p, (), "", request_place(n), labeled=False) for n, (q, p) in both]

    def reply(self, prediction: Any, **options: int) -> dict[str, Any]:
        """Without the id, which the request did not give, and with so many candidates."""
        found = asdict(prediction)
        found.pop("id")
        found["candidates"] = found["candidates"][: options["best"]]
        return found


def has_questions(table: Table) -> bool:
    """Whether a table has columns of questions, passages and answers."""
    asks = first_known(table, QUESTIONS) and first_known(table, PASSAGES)
    return bool(asks and first_known(table, GIVEN_ANSWERS))
