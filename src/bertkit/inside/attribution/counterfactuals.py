"""What would change a classifier's answer: words that a masked-word model finds likely, put in place of the text's.

One word first: every word is hidden, and what the masked-word model would write there is put to the classifier. If
that changes nothing, the replacements that shook the answer most are kept and a second word is replaced. The search
is bounded, so that finding nothing means: nothing among what was tried.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.errors import RequestError
from bertkit.inside.attribution.attribution import why
from bertkit.inside.attribution.page import Change, Flip, Flips
from bertkit.predict.bert import Bert
from bertkit.tasks.shared.explain import Request, text_tokens
from bertkit.tasks.shared.text_task import likeliest
from bertkit.text.tokenizer import Tokenizer

MOST_FLIPS = 10  # told, the likeliest first


@dataclass(frozen=True, kw_only=True)
class FlipSettings:
    """The bounds of the search."""

    words: int = 2  # replaced together at most
    tried: int = 24  # words of the text that are hidden; of more, those that add most to the answer
    likely: int = 10  # the masked-word model's best words for each place
    least: float = 0.005  # and at least so probable
    kept: int = 4  # texts with one word replaced that go on to a second

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
    places: tuple[tuple[int, int], ...] = ()

    def replaced(self, span: tuple[int, int], new: str, probability: float) -> "_Draft":
        """With one more word replaced; places behind it move along."""
        start, end = span
        moved = len(new) - (end - start)
        places = tuple((a + moved, b + moved) if a >= end else (a, b) for a, b in self.places)
        change = Change(self.text[start:end], new, probability)
        text = self.text[:start] + new + self.text[end:]
        return _Draft(text, (*self.changes, change), (*places, (start, start + len(new))))


def flips(
    bert: Bert, text: str, pair: str | None = None, *, fill: Bert | None = None, settings: FlipSettings | None = None
) -> Flips:
    """Replacements of words of `text` that change what the classifier says of it, or of the pair.

    `fill` proposes the words; without it the classifier does, if it has kept its masked-word head.
    """
    settings, source = settings or FlipSettings(), _filler(bert, fill)
    answer, chance = _judge(bert, [text], pair)[0]
    drafts = _proposals(source, _Draft(text), _ranked_words(bert, text, pair, settings), settings)
    judged = _judge_drafts(bert, drafts, pair)
    found = _changed(judged, answer)
    if not found and settings.words == 2:
        shaken = sorted(judged, key=lambda each: each[2])[: settings.kept]
        second: list[_Draft] = []
        for draft, _, _ in shaken:
            second += _proposals(source, draft, _ranked_words(bert, draft.text, pair, settings), settings)
        again = _judge_drafts(bert, second, pair)
        judged, found = [*judged, *again], _changed(again, answer)
    return Flips(text, answer, chance, len(judged), settings.words, tuple(found[:MOST_FLIPS]))


def _filler(bert: Bert, fill: Bert | None) -> Bert:
    row = bert.answers.task.row
    if not row.labeled or row.word_level:
        raise RequestError(f"this model was fine-tuned for '{bert.answers.task.name}'; only a label can be flipped")
    source = bert if fill is None else fill
    if not source.model.fills:
        who = "this classifier" if fill is None else "the model given as --fill-model"
        raise RequestError(f"{who} cannot fill blanks to propose words; name a model that can: --fill-model DIR")
    return source


def _judge(bert: Bert, texts: Sequence[str], pair: str | None) -> list[tuple[str, float]]:
    """The answer to each text, and its probability: of several labels, that of the least sure."""
    said: Any = bert.classify(list(texts), None if pair is None else [pair] * len(texts)) if texts else []
    if bert.answers.task.row.exclusive:
        best = [likeliest(each.probabilities) for each in said]
        return [(label, each.probabilities[label]) for label, each in zip(best, said, strict=True)]
    return [(", ".join(each.labels) or "no label", _sureness(each.labels, each.probabilities)) for each in said]


def _sureness(labels: Sequence[str], probabilities: dict[str, float]) -> float:
    return min(chance if label in labels else 1 - chance for label, chance in probabilities.items())


def _judge_drafts(bert: Bert, drafts: Sequence[_Draft], pair: str | None) -> list[tuple[_Draft, str, float]]:
    answers = _judge(bert, [draft.text for draft in drafts], pair)
    return [(draft, *answer) for draft, answer in zip(drafts, answers, strict=True)]


def _changed(judged: Sequence[tuple[_Draft, str, float]], answer: str) -> list[Flip]:
    found = [Flip(draft.text, draft.changes, draft.places, new, sure) for draft, new, sure in judged if new != answer]
    unique = {flip.text: flip for flip in found}  # two orders of the same two words give one text
    return sorted(unique.values(), key=lambda flip: -flip.likely)


def _ranked_words(bert: Bert, text: str, pair: str | None, settings: FlipSettings) -> list[tuple[int, int]]:
    """The places of the words; of many, those that add most to the answer. Punctuation is left alone."""
    words = [
        each
        for each in text_tokens(bert.model, bert.tokenizer, Request(text, pair)).text_words
        if each.part == 0 and _is_word(each.word)
    ]
    if len(words) <= settings.tried:
        return [(each.start, each.end) for each in words]
    ranked = sorted(why(bert, text, pair).words, key=lambda each: -each.share)
    spoken = [(each.start, each.end) for each in ranked if each.part == 0 and _is_word(each.word)]
    return spoken[: settings.tried]


def _proposals(source: Bert, draft: _Draft, spans: Sequence[tuple[int, int]], settings: FlipSettings) -> list[_Draft]:
    """The draft with each word replaced by each that the masked-word model finds likely there."""
    tokenizer, found = source.tokenizer, []
    for start, end in spans:
        if any(a < end and start < b for a, b in draft.places):
            continue  # a word that was put in stays
        hidden = f"{draft.text[:start]}{tokenizer.mask_token}{draft.text[end:]}"
        blank = _blanks_before(tokenizer, hidden, start)
        # One more than wanted: the word itself is mostly among them.
        for filled in source.fill(hidden, top=min(settings.likely + 1, tokenizer.size)):
            new = filled.word
            likely = filled.blank == blank and filled.probability >= settings.least
            if likely and _is_word(new) and new.casefold() != draft.text[start:end].casefold():
                found.append(draft.replaced((start, end), new, filled.probability))
    return found


def _blanks_before(tokenizer: Tokenizer, text: str, start: int) -> int:
    """How many blanks of its own the text has before a place."""
    encoding = tokenizer.encode(text)
    rows = zip(encoding.ids, encoding.offsets, strict=True)
    return sum(token == tokenizer.mask_id and end <= start for token, (_, end) in rows)


def _is_word(new: str) -> bool:
    return not new.startswith(("##", "[")) and any(map(str.isalnum, new))
