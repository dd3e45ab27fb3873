"""Questions to the heads of pre-training: does a text follow another, was a word replaced. QUESTIONS has a row each.

A row is all that a question needs: the method of `Bert`, the HTTP route and the page's tool loop over the table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from bertkit.engine.batches import (
    Passage,
    known_segments,
    last_layer,
    map_batches,
    stitch,
    token_batches,
    token_budget,
    window_passages,
)
from bertkit.errors import RequestError, warn
from bertkit.model.heads import HEADS
from bertkit.tasks.row import RequestField, RequestOption, check_same_count
from bertkit.text.characters import with_marks
from bertkit.text.length import numbered, report_lengths
from bertkit.text.tokenizer import Encoding, Tokenizer

if TYPE_CHECKING:
    from bertkit.model.model import BertModel


@dataclass(frozen=True)
class JudgedWord:
    """A word of a text, its characters [start, end), and the probability that it was replaced by another."""

    word: str
    start: int
    end: int
    probability: float


class Question:
    """A row of QUESTIONS: what a head was pre-trained to decide, as a question about texts."""

    route: ClassVar[str]  # of the server; also the method of Bert and Client
    head: ClassVar[str]  # a key of model.heads.HEADS
    refusal: ClassVar[str]  # for a model without the head
    summary: ClassVar[str]  # for the server's documentation
    windows: ClassVar[bool] = True  # whether a text over the limit is read through windows; else it is refused
    fields: ClassVar[tuple[RequestField, ...]]
    options: ClassVar[tuple[RequestOption, ...]] = ()
    request_summary: ClassVar[str]
    request_example: ClassVar[Mapping[str, object]]

    def encodings(self, tokenizer: Tokenizer, **inputs: Any) -> list[tuple[str, Encoding]]:
        """Each input of a request as a text with its tokens."""
        raise NotImplementedError

    def result(self, text: str, encoding: Encoding, logits: np.ndarray) -> object:
        """The answer from the head's logits: of the sequence, or one for each token."""
        raise NotImplementedError


class Follows(Question):
    """Next sentence prediction and sentence order: both heads are trained to give order the label 0."""

    route = "follows"
    head = "next_sentence"
    refusal = (
        "this model has no next-sentence head, so it cannot say whether a text follows another; "
        "load one that was pre-trained with objective=mlm,nsp or mlm,sop and saved with its heads"
    )
    summary = "the probability that a text follows another"
    windows = False  # a part of a text is followed by something else
    fields = (RequestField("first"), RequestField("second"))
    request_summary = "Texts, and for each one that may follow it."
    request_example: ClassVar[Mapping[str, object]] = {"first": "She opened the door.", "second": "The room was empty."}

    def encodings(self, tokenizer: Tokenizer, **inputs: Any) -> list[tuple[str, Encoding]]:
        """Each pair, as [CLS] first [SEP] second [SEP]."""
        check_same_count(inputs["first"], inputs["second"], "first and second")
        return list(zip(inputs["first"], tokenizer.encode_batch(inputs["first"], inputs["second"]), strict=True))

    def result(self, text: str, encoding: Encoding, logits: np.ndarray) -> float:
        """The probability of label 0."""
        return float(torch.from_numpy(logits).softmax(dim=-1)[0])


class Replaced(Question):
    """Replaced token detection: a word was replaced if one of its pieces was."""

    route = "replaced"
    head = "replaced_token"
    refusal = (
        "this model has no replaced-token head, so it cannot judge words; "
        "load ELECTRA's discriminator, or a model that was pre-trained with objective=rtd and saved with its head"
    )
    summary = "for each word of a text the probability that it was replaced by another"
    fields = (RequestField("text"),)
    request_summary = "Texts in which words may have been replaced."
    request_example: ClassVar[Mapping[str, object]] = {"text": "The chef ate the meal."}

    def encodings(self, tokenizer: Tokenizer, **inputs: Any) -> list[tuple[str, Encoding]]:
        """Each text."""
        return list(zip(inputs["text"], tokenizer.encode_batch(inputs["text"]), strict=True))

    def result(self, text: str, encoding: Encoding, logits: np.ndarray) -> list[JudgedWord]:
        """The words with the highest probability of their pieces."""
        probabilities = torch.from_numpy(logits).sigmoid().tolist()
        words: dict[int, tuple[int, int, float]] = {}
        for word, span, probability in zip(encoding.words, encoding.offsets, probabilities, strict=True):
            if word is not None:
                start, end, highest = words.get(word, (*span, 0.0))
                words[word] = (min(start, span[0]), max(end, span[1]), max(highest, probability))
        judged = [row for row in words.values() if row[0] < row[1]]
        spans = with_marks([(start, end) for start, end, _ in judged], text)
        return [JudgedWord(text[a:b], a, b, row[2]) for (a, b), row in zip(spans, judged, strict=True)]


QUESTIONS: Mapping[str, Question] = MappingProxyType({row.route: row for row in (Follows(), Replaced())})


def answerable(model: "BertModel") -> tuple[str, ...]:
    """The questions that the heads of a model answer."""
    return tuple(name for name, row in QUESTIONS.items() if row.head in model.heads)


@dataclass(frozen=True)
class Asked:
    """An input of a question, and the sequences in which the model reads it: one, or windows over a long text."""

    text: str
    encoding: Encoding
    segments: Sequence[int]
    limit: int

    @cached_property
    def views(self) -> tuple[list[Passage], list[tuple[int, int]]]:
        """The sequences; and for windows, which tokens each has."""
        passage = Passage(self.encoding.ids, self.segments)
        return window_passages(passage, self.limit) if len(self.encoding) > self.limit else ([passage], [])

    def logits(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """The head's logits for the whole input, from those of its sequences."""
        _, spans = self.views
        return stitch([torch.from_numpy(row) for row in rows], spans).numpy() if spans else rows[0]


@dataclass(frozen=True)
class QuestionInputs:
    """All inputs of a question, ready for the model."""

    row: Question
    inputs: list[Asked]

    @classmethod
    def of(cls, row: Question, model: "BertModel", tokenizer: Tokenizer, limit: int, **inputs: Any) -> "QuestionInputs":
        """The inputs, tokenized; a model without the head is refused."""
        if row.head not in model.heads:
            raise RequestError(row.refusal)
        pairs = row.encodings(tokenizer, **inputs)
        long = [(number, len(each)) for number, (_, each) in enumerate(pairs) if len(each) > limit]
        if long and not row.windows:
            number, tokens = long[0]
            raise RequestError(
                f"{numbered('pair', number)} has {tokens} tokens, over the limit of {limit}; shorten its texts"
            )
        return cls(row, [Asked(text, each, known_segments(model.config, each.segments), limit) for text, each in pairs])

    @property
    def lengths(self) -> list[int]:
        """The tokens of each input."""
        return [len(asked.encoding) for asked in self.inputs]

    @property
    def passages(self) -> list[Passage]:
        """The sequences of all inputs."""
        return [passage for asked in self.inputs for passage in asked.views[0]]

    def results(self, rows: Sequence[np.ndarray]) -> list[Any]:
        """The answers, from the head's logits for each sequence."""
        remaining = iter(rows)
        logits = [asked.logits([next(remaining) for _ in asked.views[0]]) for asked in self.inputs]
        return [self.row.result(each.text, each.encoding, row) for each, row in zip(self.inputs, logits, strict=True)]


def ask(name: str, model: "BertModel", tokenizer: Tokenizer, limit: int, **inputs: Any) -> list[Any]:
    """The answer of a model's head to each input of a question, a key of QUESTIONS."""
    row = QUESTIONS[name]
    reading = QuestionInputs.of(row, model, tokenizer, limit, **inputs)
    report = report_lengths(reading.lengths, limit, "window")
    if report.long:
        warn(str(report))
    passages = reading.passages
    lengths = [len(passage.ids) for passage in passages]
    rows: dict[int, np.ndarray] = {}

    def compute(indices: list[int]) -> None:
        batch, hidden_TD = last_layer(model.encoder, [passages[i] for i in indices], model.device)
        logits = model.read(row.head, hidden_TD, batch).float().cpu()
        parts = list(logits) if HEADS[row.head].pooled else batch.split(logits)
        rows.update(zip(indices, (part.numpy() for part in parts), strict=True))

    batches = list(token_batches(lengths, token_budget(lengths, model.device)))
    map_batches(compute, batches, sum(lengths), model.device)
    return reading.results([rows[i] for i in range(len(passages))])
