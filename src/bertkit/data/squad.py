"""SQuAD files, and table rows with a question and a passage, to question examples with checked answer offsets."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.data.columns import ExampleReader, find_or_guess, missing_column
from bertkit.data.examples import AnswerSpan, QuestionExample
from bertkit.data.tables import Columns, Location, Row, Table, TableFile, cell, checked, parse_json, text_cell
from bertkit.errors import RequestError

QUESTION_NAMES = ("question", "query")
PASSAGE_NAMES = ("context", "passage", "document", "review", "text")
ANSWER_NAMES = ("answers", "answer", "human_ans_indices", "answer_text")
SUBJQA_NO_ANSWER = "ANSWERNOTFOUND"  # the end of every review in SubjQA; an answer there means no answer


def squad_table(file: TableFile) -> Table:
    """A SQuAD 1.1 or 2.0 file as flat rows: one per question, with its passage."""
    path, content = file.path, parse_json(file.path, file.columns.encoding)
    if not isinstance(content, dict) or not isinstance(content.get("data"), list):
        raise RequestError(f"{path} is no SQuAD file: it has no list 'data'; give rows of questions as JSONL")
    names = ("id", "question", "context", "answers", "is_impossible", "title")
    return file.table(_squad_rows(path, content["data"]), names=names, unit="questions")


def _squad_rows(path: Path, articles: list[Any]) -> Iterator[Row]:
    number = 0
    for at, article in enumerate(articles, start=1):
        for paragraph in _part(path, article, "paragraphs", f"article {at}"):
            passage = paragraph.get("context") if isinstance(paragraph, dict) else None
            for question in _part(path, paragraph, "qas", f"a paragraph of article {at}"):
                number += 1
                location = Location(path, number, "question")
                if not isinstance(question, dict) or not isinstance(passage, str):
                    yield Row(location, {}, f"{location}: not a question with a 'context' above it; repair the file")
                    continue
                yield Row(location, {"title": article.get("title") or "", "context": passage, **question})


def _part(path: Path, value: Any, name: str, where: str) -> list[Any]:
    part = value.get(name) if isinstance(value, dict) else None
    if not isinstance(part, list):
        raise RequestError(f"{path}: {where} has no list '{name}', so this is not SQuAD's shape; repair the file")
    return part


def question_reader(table: Table, columns: Columns, labeled: bool) -> ExampleReader:
    """The columns to read, and a function that makes a question example of a row."""
    question = find_or_guess(table, columns.text, "text", QUESTION_NAMES)
    passage = find_or_guess(table, columns.pair, "pair", PASSAGE_NAMES)
    answers = find_or_guess(table, columns.label, "label", ANSWER_NAMES)
    if question is None:
        raise missing_column(table, "looks like the question", "text")
    if passage is None:
        raise missing_column(table, "looks like the passage", "pair")
    if labeled and answers is None:
        raise missing_column(table, "of answers", "label")
    used = replace(columns, text=question, pair=passage, label=answers if labeled else None)
    return used, lambda row: _question(row, used)


def _question(row: Row, columns: Columns) -> QuestionExample:
    passage = text_cell(row, columns.pair or "")
    if columns.label == "human_ans_indices":
        passage = passage.removesuffix(SUBJQA_NO_ANSWER).rstrip()
    answers = _answers(row, columns.label, passage) if columns.label else ()
    return QuestionExample(
        id=str(row.values.get("id", row.location.line)),
        question=text_cell(row, columns.text or ""),
        passage=passage,
        answers=answers,
        title=str(row.values.get("title") or ""),
        location=row.location,
        labeled=columns.label is not None,
    )


def _answers(row: Row, name: str, passage: str) -> tuple[AnswerSpan, ...]:
    if name == "human_ans_indices":
        return _subjqa(row, passage)
    pairs = list(_answer_pairs(row, name))
    if row.values.get("is_impossible") is True:
        if pairs:
            raise RequestError(f"{_where(row)}: is_impossible is true, but there are answers; remove one of the two")
        return ()
    return tuple(_span(row, passage, text, start) for text, start in pairs)


def _answer_pairs(row: Row, name: str) -> Iterator[tuple[Any, Any]]:
    """(text, start) of each answer in the layout of SQuAD, of `datasets`, or of plain columns."""
    value = cell(row, name)
    if isinstance(value, Mapping) and isinstance(value.get("text"), list):
        starts = value.get("answer_start", value.get("start"))
        if not isinstance(starts, list) or len(starts) != len(value["text"]):
            raise RequestError(f"{_where(row)}: 'answers' has more or fewer 'answer_start' than 'text'; repair the row")
        yield from zip(value["text"], starts, strict=True)
    elif isinstance(value, list):
        for answer in value:
            if isinstance(answer, Mapping):
                yield answer.get("text"), answer.get("answer_start", answer.get("start"))
            else:
                yield answer, None
    elif isinstance(value, str) and value:
        yield value, row.values.get("answer_start", row.values.get("start"))
    elif value not in (None, ""):
        raise RequestError(f"{_where(row)}: '{name}' is {type(value).__name__}, not a list of answers; repair the row")


def _span(row: Row, passage: str, text: Any, start: Any) -> AnswerSpan:
    """An answer whose text is in the passage at `start`; anything else raises RequestError."""
    if not isinstance(text, str) or not text.strip():
        raise RequestError(f"{_where(row)}: an answer without text; leave the list empty if there is no answer")
    checked(text, "answer", row.location)
    if isinstance(start, str) and start.strip().isdecimal():
        start = int(start)
    if start is None or start == "":
        return AnswerSpan(_only_start(row, passage, text), text)
    if not isinstance(start, int) or isinstance(start, bool):
        raise RequestError(f"{_where(row)}: answer_start is {start!r}, not a whole number; repair the row")
    if start < 0 or passage[start : start + len(text)] != text:
        at = passage.find(text)
        remedy = f"it stands at {at}" if at >= 0 else "it is nowhere in the passage"
        actual = passage[max(start, 0) : max(start, 0) + len(text)][:40]
        raise RequestError(
            f"{_where(row)}: the answer {text[:40]!r} is not at character {start}, where the passage has {actual!r}; "
            f"{remedy} (offsets count characters, not bytes)"
        )
    return AnswerSpan(start, text)


def _only_start(row: Row, passage: str, text: str) -> int:
    count = passage.count(text)
    if count != 1:
        times = "does not occur" if not count else f"occurs {count} times"
        raise RequestError(f"{_where(row)}: the answer {text[:40]!r} {times} in the passage; give its answer_start")
    return passage.find(text)


def _subjqa(row: Row, passage: str) -> tuple[AnswerSpan, ...]:
    """The answer of a SubjQA row: a slice of the passage by `(start, end)`, as SubjQA's answer texts are tokenized."""
    match = re.fullmatch(r"\(\s*(\d+)\s*,\s*(\d+)\s*\)", text_cell(row, "human_ans_indices").strip())
    if not match:
        raise RequestError(f"{row.location}: 'human_ans_indices' is not (start, end); repair or remove the row")
    start, end = int(match[1]), int(match[2])
    length = len(text_cell(row, "review"))
    if not start < end <= length:
        raise RequestError(f"{row.location}: the answer ({start}, {end}) is outside the review of {length} characters")
    text = passage[start:end].rstrip()
    return (AnswerSpan(start, text),) if text else ()


def _where(row: Row) -> str:
    return f"{row.location} (id {row.values['id']})" if "id" in row.values else str(row.location)
