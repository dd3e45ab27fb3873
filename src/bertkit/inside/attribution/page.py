"""What each word contributes: as one HTML page, and as colored lines for a terminal."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from bertkit.report.page import JsonResult, PageResult, render_page

if TYPE_CHECKING:
    from rich.text import Text

MAX_WORDS = 12  # listed below the text
DIRECTION_MARKS = {"\u200e", "\u200f", "\u061c", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}
ENOUGH = 0.01  # the largest gap, as a share of what there is to explain


@dataclass(frozen=True)
class WordShare:
    """What a word adds to the score: its pieces' shares, summed."""

    word: str
    part: int  # 0: in the text; 1: in the pair
    start: int  # characters [start, end)
    end: int
    share: float
    pieces: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Why(PageResult, JsonResult):
    """How much each word adds to a score. A notebook shows it; `save` writes a page; `str` is for the terminal."""

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
    gap: float | None  # |sum of shares - (score - baseline_score)| as a share of the latter; None: not a sum to check
    cut_from: int | None
    words: tuple[WordShare, ...]

    @property
    def complete(self) -> bool:
        """Whether the shares add up."""
        return self.gap is not None and self.gap < ENOUGH

    def top(self, count: int) -> list[WordShare]:
        """The words that count most, for or against."""
        return sorted(self.words, key=lambda each: -abs(each.share))[:count]

    @property
    def html(self) -> str:
        """The page, complete; no script runs on it."""
        return why_page(self)

    def __str__(self) -> str:
        return "\n".join(why_lines(self))


@dataclass(frozen=True)
class Change:
    """One word for another, and how probable the masked-word model finds the new one there."""

    old: str
    new: str
    probability: float

    def __str__(self) -> str:
        return f"{self.old} → {self.new} ({self.probability:.1%})"


@dataclass(frozen=True)
class Flip:
    """A text that the classifier answers otherwise."""

    text: str
    changes: tuple[Change, ...]
    places: tuple[tuple[int, int], ...]  # characters of the new words in the text
    answer: str
    probability: float  # that the classifier gives its new answer

    @property
    def likely(self) -> float:
        """The product of the replacements' probabilities."""
        return prod(change.probability for change in self.changes)


@dataclass(frozen=True)
class Flips(JsonResult):
    """What was found, the fewest changes and the likeliest words first."""

    text: str
    answer: str
    probability: float
    tried: int  # texts put to the classifier
    most_words: int
    found: tuple[Flip, ...]

    def __str__(self) -> str:
        return "\n".join(flip_lines(self))


def why_page(why: Why, flips: Flips | None = None) -> str:
    """The whole page: the texts with shaded words, the largest contributions, and what would change the answer."""
    texts = [_shaded(why, part, text) for part, text in enumerate((why.text, why.pair)) if text is not None]
    return render_page(
        "why.html",
        title=f"{_title(why)} — bertkit look",
        heading=_title(why),
        texts=texts,
        notes=list(why_notes(why)),
        words=[(each.word, f"{each.share:+.3f}") for each in why.top(MAX_WORDS)],
        flips=None if flips is None else _flips(flips),
    )


def why_lines(why: Why) -> Iterator[str]:
    """The same as plain lines, the largest contributions first."""
    yield _title(why)
    for each in why.top(MAX_WORDS):
        yield f"{each.share:+9.3f}  {visible(each.word)}"
    if len(why.words) > MAX_WORDS:
        rest = sum(each.share for each in why.words) - sum(each.share for each in why.top(MAX_WORDS))
        yield f"{rest:+9.3f}  the other {len(why.words) - MAX_WORDS} words"
    yield from why_notes(why)


def why_text(why: Why) -> "Text":
    """The texts with their words in color; a terminal without colors shows them plain."""
    from rich.text import Text

    largest, shown = _largest(why), Text()
    for part, text in enumerate((why.text, why.pair)):
        if text is None:
            continue
        shown.append("\n" if part else "")
        for words, each in _pieces(why, part, text):
            size = 0.0 if each is None else abs(each.share) / largest
            color = _mixed((35, 110, 235) if each is not None and each.share > 0 else (240, 130, 30), size)
            shown.append(visible(words), style=f"#111111 on {color}" if size > 0.05 else "")
    return shown


def why_notes(why: Why) -> Iterator[str]:
    """Where the numbers come from, and whether they add up."""
    line = f"{why.score:.3f} with the text, {why.baseline_score:.3f} with every word at the {why.baseline} baseline"
    yield f"{line}; {why.units}"
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
    """What would change the answer, most likely words first."""
    yield visible(f"'{flips.answer}' with {flips.probability:.1%}; {flips.tried:,} texts tried")
    if not flips.found:
        yield f"no likely replacement of up to {flips.most_words} words changes that"
    for flip in flips.found:
        changes = ", ".join(map(str, flip.changes))
        yield visible(f"  {changes}: '{flip.answer}' with {flip.probability:.1%}")


def visible(text: str) -> str:
    """Control characters and direction marks as �: a terminal would obey them."""
    return "".join(
        "�" if (unicodedata.category(c) == "Cc" and c not in "\n\t") or c in DIRECTION_MARKS else c for c in text
    )


def _title(why: Why) -> str:
    return visible(f"Why {why.target}?").replace("\n", " ")


def _shaded(why: Why, part: int, text: str) -> list[tuple[str, float | None, float]]:
    """(words, their share, its size relative to the largest) from the beginning to the end; None between words."""
    largest = _largest(why)
    pieces = _pieces(why, part, text)
    return [
        (words, *((None, 0.0) if each is None else (each.share, abs(each.share) / largest))) for words, each in pieces
    ]


def _pieces(why: Why, part: int, text: str) -> Iterator[tuple[str, WordShare | None]]:
    """The text from its beginning to its end: words with their shares, and what stands between them."""
    at = 0
    for each in why.words:
        if each.part == part and each.start >= at:  # bytes of one character may be two words to a tokenizer
            yield text[at : each.start], None
            yield text[each.start : each.end], each
            at = each.end
    yield text[at:], None


def _flips(flips: Flips) -> dict[str, Any]:
    rows = [
        (_inserted(flip.text, flip.places), flip.answer, f"{flip.probability:.1%}", f"{flip.likely:.2%}")
        for flip in flips.found
    ]
    return {"note": next(flip_lines(flips)), "most_words": flips.most_words, "rows": rows}


def _inserted(text: str, places: Sequence[tuple[int, int]]) -> Iterator[tuple[str, bool]]:
    """(words, whether they are new) from the beginning to the end."""
    at = 0
    for start, end in sorted(places):
        yield text[at:start], False
        yield text[start:end], True
        at = end
    yield text[at:], False


def _largest(why: Why) -> float:
    return max((abs(each.share) for each in why.words), default=0.0) or 1.0


def _mixed(color: tuple[int, int, int], size: float) -> str:
    """From white at size 0 to the color at size 1."""
    return "#" + "".join(f"{round(255 + (part - 255) * (0.15 + 0.7 * size)):02x}" for part in color)
