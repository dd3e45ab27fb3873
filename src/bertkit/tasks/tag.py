"""A tag for each word: names, parts of speech."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.data.examples import Characters, Example, TaggedExample
from bertkit.data.schemes import recognize, spans_from_tags
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.model.word_loss import IGNORE
from bertkit.settings import pick
from bertkit.tasks.metrics.classes import LabelScore
from bertkit.tasks.metrics.spans import span_scores
from bertkit.tasks.metrics.table import tag_scores
from bertkit.tasks.rows.tag import TagRow
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.explain import Request, Target, read_at
from bertkit.tasks.shared.labels import balanced_weights
from bertkit.tasks.shared.length import Seen
from bertkit.tasks.shared.losses import divergence
from bertkit.tasks.shared.text_task import filled
from bertkit.tasks.shared.word_task import WordTask, at_words, find_word
from bertkit.tasks.task import LossSettings, Mistake, Part, Predict, Rows, Size, Task, Window

SHOWN_WORDS = 6  # of a sentence's errors in the report


@dataclass(frozen=True)
class TagSpan:
    """A run of words that belong together; characters are known where the words come from a plain text."""

    label: str
    words: tuple[int, int]  # [first, end)
    text: str
    probability: float  # of its least certain word
    characters: tuple[int, int] | None = None  # [start, end) in the original text


@dataclass(frozen=True)
class Tagged:
    """A sentence with a tag and its probability for each word, and the spans that the tags mark."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    spans: tuple[TagSpan, ...]
    seen: Seen


@dataclass(frozen=True, kw_only=True)
class Tag(WordTask):
    """One label for each word: softmax."""

    row = TagRow()

    @cached_property
    def scheme(self) -> str:
        """How the labels mark spans; of a set of labels only `plain` is certain."""
        return recognize([self.labels])

    @property
    def main(self) -> str:
        """F1 over spans; where the tags mark none, accuracy over words."""
        return "accuracy" if self.scheme == "plain" else self.row.metrics.main

    def gold(self, example: Example) -> list[int] | None:
        """The numbers of the tags."""
        assert isinstance(example, TaggedExample)
        if example.tags is None:
            return None
        tags = example.tags
        if len(tags) != len(example.words):
            raise RequestError(f"{example.place}: {len(example.words)} words came with {len(tags)} tags; give as many")
        for tag in tags:
            if tag not in self.label_numbers:
                raise RequestError(
                    f"{example.place}: the tag '{tag}' is not among the labels: {', '.join(self.labels)}; "
                    "correct it, or train on data that has it"
                )
        return [self.label_numbers[tag] for tag in tags]

    def loss_sum(self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings) -> Tensor:
        """Cross entropy at the first piece of each word; T labels in."""
        target = torch.tensor(list(chain.from_iterable(window.target for window in windows)), device=logits.device)
        balance = None if weights.class_weights is None else logits.new_tensor(weights.class_weights)
        return F.cross_entropy(
            logits, target, balance, ignore_index=IGNORE, reduction="sum", label_smoothing=weights.label_smoothing
        )

    def fixed_targets(self, windows: Sequence[Window], size: Size, weights: LossSettings) -> tuple[Tensor, ...]:
        """A label and its weight for each token; none where no word begins."""
        wanted = list(chain.from_iterable(window.target for window in windows))
        balance = weights.class_weights
        shares = [0.0 if tag == IGNORE else balance[tag] if balance else 1.0 for tag in wanted]
        return filled([max(tag, 0) for tag in wanted], size.tokens, 0), filled(shares, size.tokens, 0.0)

    def fixed_loss(self, logits: Tensor, batch: Batch, targets: Sequence[Tensor], smoothing: float) -> Tensor:
        """Cross entropy times weight."""
        wanted, shares = targets
        return (F.cross_entropy(logits, wanted, reduction="none", label_smoothing=smoothing) * shares).sum()

    def has_fixed_loss(self, weights: LossSettings) -> bool:
        """Torch smooths a weighted loss by all labels' weights; a weight for each row is not that."""
        return not (weights.class_weights and weights.label_smoothing)

    def distance(
        self, teacher: Task, ours: Tensor, theirs: Tensor, batch: Batch, windows: Sequence[Window], temperature: float
    ) -> Tensor:
        """Divergence between the tags' probabilities of each word."""
        scored = torch.tensor([wanted >= 0 for window in windows for wanted in window.target], device=ours.device)
        return divergence(ours[scored], theirs[scored], temperature)

    def score(self, examples: Sequence[Example], predictions: Sequence[Tagged]) -> dict[str, float]:
        """Accuracy over words, and precision, recall and F1 over spans where the tags mark some."""
        gold = [example.tags or () for example in examples if isinstance(example, TaggedExample)]
        return tag_scores(gold, [prediction.tags for prediction in predictions], self.scheme)

    def decode_one(self, example: Example, windows: Sequence[Window], outputs: Rows, decision: Decision) -> Tagged:
        """The likeliest tag of each word; spans of a plain text have their characters in it."""
        assert isinstance(example, TaggedExample)
        best = np.full(len(example.words), -1)
        probability = np.zeros(len(example.words))
        for window, logits in zip(windows, outputs, strict=True):
            words = list(window.detail.words)
            shares = decision.class_probabilities(logits[list(window.detail.positions)])
            best[words], probability[words] = shares.argmax(axis=-1), shares.max(axis=-1)
        tags = tuple(self.labels[number] for number in best)
        chances = tuple(probability.tolist())
        found = Tagged(example.words, tags, chances, _spans(example.words, tags, chances), windows[0].detail.seen)
        if example.text is None or example.characters is None:
            return found
        return located(found, example.text, example.characters)

    def calibration_table(self, dev: Part, outputs: Rows) -> tuple[np.ndarray, np.ndarray]:
        """The logits of words, and the numbers of their tags."""
        return at_words(dev, outputs)

    def class_weights(self, counts: Mapping[str, int], examples: int) -> tuple[float, ...]:
        """All tags together weigh the same."""
        return balanced_weights(counts, self.labels)

    def answers(self, example: Example, prediction: Tagged, decision: Decision) -> list[tuple[str, str]]:
        """Each word's tag and the likeliest one."""
        assert isinstance(example, TaggedExample)
        return list(zip(example.tags or (), prediction.tags, strict=True))

    def mistake(self, example: Example, prediction: Tagged) -> Mistake | None:
        """The words with a wrong tag; the surest of them counts."""
        assert isinstance(example, TaggedExample)
        pairs = zip(example.words, example.tags or (), prediction.tags, prediction.probabilities, strict=True)
        wrong = [(word, tag, best, chance) for word, tag, best, chance in pairs if tag != best]
        if not wrong:
            return None
        truth, predicted = (", ".join(f"{row[0]}: {row[side]}" for row in wrong[:SHOWN_WORDS]) for side in (1, 2))
        return Mistake(max(row[3] for row in wrong), " ".join(example.words), truth, predicted)

    def label_scores(self, dev: Part, predictions: Sequence[Tagged]) -> dict[str, LabelScore]:
        """Of every kind of span, where the tags mark spans."""
        if self.scheme == "plain":
            return {}
        gold = [example.tags or () for example in dev.examples if isinstance(example, TaggedExample)]
        return dict(span_scores(gold, [prediction.tags for prediction in predictions]))

    def explain(self, model: BertModel, request: Request, predict: Predict) -> Target:
        """The logit of a tag at a word's first piece: a named word's, or the first that has a tag other than O."""
        example, window, tokens = self.explained_word(request)
        [found] = predict([example])
        outside = next((n for n, tag in enumerate(found.tags) if tag != "O"), 0)
        at = outside if request.word is None else find_word(example.words, request.word)
        tag = found.tags[at] if request.target is None else request.target
        number = pick(self.label_numbers, tag, "tag")
        name = f"the tag '{tag}' of '{example.words[at]}'"
        return Target(name, "logit", tokens, read_at(model, self.head, window.detail.positions[at], number))


def located(tagged: Tagged, text: str, characters: Characters) -> Tagged:
    """The same tags with their spans found in the text that `words_of` parted into these words."""
    spans = []
    for span in tagged.spans:
        start, end = characters[span.words[0]][0], characters[span.words[1] - 1][1]
        spans.append(replace(span, text=text[start:end], characters=(start, end)))
    return replace(tagged, spans=tuple(spans))


def _spans(words: Sequence[str], tags: Sequence[str], chances: Sequence[float]) -> tuple[TagSpan, ...]:
    return tuple(
        TagSpan(
            span.label,
            (span.start, span.end),
            " ".join(words[span.start : span.end]),
            min(chances[span.start : span.end]),
        )
        for span in spans_from_tags(tags)
    )
