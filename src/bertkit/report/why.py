"""The results of attribution: as an HTML page, and as colored text for a terminal."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from bertkit.report.page import JsonResult, PageResult, render_page

if TYPE_CHECKING:
    from rich.text import Text

MAX_WORDS = 12  # in the list below the text
DIRECTION_MARKS = {"\u200e", "\u200f", "\u061c", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}
MAX_GAP = 0.01  # of shares that add up, relative to the difference to explain


@dataclass(frozen=True)
class WordShare:
    """What a word adds to the score: the sum of the shares of its pieces."""

    word: str
    part: int  # 0: in the text; 1: in the pair
    start: int  # characters [start, end)
    end: int
    share: float
    pieces: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Why(PageResult, JsonResult):
    """How much each word adds to a score. A notebook shows the page; `save` writes it; `str` is for the terminal."""

    _frame_height: ClassVar[int] = 320

    text: str
    pair: str | None
    target: str
    units: str
    method: str
    baseline: str
    steps: int
    score: float
    baseline_score: float  # with every word at the baseline
    gap: float | None  # |sum of shares - (score - baseline_score)| relative to the latter; None: need not be 0
    cut_from: int | None  # tokens of the text, if it was cut
    words: tuple[WordShare, ...]
    probability: float | None = None  # of the target; None: it is a number, or an answer in a passage
    baseline_probability: float | None = None  # with every word at the baseline
    model: str = ""  # its name

    @property
    def complete(self) -> bool:
        """Whether the shares add up."""
        return self.gap is not None and self.gap < MAX_GAP

    def top(self, count: int) -> list[WordShare]:
        """The words with the largest contributions, positive or negative."""
        return sorted(self.words, key=lambda word: -abs(word.share))[:count]

    @property
    def html(self) -> str:
        """The page as HTML, without scripts."""
        return why_page(self)

    def __str__(self) -> str:
        return "\n".join(why_lines(self))


@dataclass(frozen=True)
class Change:
    """A replaced word.

    `probability` is that of the new word, by the masked-word model.
    """

    old: str
    new: str
    probability: float


@dataclass(frozen=True)
class Flip:
    """A text for which the classifier predicts another label."""

    text: str
    changes: tuple[Change, ...]
    places: tuple[tuple[int, int], ...]  # characters [start, end) of the new words
    answer: str
    probability: float  # of the new label

    @property
    def likely(self) -> float:
        """The product of the replacements' probabilities."""
        return prod(change.probability for change in self.changes)


@dataclass(frozen=True)
class Flips(JsonResult):
    """The replacements that change a prediction, most probable words first."""

    text: str
    answer: str
    probability: float
    tried: int  # number of texts that were classified
    most_words: int
    found: tuple[Flip, ...]

    def __str__(self) -> str:
        return "\n".join(flip_lines(self))


def why_page(why: Why, flips: Flips | None = None) -> str:
    """The page: texts with shaded words, the largest contributions, and replacements that change the prediction."""
    texts = [_shaded(why, part, text) for part, text in enumerate((why.text, why.pair)) if text is not None]
    return render_page(
        "why.html",
        title=f"{_title(why)} — bertkit why",
        heading=_title(why),
        texts=texts,
        notes=list(why_notes(why)),
        words=[(word.word, _signed(word.share), abs(word.share) / _largest(why)) for word in why.top(MAX_WORDS)],
        answer=probability_words(why),
        model=why.model,
        flips=None if flips is None else _flips(flips),
    )


def why_lines(why: Why) -> Iterator[str]:
    """The explanation as lines of text, largest contributions first."""
    yield _title(why)
    if (answer := probability_words(why)) is not None:
        yield answer
    for word in why.top(MAX_WORDS):
        yield f"{word.share:+9.3f}  {visible(word.word)}"
    if len(why.words) > MAX_WORDS:
        rest = sum(word.share for word in why.words) - sum(word.share for word in why.top(MAX_WORDS))
        yield f"{rest:+9.3f}  the other {len(why.words) - MAX_WORDS} words"
    yield from why_notes(why)


def why_text(why: Why) -> "Text":
    """The texts with their words in color, for a terminal."""
    from rich.text import Text

    largest, shown = _largest(why), Text()
    for part, text in enumerate((why.text, why.pair)):
        if text is None:
            continue
        shown.append("\n" if part else "")
        for piece, word in _split_at_words(why, part, text):
            size = 0.0 if word is None else abs(word.share) / largest
            color = _tint((35, 110, 235) if word is not None and word.share > 0 else (240, 130, 30), size)
            shown.append(visible(piece), style=f"#111111 on {color}" if size > 0.05 else "")
    return shown


def probability_words(why: Why) -> str | None:
    """The probability of what is explained, with and without the words; None if it has none."""
    if why.probability is None or why.baseline_probability is None:
        return None
    return f"probability {why.probability:.1%} ({why.baseline_probability:.1%} with all words hidden)"


def why_notes(why: Why) -> Iterator[str]:
    """The method and the scores, and whether the shares add up."""
    both = f"{_minus(f'{why.score:.3f}')} with the text, {_minus(f'{why.baseline_score:.3f}')}"
    yield f"{why.units}: {both} with every word at the {why.baseline} baseline"
    if why.gap is None:
        yield "gradient x input: one gradient at the text; its shares need not add up to the difference"
    else:
        steps = f"integrated gradients, {why.steps} steps: the shares add up to the difference"
        yield steps + (
            f" (gap {why.gap:.2%})" if why.complete else f" only with a gap of {why.gap:.1%}, so treat them with care"
        )
    if why.cut_from is not None:
        yield f"the model was fine-tuned to read a part of longer texts: this one has {why.cut_from} tokens"


def flip_lines(flips: Flips) -> Iterator[str]:
    """The replacements that change the prediction, most probable words first."""
    yield visible(f"'{flips.answer}' with {flips.probability:.1%}; {flips.tried:,} texts tried")
    if not flips.found:
        yield f"no likely replacement of up to {flips.most_words} words changes that"
    for flip in flips.found:
        changes = ", ".join(f"{change.old} → {change.new} ({change.probability:.1%})" for change in flip.changes)
        yield visible(f"  {changes}: '{flip.answer}' with {flip.probability:.1%}")


def visible(text: str) -> str:
    """The text with � for control characters and direction marks, which a terminal would interpret."""
    return "".join(
        "�" if (unicodedata.category(c) == "Cc" and c not in "\n\t") or c in DIRECTION_MARKS else c for c in text
    )


def _minus(number: str) -> str:
    """A number with a real minus sign, which is as wide as the plus sign."""
    return number.replace("-", "−")


def _signed(share: float) -> str:
    return _minus(f"{share:+.3f}")


def _title(why: Why) -> str:
    return visible(f"Why {why.target}?").replace("\n", " ")


def _shaded(why: Why, part: int, text: str) -> list[tuple[str, str | None, float]]:
    """(piece of text, share, size relative to the largest) for the whole text; share None between words."""
    largest = _largest(why)
    pieces = _split_at_words(why, part, text)
    return [
        (piece, *((None, 0.0) if word is None else (_signed(word.share), abs(word.share) / largest)))
        for piece, word in pieces
    ]


def _split_at_words(why: Why, part: int, text: str) -> Iterator[tuple[str, WordShare | None]]:
    """The whole text in pieces: words with their shares, and what is between them."""
    end = 0
    for word in why.words:
        if word.part == part and word.start >= end:  # one character may be two words of a byte-level tokenizer
            yield text[end : word.start], None
            yield text[word.start : word.end], word
            end = word.end
    yield text[end:], None


def _flips(flips: Flips) -> dict[str, Any]:
    rows = [
        (_inserted(flip.text, flip.places), flip.answer, f"{flip.probability:.1%}", f"{flip.likely:.2%}")
        for flip in flips.found
    ]
    return {"note": next(flip_lines(flips)), "most_words": flips.most_words, "rows": rows}


def _inserted(text: str, places: Sequence[tuple[int, int]]) -> Iterator[tuple[str, bool]]:
    """(piece of text, whether it is a new word) for the whole text."""
    previous = 0
    for start, end in sorted(places):
        yield text[previous:start], False
        yield text[start:end], True
        previous = end
    yield text[previous:], False


def _largest(why: Why) -> float:
    return max((abs(word.share) for word in why.words), default=0.0) or 1.0


def _tint(color: tuple[int, int, int], size: float) -> str:
    """A hex color between white (size 0) and the color (size 1)."""
    return "#" + "".join(f"{round(255 + (part - 255) * (0.15 + 0.7 * size)):02x}" for part in color)
