"""The row of `answer`: extractive question answering, as in SQuAD."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from bertkit.data.columns import ExampleReader, first_present
from bertkit.data.examples import Example, QuestionExample
from bertkit.data.squad import PASSAGE_NAMES, QUESTION_NAMES, question_reader
from bertkit.data.tables import Columns, Row, Table, ending, lines_of
from bertkit.tasks.row import RequestField, RequestOption, TaskMetrics, TaskRow, check_same_count, request_location
from bertkit.tasks.shared.length import LengthPolicy

INSPECTED_CHARACTERS = 5000  # of a JSON file, to recognize SQuAD
SPAN_COLUMNS = {"start": int, "end": int, "score": float, "probability": float}
ANSWER_COLUMNS = ("answers", "human_ans_indices", "answer_text", "answer_start")


class AnswerRow(TaskRow):
    """The start and the end of a span of the passage, or that there is no answer."""

    name = "answer"
    summary = "the answer to a question, where it stands in a passage"
    implementation = "bertkit.tasks.answer:Answer"
    head = "answer"
    route = "answer"
    metrics = TaskMetrics(
        "f1", ("f1", "exact_match", "answerable_f1", "answerable_exact_match", "unanswerable_accuracy")
    )
    # An answer may be anywhere, so no passage is cut; an overlap of 128 tokens is usual for SQuAD.
    length = LengthPolicy("windows", stride=128)
    length_kinds = ("windows",)
    fields = (RequestField("question"), RequestField("passage"))
    options = (RequestOption("best", 1, 20, "How many candidates to list."),)
    request_summary = "A question and the passage to answer it from, or as many of both."
    request_example: ClassVar[Mapping[str, object]] = {
        "question": "Where does Ada live?",
        "passage": "Ada lives in London and Alan lives in Rome.",
    }
    candidate = MappingProxyType({"text": str, **SPAN_COLUMNS})
    output = MappingProxyType({"answer": str, **SPAN_COLUMNS, "no_answer": float})
    shown = ("answer", "probability")
    example_unit = "questions"
    has_probabilities = False
    missing_from_lines = "a passage"
    formats = MappingProxyType({"json": "squad"})

    def fits_file(self, path: Path, columns: Columns) -> bool:
        """A JSON object with the key "data" near its start."""
        if ending(path) != ".json":
            return False
        lines = (line for _, line in islice(lines_of(path, columns.encoding), 200))
        start = "".join(lines)[:INSPECTED_CHARACTERS]
        return start.lstrip().startswith("{") and '"data"' in start

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """Columns of questions, passages and answers."""
        return has_questions(table)

    def reader(self, table: Table, columns: Columns, labeled: bool) -> ExampleReader:
        """Reads question, passage and answers."""
        return question_reader(table, columns, labeled)

    def counts(self, examples: Sequence[Example], labeled: bool) -> list[str]:
        """The number of questions, and of those without an answer."""
        unanswerable = sum(isinstance(e, QuestionExample) and e.labeled and not e.answers for e in examples)
        return super().counts(examples, labeled) + ([f"{unanswerable} without an answer"] if unanswerable else [])

    def output_cells(self, example: Example, prediction: Any) -> dict[str, Any]:
        """The answer with its character span, score and probability."""
        score = prediction.candidates[0].score if prediction.candidates else None
        cells = {"answer": prediction.text, "start": prediction.start, "end": prediction.end, "score": score}
        return cells | {"probability": prediction.probability, "no_answer": prediction.no_answer}

    def examples(self, question: Sequence[str], passage: Sequence[str]) -> list[Example]:  # type: ignore[override]
        """An example for each question and its passage."""
        check_same_count(question, passage, "questions and passages")
        pairs = enumerate(zip(question, passage, strict=True))
        return [QuestionExample(str(n), q, p, (), "", request_location(n), labeled=False) for n, (q, p) in pairs]

    def reply(self, prediction: Any, **options: int) -> dict[str, Any]:
        """The fields of the prediction with the `best` candidates, and without the id, which no request has."""
        fields = asdict(prediction)
        fields.pop("id")
        fields["candidates"] = fields["candidates"][: options["best"]]
        return fields


def has_questions(table: Table) -> bool:
    """Whether a table has columns of questions, passages and answers."""
    return all(first_present(table, names) for names in (QUESTION_NAMES, PASSAGE_NAMES, ANSWER_COLUMNS))
