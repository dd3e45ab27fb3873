"""Labeled examples, one frozen dataclass per kind of task, each with the place it came from."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

TASKS = ("classify", "multilabel", "regress", "tag", "answer", "choose")
LABELED = ("classify", "multilabel", "tag")
Label: TypeAlias = str | tuple[str, ...] | float | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where an example stands; files without lines (Parquet, SQuAD) count rows or questions instead."""

    file: Path
    line: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.line}"


@dataclass(frozen=True, slots=True)
class TextExample:
    """A text or a pair. Its label: a name (classify), names (multilabel), a number (regress), None (unlabeled)."""

    text: str
    pair: str | None
    label: Label
    place: Place


@dataclass(frozen=True, slots=True)
class TaggedExample:
    """A sentence in words, and a tag for each of them unless it is unlabeled."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    place: Place


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """A right answer: `passage[start : start + len(text)] == text`, counted in characters (code points)."""

    start: int
    text: str


@dataclass(frozen=True, slots=True)
class QuestionExample:
    """A question and the passage to answer it from; labelled and without answers means unanswerable."""

    id: str
    question: str
    passage: str
    answers: tuple[AnswerSpan, ...]
    title: str
    place: Place
    labelled: bool = True


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A question and several answers, of which number `label` is right."""

    question: str
    choices: tuple[str, ...]
    label: int | None
    place: Place


Example: TypeAlias = TextExample | TaggedExample | QuestionExample | ChoiceExample
