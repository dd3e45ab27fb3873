"""Tagging: a tag for each word, such as named entities or parts of speech."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from bertkit.report.tables import html_table
from bertkit.settings import pick
from bertkit.tasks.metrics.classes import LabelScore
from bertkit.tasks.metrics.spans import span_scores
from bertkit.tasks.metrics.table import tag_scores
from bertkit.tasks.rows.tag import TagRow
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.explain import Request, Target, probability_at, read_at
from bertkit.tasks.shared.labels import balanced_weights
from bertkit.tasks.shared.length import Seen
from bertkit.tasks.shared.losses import divergence, weighted_cross_entropy
from bertkit.tasks.shared.text_task import pad_to
from bertkit.tasks.shared.word_task import WordTask, find_word, first_piece_outputs
from bertkit.tasks.task import Dataset, FixedSize, HeadOutputs, LossSettings, Mistake, Predict, Task, Window

MAX_LISTED_WORDS = 6  # wrong words of a sentence in the report


@dataclass(frozen=True)
class TagSpan:
    """A span of words with one label; `characters` is set if the words come from a plain text."""

    label: str
    words: tuple[int, int]  # [first, end)
    text: str
    probability: float  # the lowest of its words
    characters: tuple[int, int] | None = None  # [start, end) in the original text


@dataclass(frozen=True)
class Tagged:
    """A tag and its probability for each word of a sentence, and the spans that the tags encode."""

    words: tuple[str, ...] = field(repr=False)
    tags: tuple[str, ...]
    probabilities: tuple[float, ...] = field(repr=False)
    spans: tuple[TagSpan, ...]
    seen: Seen = field(repr=False)

    def _repr_html_(self) -> str:
        rows = zip(self.words, self.tags, self.probabilities, strict=True)
        return html_table(("word", "tag", "probability"), rows)


@dataclass(frozen=True, kw_only=True)
class Tag(WordTask):
    """One label for each word, by softmax."""

    row = TagRow()

    @cached_property
    def scheme(self) -> str:
        """The tag scheme of the labels; from labels alone, only `plain` is recognized with certainty."""
        return recognize([self.labels])

    @property
    def main_metric(self) -> str:
        """F1 over spans, or accuracy over words if the tags encode no spans."""
        return "accuracy" if self.scheme == "plain" else self.row.metrics.main

    def gold(self, example: Example) -> list[int] | None:
        """The label ids of the tags."""
        assert isinstance(example, TaggedExample)
        if example.tags is None:
            return None
        tags = example.tags
        if len(tags) != len(example.words):
            raise RequestError(
                f"{example.location}: {len(example.words)} words came with {len(tags)} tags; give as many"
            )
        for tag in tags:
            if tag not in self.label_ids:
                raise RequestError(
                    f"{example.location}: the tag '{tag}' is not among the labels: {', '.join(self.labels)}; "
                    "correct it, or train on data that has it"
                )
        return [self.label_ids[tag] for tag in tags]

    def loss_sum(self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings) -> Tensor:
        """Sum of the cross-entropies at the first pieces of words; logits are T labels."""
        gold = torch.tensor(list(chain.from_iterable(window.target for window in windows)), device=logits.device)
        class_weights = None if weights.class_weights is None else logits.new_tensor(weights.class_weights)
        return F.cross_entropy(
            logits, gold, class_weights, ignore_index=IGNORE, reduction="sum", label_smoothing=weights.label_smoothing
        )

    def fixed_targets(self, windows: Sequence[Window], size: FixedSize, weights: LossSettings) -> tuple[Tensor, ...]:
        """The label id and the weight of each token; the weight is 0 if no word begins there."""
        gold = list(chain.from_iterable(window.target for window in windows))
        class_weights = weights.class_weights or (1.0,) * len(self.labels)
        token_weights = [0.0 if label == IGNORE else class_weights[label] for label in gold]
        return pad_to(size.tokens, [max(label, 0) for label in gold]), pad_to(size.tokens, token_weights)

    def fixed_loss(self, logits: Tensor, batch: Batch, targets: Sequence[Tensor], smoothing: float) -> Tensor:
        """Sum of cross-entropies times weights."""
        return weighted_cross_entropy(logits, targets, smoothing)

    def has_fixed_loss(self, weights: LossSettings) -> bool:
        """Not with class weights and smoothing together: torch weights the smoothing term of each label, too."""
        return not (weights.class_weights and weights.label_smoothing)

    def distillation_loss(
        self, teacher: Task, logits: Tensor, target: Tensor, batch: Batch, windows: Sequence[Window], temperature: float
    ) -> Tensor:
        """Sum of the divergences between the tag probabilities of each word."""
        scored = torch.tensor([label >= 0 for window in windows for label in window.target], device=logits.device)
        return divergence(logits[scored], target[scored], temperature)

    def score(self, examples: Sequence[Example], predictions: Sequence[Tagged]) -> dict[str, float]:
        """Accuracy over words; precision, recall and F1 over spans if the tags encode spans."""
        return tag_scores(*_gold_and_predicted(examples, predictions), self.scheme)

    def decode_one(
        self, example: Example, windows: Sequence[Window], outputs: HeadOutputs, decision: Decision
    ) -> Tagged:
        """The most probable tag of each word, and the spans of the tags."""
        assert isinstance(example, TaggedExample)
        best = np.full(len(example.words), -1)
        highest = np.zeros(len(example.words))
        for window, logits in zip(windows, outputs, strict=True):
            words = list(window.detail.words)
            probabilities = decision.class_probabilities(logits[list(window.detail.positions)])
            best[words], highest[words] = probabilities.argmax(axis=-1), probabilities.max(axis=-1)
        tags = tuple(self.labels[label] for label in best)
        spans = _spans(example.words, tags, highest.tolist())
        tagged = Tagged(example.words, tags, tuple(highest.tolist()), spans, windows[0].detail.seen)
        if example.text is None or example.characters is None:
            return tagged
        return with_characters(tagged, example.text, example.characters)

    def constant_outputs(self, train: Dataset) -> tuple[float, ...]:
        """The number of words of each tag: always the most frequent one."""
        counts = Counter(label for window in train.flat for label in window.target)
        return tuple(float(counts[label]) for label in range(len(self.labels)))

    def calibration_table(self, dev: Dataset, outputs: HeadOutputs) -> tuple[np.ndarray, np.ndarray]:
        """(logits, label ids) of the words."""
        return first_piece_outputs(dev, outputs)

    def class_weights(self, counts: Mapping[str, int], examples: int) -> tuple[float, ...]:
        """Weights inverse to the counts of the tags."""
        return balanced_weights(counts, self.labels)

    def answer_pairs(self, example: Example, prediction: Tagged, decision: Decision) -> list[tuple[str, str]]:
        """The gold tag and the predicted one of each word."""
        assert isinstance(example, TaggedExample)
        return list(zip(example.tags or (), prediction.tags, strict=True))

    def mistake(self, example: Example, prediction: Tagged) -> Mistake | None:
        """The words with a wrong tag, weighted by the highest probability of a wrong tag."""
        assert isinstance(example, TaggedExample)
        rows = zip(example.words, example.tags or (), prediction.tags, prediction.probabilities, strict=True)
        wrong = [row for row in rows if row[1] != row[2]]
        if not wrong:
            return None
        truth, predicted = (", ".join(f"{row[0]}: {row[side]}" for row in wrong[:MAX_LISTED_WORDS]) for side in (1, 2))
        return Mistake(max(row[3] for row in wrong), " ".join(example.words), truth, predicted)

    def label_scores(self, dev: Dataset, predictions: Sequence[Tagged]) -> dict[str, LabelScore]:
        """Precision and recall of every span label, if the tags encode spans."""
        if self.scheme == "plain":
            return {}
        return dict(span_scores(*_gold_and_predicted(dev.examples, predictions)))

    def explain(self, model: BertModel, request: Request, predict: Predict) -> Target:
        """The logit of a tag at a word's first piece: of the named word, or of the first with a tag other than O."""
        example, window, tokens = self.explained_words(request)
        [prediction] = predict([example])
        first_tagged = next((n for n, tag in enumerate(prediction.tags) if tag != "O"), 0)
        word = first_tagged if request.word is None else find_word(example.words, request.word)
        tag = prediction.tags[word] if request.target is None else request.target
        label = pick(self.label_ids, tag, "tag")
        name = f"the tag '{tag}' of '{example.words[word]}'"
        place = model, self.head, window.detail.positions[word], label
        return Target(name, "logit", tokens, read_at(*place), probability_at(*place))


def with_characters(tagged: Tagged, text: str, characters: Characters) -> Tagged:
    """The same tags; the spans have their characters in the text, whose words have these character spans."""
    spans = []
    for span in tagged.spans:
        start, end = characters[span.words[0]][0], characters[span.words[1] - 1][1]
        spans.append(replace(span, text=text[start:end], characters=(start, end)))
    return replace(tagged, spans=tuple(spans))


def _gold_and_predicted(
    examples: Sequence[Example], predictions: Sequence[Tagged]
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    gold = [example.tags or () for example in examples if isinstance(example, TaggedExample)]
    return gold, [prediction.tags for prediction in predictions]


def _spans(words: Sequence[str], tags: Sequence[str], probabilities: Sequence[float]) -> tuple[TagSpan, ...]:
    return tuple(
        TagSpan(label, (start, end), " ".join(words[start:end]), min(probabilities[start:end]))
        for start, end, label in spans_from_tags(tags)
    )
