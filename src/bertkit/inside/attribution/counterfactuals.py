"""Counterfactuals: replacement words, proposed by a masked-word model, that change the prediction of a classifier.

Each word is masked, and the classifier predicts the text with each word that the masked-word model proposes. If no
prediction changes, a second word is replaced in the texts with the lowest probability of the original label. The search
is bounded, so finding nothing only means: nothing among the texts that were tried.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.errors import RequestError
from bertkit.inside.attribution.attribution import why
from bertkit.predict.bert import Bert
from bertkit.report.why import Change, Flip, Flips
from bertkit.tasks.shared.explain import Request, text_tokens
from bertkit.tasks.shared.text_task import likeliest
from bertkit.text.tokenizer import Tokenizer

MAX_FLIPS = 10  # reported, most probable words first


@dataclass(frozen=True, kw_only=True)
class FlipSettings:
    """The bounds of the search."""

    words: int = 2  # maximum number of replaced words
    tried: int = 24  # words of the text that are replaced; of more, those that contribute most
    likely: int = 10  # best words of the masked-word model for each position
    least: float = 0.005  # their minimum probability
    kept: int = 4  # texts with one replaced word that get a second replacement

    def __post_init__(self) -> None:
        if self.words not in (1, 2):
            raise RequestError(f"words={self.words} must be 1 or 2")
        for name in ("tried", "likely", "kept"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name}={getattr(self, name)} must be 1 or more")


@dataclass(frozen=True)
class _Draft:
    """A text with some words replaced."""

    text: str
    changes: tuple[Change, ...] = ()
    places: tuple[tuple[int, int], ...] = ()  # characters [start, end) of the new words

    def replaced(self, span: tuple[int, int], new: str, probability: float) -> "_Draft":
        """The draft with one more word replaced."""
        start, end = span
        shift = len(new) - (end - start)
        places = tuple((a + shift, b + shift) if a >= end else (a, b) for a, b in self.places)
        change = Change(self.text[start:end], new, probability)
        text = self.text[:start] + new + self.text[end:]
        return _Draft(text, (*self.changes, change), (*places, (start, start + len(new))))


def flips(
    bert: Bert, text: str, pair: str | None = None, *, fill: Bert | None = None, settings: FlipSettings | None = None
) -> Flips:
    """Replacements of words of `text` that change the prediction of a classifier for it, or for the pair.

    `fill` proposes the words; by default the classifier itself, if it still has its masked-word head.
    """
    settings, source = settings or FlipSettings(), _filler(bert, fill)
    label, probability = _predict(bert, [text], pair)[0]
    drafts = _proposals(source, _Draft(text), _ranked_words(bert, text, pair, settings), settings)
    predicted = _predict_drafts(bert, drafts, pair)
    changed = _changed(predicted, label)
    if not changed and settings.words == 2:
        least_certain = sorted(predicted, key=lambda prediction: prediction[2])[: settings.kept]
        second: list[_Draft] = []
        for draft, _, _ in least_certain:
            second += _proposals(source, draft, _ranked_words(bert, draft.text, pair, settings), settings)
        predicted_second = _predict_drafts(bert, second, pair)
        predicted, changed = [*predicted, *predicted_second], _changed(predicted_second, label)
    return Flips(text, label, probability, len(predicted), settings.words, tuple(changed[:MAX_FLIPS]))


def _filler(bert: Bert, fill: Bert | None) -> Bert:
    row = bert.answers.task.row
    if not row.labeled or row.word_level:
        raise RequestError(f"this model was fine-tuned for '{bert.answers.task.name}'; only a label can be flipped")
    source = bert if fill is None else fill
    if not source.model.fills:
        who = "this classifier" if fill is None else "the model given as --fill-model"
        raise RequestError(
            f"{who} has no masked-word head to propose words; name a model that has one: --fill-model DIR"
        )
    return source


def _predict(bert: Bert, texts: Sequence[str], pair: str | None) -> list[tuple[str, float]]:
    """The label of each text and its probability; with several labels, the lowest probability of a decision."""
    predictions: Any = bert.classify(list(texts), None if pair is None else [pair] * len(texts)) if texts else []
    if bert.answers.task.row.exclusive:
        best = [(likeliest(each.probabilities), each.probabilities) for each in predictions]
        return [(label, probabilities[label]) for label, probabilities in best]
    certainties = (
        min(p if label in each.labels else 1 - p for label, p in each.probabilities.items()) for each in predictions
    )
    names = (", ".join(each.labels) or "no label" for each in predictions)
    return list(zip(names, certainties, strict=True))


def _predict_drafts(bert: Bert, drafts: Sequence[_Draft], pair: str | None) -> list[tuple[_Draft, str, float]]:
    predictions = _predict(bert, [draft.text for draft in drafts], pair)
    return [(draft, *prediction) for draft, prediction in zip(drafts, predictions, strict=True)]


def _changed(predicted: Sequence[tuple[_Draft, str, float]], label: str) -> list[Flip]:
    """The drafts with another label, most probable words first."""
    flips = [Flip(draft.text, draft.changes, draft.places, new, p) for draft, new, p in predicted if new != label]
    unique = {flip.text: flip for flip in flips}  # two orders of the same two replacements give one text
    return sorted(unique.values(), key=lambda flip: -flip.likely)


def _ranked_words(bert: Bert, text: str, pair: str | None, settings: FlipSettings) -> list[tuple[int, int]]:
    """The spans of the words, without punctuation; of many words, those that contribute most to the prediction."""
    words = text_tokens(bert.model, bert.tokenizer, Request(text, pair)).text_words
    spans = [(word.start, word.end) for word in words if word.part == 0 and _is_word(word.word)]
    if len(spans) <= settings.tried:
        return spans
    ranked = sorted(why(bert, text, pair).words, key=lambda word: -word.share)
    spans = [(word.start, word.end) for word in ranked if word.part == 0 and _is_word(word.word)]
    return spans[: settings.tried]


def _proposals(source: Bert, draft: _Draft, spans: Sequence[tuple[int, int]], settings: FlipSettings) -> list[_Draft]:
    """The draft with each word replaced by each word that the masked-word model proposes."""
    tokenizer, drafts = source.tokenizer, []
    for start, end in spans:
        if any(a < end and start < b for a, b in draft.places):
            continue  # a replacement is not replaced again
        masked = f"{draft.text[:start]}{tokenizer.mask_token}{draft.text[end:]}"
        blank = _masks_before(tokenizer, masked, start)
        # One more word, because the original is usually among them.
        for filled in source.fill(masked, top=min(settings.likely + 1, tokenizer.size)):
            new = filled.word
            likely = filled.blank == blank and filled.probability >= settings.least
            if likely and _is_word(new) and new.casefold() != draft.text[start:end].casefold():
                drafts.append(draft.replaced((start, end), new, filled.probability))
    return drafts


def _masks_before(tokenizer: Tokenizer, text: str, start: int) -> int:
    """The number of [MASK] tokens before a character of the text."""
    encoding = tokenizer.encode(text)
    rows = zip(encoding.ids, encoding.offsets, strict=True)
    return sum(token == tokenizer.mask_id and end <= start for token, (_, end) in rows)


def _is_word(text: str) -> bool:
    return not text.startswith(("##", "[")) and any(map(str.isalnum, text))
