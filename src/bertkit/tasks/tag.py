"""A tag for each word: names, parts of speech. A word is scored at its first piece, once, in its best window."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.data.examples import Example, TaggedExample
from bertkit.data.schemes import recognize, spans_from_tags
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.word_loss import IGNORE
from bertkit.tasks.decision import Decision
from bertkit.tasks.length import DEFAULT_POLICIES, LengthPolicy, Seen, check_policy, refuse_too_long, spread
from bertkit.tasks.metrics.table import METRICS, tag_scores
from bertkit.tasks.task import LossSettings, Window, by_example
from bertkit.text.characters import word_spans
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.windows import window_cuts


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


@dataclass(frozen=True)
class ScoredWords:
    """Which words a window scores, and at which of its tokens."""

    words: tuple[int, ...]
    places: tuple[int, ...]
    seen: Seen


@dataclass(frozen=True, kw_only=True)
class Tag:
    """The task: one label for each word, through windows where a sentence is long; no word goes without."""

    tokenizer: Tokenizer
    limit: int  # tokens in a sequence
    length: LengthPolicy = DEFAULT_POLICIES["tag"]
    labels: tuple[str, ...]
    name = "tag"
    head = "tag"

    def __post_init__(self) -> None:
        check_policy(self.name, self.length, self.limit)

    @property
    def outputs(self) -> int:
        """A number for each label."""
        return len(self.labels)

    @cached_property
    def scheme(self) -> str:
        """How the labels mark spans; of a set of labels only `plain` is certain."""
        return recognize([self.labels])

    @property
    def main(self) -> str:
        """F1 over spans; where the tags mark none, accuracy over words."""
        return "accuracy" if self.scheme == "plain" else METRICS["tag"].main

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {label: number for number, label in enumerate(self.labels)}

    def windows(self, example: Example, number: int) -> list[Window]:
        """One window, or several that overlap; each word is scored in the one that shows most around it."""
        assert isinstance(example, TaggedExample)
        pieces, firsts = word_pieces(self.tokenizer, example.words)
        spans = spread(len(pieces), self.limit - 2, self.length.stride)
        gold = None if example.tags is None else self._gold(example)
        if gold is not None:  # learned from: with what the way back needs, all windows are in memory
            refuse_too_long(example.place, len(pieces), len(spans), self.limit, "part it into sentences")
        served = words_of_windows(spans, firsts)
        seen = Seen(len(pieces), 0, len(spans))
        made = []
        for (start, stop), words in zip(spans, served, strict=True):
            ids = (self.tokenizer.cls_id, *pieces[start:stop], self.tokenizer.sep_id)
            places = tuple(1 + firsts[word] - start for word in words)
            target = None if gold is None else _target(len(ids), places, [gold[word] for word in words])
            made.append(Window(ids, (0,) * len(ids), number, target, ScoredWords(words, places, seen)))
        return made

    def targets(self, windows: Sequence[Window]) -> int:
        """How many words these windows score."""
        return sum(len(window.detail.words) for window in windows)

    def loss(
        self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings
    ) -> tuple[Tensor, Tensor]:
        """Cross entropy at the first piece of each word; T labels in."""
        target = torch.tensor(list(chain.from_iterable(window.target for window in windows)), device=logits.device)
        balance = None if weights.class_weights is None else logits.new_tensor(weights.class_weights)
        total = F.cross_entropy(
            logits, target, balance, ignore_index=IGNORE, reduction="sum", label_smoothing=weights.label_smoothing
        )
        return total, (target != IGNORE).sum()

    def decode(
        self,
        examples: Sequence[Example],
        windows: Sequence[Window],
        outputs: Sequence[np.ndarray],
        decision: Decision,
    ) -> list[Tagged]:
        """The likeliest tag of each word."""
        return [
            self._decode_one(example, own, rows, decision)
            for example, own, rows in by_example(examples, windows, outputs)
        ]

    def score(self, examples: Sequence[Example], predictions: Sequence[Tagged]) -> dict[str, float]:
        """Accuracy over words, and precision, recall and F1 over spans where the tags mark some."""
        gold = [example.tags or () for example in examples if isinstance(example, TaggedExample)]
        return tag_scores(gold, [prediction.tags for prediction in predictions], self.scheme)

    def _gold(self, example: TaggedExample) -> list[int]:
        tags = example.tags or ()
        if len(tags) != len(example.words):
            raise RequestError(f"{example.place}: {len(example.words)} words came with {len(tags)} tags; give as many")
        for tag in tags:
            if tag not in self._numbers:
                raise RequestError(
                    f"{example.place}: the tag '{tag}' is not among the labels: {', '.join(self.labels)}; "
                    "correct it, or train on data that has it"
                )
        return [self._numbers[tag] for tag in tags]

    def _decode_one(
        self, example: Example, windows: Sequence[Window], outputs: Sequence[np.ndarray], decision: Decision
    ) -> Tagged:
        assert isinstance(example, TaggedExample)
        best = np.full(len(example.words), -1)
        probability = np.zeros(len(example.words))
        for window, logits in zip(windows, outputs, strict=True):
            words = list(window.detail.words)
            shares = decision.class_probabilities(logits[list(window.detail.places)])
            best[words], probability[words] = shares.argmax(axis=-1), shares.max(axis=-1)
        tags = tuple(self.labels[number] for number in best)
        chances = tuple(probability.tolist())
        return Tagged(example.words, tags, chances, _spans(example.words, tags, chances), windows[0].detail.seen)


def word_pieces(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[list[int], list[int]]:
    """(ids, where each word begins in them); a word of nothing the tokenizer keeps is one unknown piece."""
    encoding = tokenizer.encode_words(words)
    pieces: list[list[int]] = [[] for _ in words]
    for token, word in zip(encoding.ids, encoding.words, strict=True):
        if word is not None:
            pieces[word].append(token)
    ids: list[int] = []
    firsts: list[int] = []
    for own in pieces:
        firsts.append(len(ids))
        ids += own or [tokenizer.unknown_id]
    return ids, firsts


def words_of_windows(spans: Sequence[tuple[int, int]], firsts: Sequence[int]) -> list[tuple[int, ...]]:
    """For each window the words it scores: those whose first piece it shows with most around it; each word once."""
    cuts = window_cuts(spans)
    bounds = [bisect_left(firsts, cut) for cut in cuts]
    return [tuple(range(start, stop)) for start, stop in pairwise(bounds)]


def words_of(tokenizer: Tokenizer, text: str) -> tuple[tuple[int, int], ...]:
    """A plain text's words as characters [start, end): parted at spaces and punctuation, as the tokenizer does it."""
    return word_spans(tokenizer.encode(text), text)


def located(tagged: Tagged, text: str, characters: Sequence[tuple[int, int]]) -> Tagged:
    """The same tags with their spans found in the text that `words_of` parted into these words."""
    spans = []
    for span in tagged.spans:
        start, end = characters[span.words[0]][0], characters[span.words[1] - 1][1]
        spans.append(replace(span, text=text[start:end], characters=(start, end)))
    return replace(tagged, spans=tuple(spans))


def _target(length: int, places: Sequence[int], labels: Sequence[int]) -> tuple[int, ...]:
    target = [IGNORE] * length
    for place, label in zip(places, labels, strict=True):
        target[place] = label
    return tuple(target)


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
