"""What each word adds, for the eye: as one HTML page, and as colored lines for a terminal."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.files import whole_file
from bertkit.inside.look.page import frame, style
from bertkit.train.report.page import POLICY

if TYPE_CHECKING:
    from rich.text import Text


SHOWN = 12  # words that are listed below the text
# Blue adds, orange takes away, as in the view of neurons.
MORE_STYLE = """
.why mark{color:inherit;background:none;border-radius:4px;padding:1px 0}
.why mark.for{background:rgb(35 110 235/calc(var(--size)*.6))}
.why mark.against{background:rgb(240 130 30/calc(var(--size)*.75))}
.why .text{max-height:none;line-height:1.9;unicode-bidi:plaintext;color:var(--ink)!important}
.why table{border-collapse:collapse;margin-top:14px;width:auto}
.why th,.why td{text-align:left;padding:3px 18px 3px 0;border-bottom:1px solid var(--rule);
font-variant-numeric:tabular-nums;unicode-bidi:plaintext;overflow-wrap:anywhere}
.why th{color:var(--quiet);font-weight:400}
.why .quiet{color:var(--quiet)}
.why ins{text-decoration:none;font-weight:650;border-bottom:2px solid rgb(var(--accent))}
"""
UNSEEN = {"\u200e", "\u200f", "\u061c", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}


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
class Why:
    """How much each word adds to a score. A notebook shows it; `save` writes a page; `str` is for the terminal."""

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

    def to_json(self) -> dict[str, Any]:
        """Everything, for a file."""
        return asdict(self)

    @property
    def html(self) -> str:
        """The page, complete; no script runs on it."""
        return why_page(self)

    def save(self, path: Path | str) -> None:
        """Write the page whole or not at all."""
        with whole_file(path) as draft:
            draft.write_text(self.html, encoding="utf-8", newline="\n", errors="replace")

    def _repr_html_(self) -> str:
        return frame(self.html, height=320)

    def __str__(self) -> str:
        return "\n".join(why_lines(self))


@dataclass(frozen=True)
class Change:
    """One word for another, and how probable the masked-word model finds the new one there."""

    old: str
    new: str
    probability: float


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
class Flips:
    """What was found, the fewest changes and the likeliest words first."""

    text: str
    answer: str
    probability: float
    tried: int  # texts put to the classifier
    most_words: int
    found: tuple[Flip, ...]

    def to_json(self) -> dict[str, Any]:
        """Everything, for a file."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(flip_lines(self))


def why_page(why: Why, flips: Flips | None = None) -> str:
    """The whole page. Texts reach it escaped, and its policy lets no script run and nothing be fetched."""
    texts = [_marked(why, part, text) for part, text in enumerate((why.text, why.pair)) if text is not None]
    sections = [
        f"<header><h1>{escape(_title(why))}</h1></header>",
        *(f'<p class="text">{text}</p>' for text in texts),
        *(f'<p class="quiet">{escape(note)}</p>' for note in why_notes(why)),
        _table(why),
        *(() if flips is None else _flips(flips)),
    ]
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>{escape(_title(why))} — bertkit look</title><style>{style()}{MORE_STYLE}</style>"
    body = "\n".join(sections)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><main class="bertkit-look why">\n{body}\n'
        "</main></body></html>\n"
    )


def why_lines(why: Why) -> Iterator[str]:
    """The same as plain lines, the words that count most first."""
    yield _title(why)
    for each in why.top(SHOWN):
        yield f"{each.share:+9.3f}  {visible(each.word)}"
    if len(why.words) > SHOWN:
        rest = sum(each.share for each in why.words) - sum(each.share for each in why.top(SHOWN))
        yield f"{rest:+9.3f}  the other {len(why.words) - SHOWN} words"
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
        yield steps + (f" (gap {why.gap:.2%})" if why.complete else f" only with a gap of {why.gap:.1%}; mind it")
    if why.cut_from is not None:
        yield f"the model was taught to read a part of longer texts: this one has {why.cut_from} tokens"


def flip_lines(flips: Flips) -> Iterator[str]:
    """What would change the answer, most likely words first."""
    yield visible(f"'{flips.answer}' with {flips.probability:.1%}; {flips.tried:,} texts tried")
    if not flips.found:
        yield f"no likely replacement of up to {flips.most_words} words changes that"
    for flip in flips.found:
        changes = ", ".join(f"{change.old} → {change.new} ({change.probability:.1%})" for change in flip.changes)
        yield visible(f"  {changes}: '{flip.answer}' with {flip.probability:.1%}")


def visible(text: str) -> str:
    """Control characters would move a terminal's cursor, and marks of direction turn a line around: as � both."""
    return "".join("�" if (unicodedata.category(c) == "Cc" and c not in "\n\t") or c in UNSEEN else c for c in text)


def _title(why: Why) -> str:
    return visible(f"Why {why.target}?").replace("\n", " ")


def _marked(why: Why, part: int, text: str) -> str:
    largest, out = _largest(why), []
    for words, each in _pieces(why, part, text):
        if each is None:
            out.append(escape(words))
            continue
        side = "for" if each.share > 0 else "against"
        size = f"{abs(each.share) / largest:.3f}"
        out.append(f'<mark class="{side}" style="--size:{size}" title="{each.share:+.3f}">{escape(words)}</mark>')
    return "".join(out)


def _pieces(why: Why, part: int, text: str) -> Iterator[tuple[str, WordShare | None]]:
    """The text from its beginning to its end: words with their shares, and what stands between them."""
    at = 0
    for each in why.words:
        if each.part == part and each.start >= at:  # bytes of one character may be two words to a tokenizer
            yield text[at : each.start], None
            yield text[each.start : each.end], each
            at = each.end
    yield text[at:], None


def _table(why: Why) -> str:
    rows = "".join(f"<tr><td>{escape(each.word)}</td><td>{each.share:+.3f}</td></tr>" for each in why.top(SHOWN))
    return f"<table><tr><th>word</th><th>adds</th></tr>{rows}</table>"


def _flips(flips: Flips) -> Iterator[str]:
    yield "<h2>What would change it</h2>"
    yield f'<p class="quiet">{escape(next(flip_lines(flips)))}</p>'
    if not flips.found:
        yield f"<p>No likely replacement of up to {flips.most_words} words does.</p>"
        return
    rows = "".join(
        f"<tr><td>{_inserted(flip.text, flip.places)}</td><td>{escape(flip.answer)}</td>"
        f"<td>{flip.probability:.1%}</td><td>{flip.likely:.2%}</td></tr>"
        for flip in flips.found
    )
    yield f"<table><tr><th>text</th><th>answer</th><th>sure</th><th>words likely</th></tr>{rows}</table>"


def _inserted(text: str, places: Sequence[tuple[int, int]]) -> str:
    out, at = [], 0
    for start, end in sorted(places):
        out.append(f"{escape(text[at:start])}<ins>{escape(text[start:end])}</ins>")
        at = end
    return "".join(out) + escape(text[at:])


def _largest(why: Why) -> float:
    return max((abs(each.share) for each in why.words), default=0.0) or 1.0


def _mixed(color: tuple[int, int, int], size: float) -> str:
    """White at no size, the color at the largest."""
    return "#" + "".join(f"{round(255 + (part - 255) * (0.15 + 0.7 * size)):02x}" for part in color)
