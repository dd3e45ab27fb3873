"""Labeled examples, one frozen dataclass per kind of input, each with the place it came from."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from bertkit.data.tables import Place

Label: TypeAlias = str | tuple[str, ...] | float | None
Characters: TypeAlias = tuple[tuple[int, int], ...]  # [start, end) of each word in the original text


class Example:
    """What every kind of example has in common."""

    __slots__ = ()
    place: Place

    @property
    def texts(self) -> tuple[str, ...]:
        """Its texts, without the label."""
        raise NotImplementedError

    @property
    def sequences(self) -> list[tuple[str, str | None]]:
        """The texts or pairs of texts that go through the model one by one."""
        raise NotImplementedError

    @property
    def outcome(self) -> object:
        """The label, in a form that is equal where labels mean the same; None if there is none."""
        raise NotImplementedError

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its labels, as often as they are given; empty where labels are not names."""
        return ()

    @property
    def numbers(self) -> tuple[float, ...]:
        """Its labels, where they are numbers."""
        return ()

    @property
    def counted(self) -> tuple[str, ...]:
        """What a summary of a file counts."""
        return self.names

    def renamed(self, names: dict[str, str]) -> "Example":
        """With labels that have another name in `names` under that name."""
        return self


@dataclass(frozen=True, slots=True)
class TextExample(Example):
    """A text or a pair. Its label is a name, several names, a number, or None (unlabeled)."""

    text: str
    pair: str | None
    label: Label
    place: Place

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, and the second one of a pair."""
        return (self.text,) if self.pair is None else (self.text, self.pair)

    @property
    def sequences(self) -> list[tuple[str, str | None]]:
        """One."""
        return [(self.text, self.pair)]

    @property
    def outcome(self) -> object:
        """The label; several labels without order."""
        return frozenset(self.label) if isinstance(self.label, tuple) else self.label

    @property
    def names(self) -> tuple[str, ...]:
        """Its one label, or each of its labels."""
        if isinstance(self.label, tuple):
            return tuple(dict.fromkeys(self.label))
        return (self.label,) if isinstance(self.label, str) else ()

    @property
    def numbers(self) -> tuple[float, ...]:
        """Its label, where it is a number."""
        return (float(self.label),) if isinstance(self.label, int | float) else ()

    def renamed(self, names: dict[str, str]) -> "TextExample":
        """With other names for its labels."""
        label = self.label
        if isinstance(label, tuple):
            label = tuple(names.get(name, name) for name in label)
        elif isinstance(label, str):
            label = names.get(label, label)
        return TextExample(self.text, self.pair, label, self.place)


@dataclass(frozen=True, slots=True)
class WordsExample(Example):
    """A sentence in words, and a label for each of them unless it is unlabeled.

    One from a plain text has the text, and once it is split the characters of its words in it.
    """

    words: tuple[str, ...]
    labels: tuple[Any, ...] | None
    place: Place
    text: str | None = None
    characters: Characters | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The words."""
        return self.words

    @property
    def sequences(self) -> list[tuple[str, str | None]]:
        """One."""
        return [(" ".join(self.words), None)]

    @property
    def outcome(self) -> object:
        """The labels."""
        return self.labels


class TaggedExample(WordsExample):
    """A sentence in words, and a tag for each of them."""

    __slots__ = ()

    @property
    def tags(self) -> tuple[str, ...] | None:
        """The labels."""
        return self.labels

    @property
    def names(self) -> tuple[str, ...]:
        """The tags."""
        return self.tags or ()

    def renamed(self, names: dict[str, str]) -> "TaggedExample":
        """With other names for its tags."""
        if not self.tags:
            return self
        return TaggedExample(self.words, tuple(names.get(tag, tag) for tag in self.tags), self.place)


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """A gold answer: `passage[start : start + len(text)] == text`, counted in characters (code points)."""

    start: int
    text: str


@dataclass(frozen=True, slots=True)
class QuestionExample(Example):
    """A question and the passage to answer it from; labeled and without answers means unanswerable."""

    id: str
    question: str
    passage: str
    answers: tuple[AnswerSpan, ...]
    title: str
    place: Place
    labeled: bool = True

    @property
    def texts(self) -> tuple[str, ...]:
        """Question and passage."""
        return self.question, self.passage

    @property
    def sequences(self) -> list[tuple[str, str | None]]:
        """One pair."""
        return [(self.question, self.passage)]

    @property
    def outcome(self) -> object:
        """The texts of the answers."""
        return frozenset(answer.text for answer in self.answers) if self.labeled else None

    @property
    def counted(self) -> tuple[str, ...]:
        """Whether there is an answer."""
        return (("answered" if self.answers else "no answer"),) if self.labeled else ()


@dataclass(frozen=True, slots=True)
class ChoiceExample(Example):
    """A question and several answers, of which number `label` is correct."""

    question: str
    choices: tuple[str, ...]
    label: int | None
    place: Place

    @property
    def texts(self) -> tuple[str, ...]:
        """The question, then the choices."""
        return (self.question, *self.choices)

    @property
    def sequences(self) -> list[tuple[str, str | None]]:
        """A pair for each choice."""
        return [(self.question, choice) for choice in self.choices]

    @property
    def outcome(self) -> object:
        """The number of the correct choice."""
        return self.label

    @property
    def counted(self) -> tuple[str, ...]:
        """Which choice is correct, from 1."""
        return () if self.label is None else (f"choice {self.label + 1}",)
