"""What a fine-tuned model says: the same windows and the same decoding as in its evaluation."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.data.examples import ChoiceExample, Example, Place, QuestionExample, TaggedExample, TextExample
from bertkit.errors import RequestError
from bertkit.finetuning.evaluate import predict
from bertkit.model.model import BertModel
from bertkit.tasks.answer import Answered
from bertkit.tasks.choose import Chosen
from bertkit.tasks.classify import Classified, Labelled, Rated
from bertkit.tasks.decision import Decision
from bertkit.tasks.table import read_task
from bertkit.tasks.tag import Tagged, located, words_of
from bertkit.tasks.task import Prediction, Task

TEXTS_AT_ONCE = 1024  # sorted by length together; memory does not grow with more


@dataclass(frozen=True)
class Answers:
    """A model with its task and its decision layer."""

    model: BertModel
    task: Task
    decision: Decision

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Answers":
        """From a fine-tuned folder."""
        return cls(checkpoint.model, *read_task(checkpoint))

    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """A prediction for each example, of the task's own kind."""
        found: list[Prediction] = []
        for start in range(0, len(examples), TEXTS_AT_ONCE):
            found += predict(self.model, self.task, examples[start : start + TEXTS_AT_ONCE], self.decision)
        return found

    def classify(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None
    ) -> list[Classified] | list[Labelled] | list[Rated]:
        """A label, labels or a number for each text or pair, as the model was taught."""
        self._require("classify", "multilabel", "regress")
        seconds: Sequence[str | None] = [None] * len(texts) if pairs is None else list(pairs)
        if len(seconds) != len(texts):
            raise RequestError(f"{len(texts)} texts came with {len(seconds)} pairs; give as many of both")
        both = zip(texts, seconds, strict=True)
        return self.predict([TextExample(text, pair, None, _place(n)) for n, (text, pair) in enumerate(both)])

    def tag(self, texts: Sequence[str | Sequence[str]]) -> list[Tagged]:
        """A tag for each word; spans of plain texts say at which characters they stand."""
        self._require("tag")
        texts = [text if isinstance(text, str) else _listed(text, f"texts[{n}]") for n, text in enumerate(texts)]
        tokenizer: Any = self.task
        places = [words_of(tokenizer.tokenizer, text) if isinstance(text, str) else None for text in texts]
        words = [
            tuple(text[a:b] for a, b in own) if own is not None and isinstance(text, str) else tuple(text)
            for text, own in zip(texts, places, strict=True)
        ]
        found = self.predict([TaggedExample(own, None, _place(number)) for number, own in enumerate(words)])
        return [
            located(tagged, text, own) if own is not None and isinstance(text, str) else tagged
            for tagged, text, own in zip(found, texts, places, strict=True)
        ]

    def answer(self, questions: Sequence[str], passages: Sequence[str]) -> list[Answered]:
        """Where each passage answers its question, in characters of the passage; or that it does not."""
        self._require("answer")
        if len(questions) != len(passages):
            raise RequestError(f"{len(questions)} questions came with {len(passages)} passages; give as many of both")
        both = enumerate(zip(questions, passages, strict=True))
        return self.predict(
            [
                QuestionExample(str(number), question, passage, (), "", _place(number), labelled=False)
                for number, (question, passage) in both
            ]
        )

    def choose(self, questions: Sequence[str], choices: Sequence[Sequence[str]]) -> list[Chosen]:
        """Which of its choices fits each question."""
        self._require("choose")
        if len(questions) != len(choices):
            raise RequestError(f"{len(questions)} questions came with {len(choices)} lists of choices; give as many")
        lists = [_listed(own, f"what question {number} has to choose from") for number, own in enumerate(choices)]
        both = enumerate(zip(questions, lists, strict=True))
        return self.predict([ChoiceExample(asked, own, None, _place(n)) for n, (asked, own) in both])

    def _require(self, *names: str) -> None:
        if self.task.name not in names:
            raise RequestError(f"this model was taught '{self.task.name}'; it cannot {names[0]}")


def _listed(given: object, what: str) -> tuple[str, ...]:
    """Texts in any kind of list, an array too."""
    found = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping) else ()
    if not found or not all(isinstance(each, str) for each in found):
        raise RequestError(f"{what} must be a list of texts")
    return found


def _place(number: int) -> Place:
    return Place(Path("the request"), number, "number")
