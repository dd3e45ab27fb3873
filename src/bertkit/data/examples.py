"""Examples: one frozen dataclass per kind of input, each with its location in the file that it was read from."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from bertkit.data.tables import Location

Label: TypeAlias = str | tuple[str, ...] | float | None
Characters: TypeAlias = tuple[tuple[int, int], ...]  # [start, end) of each word in the original text


class Example:
    """The interface of every kind of example."""

    __slots__ = ()
    location: Location

    @property
    def texts(self) -> tuple[str, ...]:
        """All input texts."""
        raise NotImplementedError

    @property
    def sequences(self) -> list[tuple[str, str | None]]:
        """Each text or pair of texts that is encoded as one sequence."""
        raise NotImplementedError

    @property
    def outcome(self) -> object:
        """The label in a form that can be compared with `==`; None if unlabeled."""
        raise NotImplementedError

    @property
    def names(self) -> tuple[str, ...]:
        """The label names or tags, with repetitions; empty if labels are not names."""
        return ()

    @property
    def numbers(self) -> tuple[float, ...]:
        """The labels, if they are numbers."""
        return ()

    @property
    def counted(self) -> tuple[str, ...]:
        """The names that `bertkit check` counts in a file."""
        return self.names

    def renamed(self, names: dict[str, str]) -> "Example":
        """A copy whose labels are replaced by `names[label]`; labels that are not in `names` stay."""
        return self


@dataclass(frozen=True, slots=True)
class TextExample(Example):
    """A text or a pair of texts. The label is a name, several names, a number, or None (unlabeled)."""

    text: str
    pair: str | None
    label: Label
    location: Location

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, and the second text of a pair."""
        return (self.text,) if self.pair is None else (self.text, self.pair)

    @property
    def sequences(self) -> list[tuple[str, str | None]]:
        """One sequence."""
        return [(self.text, self.pair)]

    @property
    def outcome(self) -> object:
        """The label; several labels as a set."""
        return frozenset(self.label) if isinstance(self.label, tuple) else self.label

    @property
    def names(self) -> tuple[str, ...]:
        """The label, or each of several labels once."""
        if isinstance(self.label, tuple):
            return tuple(dict.fromkeys(self.label))
        return (self.label,) if isinstance(self.label, str) else ()

    @property
    def numbers(self) -> tuple[float, ...]:
        """The label, if it is a number."""
        return (float(self.label),) if isinstance(self.label, int | float) else ()

    def renamed(self, names: dict[str, str]) -> "TextExample":
        """A copy with renamed labels."""
        label = self.label
        if isinstance(label, tuple):
            label = tuple(names.get(name, name) for name in label)
        elif isinstance(label, str):
            label = names.get(label, label)
        return TextExample(self.text, self.pair, label, self.location)


@dataclass(frozen=True, slots=True)
class WordsExample(Example):
    """A sentence as a list of words, with a label for each word or None (unlabeled).

    `text` is set if the sentence came as plain text; `characters` are the spans of its words once it has been split.
    """

    words: tuple[str, ...]
    labels: tuple[Any, ...] | None
    location: Location
    text: str | None = None
    characters: Characters | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """Each word."""
        return self.words

    @property
    def sequences(self) -> list[tuple[str, str | None]]:
        """One sequence."""
        return [(" ".join(self.words), None)]

    @property
    def outcome(self) -> object:
        """The labels."""
        return self.labels


class TaggedExample(WordsExample):
    """A sentence with a tag for each word."""

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
        """A copy with renamed tags."""
        if not self.tags:
            return self
        return TaggedExample(self.words, tuple(names.get(tag, tag) for tag in self.tags), self.location)


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """A gold answer: `passage[start : start + len(text)] == text`, counted in characters (code points)."""

    start: int
    text: str


@dataclass(frozen=True, slots=True)
class QuestionExample(Example):
    """A question and a passage; if `labeled`, no answers means that the question is unanswerable."""

    id: str
    question: str
    passage: str
    answers: tuple[AnswerSpan, ...]
    title: str
    location: Location
    labeled: bool = True

    @property
    def texts(self) -> tuple[str, ...]:
        """The question and the passage."""
        return self.question, self.passage

    @property
    def sequences(self) -> list[tuple[str, str | None]]:
        """One pair."""
        return [(self.question, self.passage)]

    @property
    def outcome(self) -> object:
        """The set of answer texts."""
        return frozenset(answer.text for answer in self.answers) if self.labeled else None

    @property
    def counted(self) -> tuple[str, ...]:
        """Whether the question has an answer."""
        return (("answered" if self.answers else "no answer"),) if self.labeled else ()


@dataclass(frozen=True, slots=True)
class ChoiceExample(Example):
    """A question and several choices; `label` is the index of the correct one."""

    question: str
    choices: tuple[str, ...]
    label: int | None
    location: Location

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
        """The index of the correct choice."""
        return self.label

    @property
    def counted(self) -> tuple[str, ...]:
        """The number of the correct choice, counted from 1."""
        return () if self.label is None else (f"choice {self.label + 1}",)
