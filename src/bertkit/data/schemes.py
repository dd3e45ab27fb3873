"""How spans of words are written as one tag per word: IOB1, IOB2, BIOES, BILOU, or plain tags without spans.

A tag is a letter and a label, `B-PER`, or `O` outside; a letter alone is a span without a label. Sentences
of tags come in, spans go out, and back: what is written by `tags_from_spans` is read back as it was.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from bertkit.errors import RequestError
from bertkit.settings import pick

# The letters of each scheme: begin, inside, last word, single word. IOB1 begins with B only where two spans touch.
SCHEMES: dict[str, str] = {"IOB1": "BIII", "IOB2": "BIIB", "BIOES": "BIES", "BILOU": "BILU", "plain": ""}
_LETTERS = frozenset("BIESLU")
# BILOU's last and single word go by BIOES's letters wherever spans are read.
_AS_BIOES = str.maketrans("LU", "ES")


class Span(NamedTuple):
    """Words `start` up to, not including, `end`, that carry one label.

    A tuple, not a dataclass, because an evaluation makes and compares them by the hundred thousand.
    """

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class Violation:
    """The first tag of a sentence that its scheme forbids; `word` counts from 0."""

    word: int
    tag: str | None  # None: the sentence ends here, after the last word
    before: str
    scheme: str

    def __str__(self) -> str:
        if self.tag is None:
            return f"word {self.word}: {self.scheme} does not let a sentence end with '{self.before}'"
        if not _fits(self.tag, self.scheme):
            return f"word {self.word + 1}: '{self.tag}' is no tag of {self.scheme}"
        after = f"follow '{self.before}'" if self.word else "begin a sentence"
        return f"word {self.word + 1}: {self.scheme} does not let '{self.tag}' {after}"


def split_tag(tag: str) -> tuple[str, str]:
    """`B-PER` as ("B", "PER"), `O` as ("O", ""), a bare `B` as ("B", ""); a tag without a letter as ("", tag)."""
    if tag == "O" or tag in _LETTERS:
        return tag, ""
    if len(tag) > 2 and tag[0] in _LETTERS and tag[1] == "-":
        return tag[0], tag[2:]
    return "", tag


def join_tag(letter: str, label: str) -> str:
    """The tag that `split_tag` takes apart."""
    return f"{letter}-{label}" if label else letter


def all_tags(labels: Iterable[str], scheme: str) -> tuple[str, ...]:
    """Every tag that spans with these labels can need: `O`, then each label's letters; plain labels as they are."""
    letters = dict.fromkeys(pick(SCHEMES, scheme, "tag scheme"))
    if not letters:
        return tuple(labels)
    return ("O", *(join_tag(letter, label) for label in labels for letter in letters))


def may_follow(before: str, tag: str, scheme: str) -> bool:
    """Whether the scheme lets `tag` come after `before`; a sentence begins after `O` and ends before `O`."""
    if scheme == "plain":
        return True
    (old, old_label), (new, label) = split_tag(before), split_tag(tag)
    in_span = old in ("B", "I") and old_label == label
    if scheme == "IOB1":
        return new != "B" or in_span
    if scheme == "IOB2":
        return new != "I" or in_span
    opened, goes_on = old in ("B", "I"), new.translate(_AS_BIOES) in ("I", "E")
    return in_span if goes_on else not opened


def first_violation(tags: Sequence[str], scheme: str) -> Violation | None:
    """The first tag of one sentence that the scheme forbids, or None."""
    pick(SCHEMES, scheme, "tag scheme")
    before = "O"
    for word, tag in enumerate(tags):
        if not _fits(tag, scheme) or not may_follow(before, tag, scheme):
            return Violation(word, tag, before, scheme)
        before = tag
    return None if may_follow(before, "O", scheme) else Violation(len(tags), None, before, scheme)


def check_tags(sentences: Iterable[Sequence[str]], scheme: str, places: Sequence[object] | None = None) -> None:
    """Stop at the first forbidden tag; `places` say where each sentence stands, such as `train.conll, line 7`."""
    for number, tags in enumerate(sentences, start=1):
        violation = first_violation(tags, scheme)
        if violation is not None:
            place = f"sentence {number}" if places is None else places[number - 1]
            raise RequestError(f"{place}, {violation}; correct the tag there")


def recognize(sentences: Iterable[Sequence[str]]) -> str:
    """The scheme these sentences are written in; of IOB1 and IOB2 the one that forbids fewer of their tags.

    Plain when most of the different tags carry no span's letter; a few such tags among spans are for
    `check_tags` to find, so that one slip of the keyboard does not turn a file of names into plain tags.
    """
    steps = _steps(sentences)
    tags = {tag for _, tag in steps} - {"O"}
    letters = {split_tag(tag)[0] for tag in tags} - {""}
    without = sum(not split_tag(tag)[0] for tag in tags)
    if 2 * without > len(tags):
        return "plain"
    if letters & {"E", "S"}:
        return "BIOES"
    if letters & {"L", "U"}:
        return "BILOU"
    forbidden = {scheme: _count_forbidden(steps, scheme) for scheme in ("IOB2", "IOB1")}
    return min(forbidden, key=forbidden.__getitem__)


def spans_from_tags(tags: Sequence[str]) -> list[Span]:
    """The spans, by the rules of CoNLL's scorer: any scheme, and a broken sequence still gives spans.

    A tag goes on with a span if it is inside or last, the one before it is not, and the labels agree;
    every other tag but `O` begins a span. Tags that carry no letter are no spans.
    """
    found: list[Span] = []
    read, start = [*map(_read, tags), ("O", "")], 0
    for word in range(len(tags)):
        if not _goes_on(read[word], read[word + 1]):
            if read[word][0] != "O":
                found.append(Span(start, word + 1, read[word][1]))
            start = word + 1
    return found


def strict_spans(tags: Sequence[str], scheme: str) -> list[Span]:
    """Only the spans that are written as the scheme demands; pieces of broken ones are left out."""
    _same_letters(tags, scheme)
    read = [*map(_read, tags), ("O", "")]
    found: list[Span] = []
    before, start = ("O", ""), 0
    while start < len(tags):
        end = start + 1
        if _begins(before, read[start], scheme):
            while _goes_on(read[end - 1], read[end]):
                end += 1
            if _is_whole(read[end - 1], read[end], scheme):
                found.append(Span(start, end, read[start][1]))
        before, start = read[end - 1], end
    return found


def tags_from_spans(spans: Iterable[Span], length: int, scheme: str) -> tuple[str, ...]:
    """One tag for each of `length` words; spans that overlap or reach outside are refused, not lost."""
    letters = pick(SCHEMES, scheme, "tag scheme")
    if not letters:
        raise RequestError(f"spans cannot be written as plain tags; choose from: {', '.join(sorted(SCHEMES))}")
    tags, last = ["O"] * length, Span(0, 0, "")
    for span in sorted(spans):
        if not last.end <= span.start < span.end <= length:
            raise RequestError(f"{span} overlaps {last} or leaves its {length} words; give spans that stand apart")
        tags[span.start : span.end] = _written(span, letters)
        touches = span.start == last.end and span.label == last.label and last.end > 0
        if scheme == "IOB1" and touches:
            tags[span.start] = join_tag("B", span.label)
        last = span
    return tuple(tags)


def convert(tags: Sequence[str], source: str, target: str) -> tuple[str, ...]:
    """The same spans in another scheme; a sequence that `source` forbids is refused, so that no label is lost."""
    violation = first_violation(tags, source)
    if violation is not None:
        raise RequestError(f"{violation}; correct the tag, then convert")
    if source == target:
        return tuple(tags)
    if source == "plain":
        raise RequestError(f"plain tags mark no spans; they cannot be converted to {target}")
    return tags_from_spans(spans_from_tags(tags), len(tags), target)


def _written(span: Span, letters: str) -> list[str]:
    begin, inside, last, single = tuple(letters)
    words = span.end - span.start
    if words == 1:
        return [join_tag(single, span.label)]
    # IOB1's only B is written by the caller, where two spans touch.
    first = inside if letters == SCHEMES["IOB1"] else begin
    return [join_tag(letter, span.label) for letter in (first, *inside * (words - 2), last)]


def _fits(tag: str, scheme: str) -> bool:
    letter = split_tag(tag)[0]
    return tag != "" if scheme == "plain" else letter == "O" or (letter != "" and letter in SCHEMES[scheme])


def _steps(sentences: Iterable[Sequence[str]]) -> dict[tuple[str, str], int]:
    """How often each tag follows each other one, so that a file is judged by its few hundred steps."""
    steps: dict[tuple[str, str], int] = {}
    for tags in sentences:
        for step in zip(("O", *tags), tags, strict=False):
            steps[step] = steps.get(step, 0) + 1
    return steps


def _count_forbidden(steps: dict[tuple[str, str], int], scheme: str) -> int:
    return sum(count for (before, tag), count in steps.items() if not may_follow(before, tag, scheme))


@lru_cache(maxsize=4096)  # a file has few different tags, each many times
def _read(tag: str) -> tuple[str, str]:
    letter, label = split_tag(tag)
    return (letter.translate(_AS_BIOES), label) if letter else ("O", "")


def _goes_on(before: tuple[str, str], now: tuple[str, str]) -> bool:
    return before[0] in ("B", "I") and now[0] in ("I", "E") and before[1] == now[1]


def _begins(before: tuple[str, str], now: tuple[str, str], scheme: str) -> bool:
    if scheme != "IOB1":
        return now[0] in ("B", "S")
    in_span = before[0] in ("B", "I") and before[1] == now[1]
    return in_span if now[0] == "B" else now[0] == "I" and not (in_span and before[0] == "I")


def _is_whole(last: tuple[str, str], after: tuple[str, str], scheme: str) -> bool:
    if scheme == "IOB1":  # a B that nothing calls for also spoils the single B before it, as seqeval has it
        return not (last[0] == after[0] == "B" and last[1] != after[1])
    return scheme == "IOB2" or last[0] in ("E", "S")


def _same_letters(tags: Sequence[str], scheme: str) -> None:
    if not pick(SCHEMES, scheme, "tag scheme"):
        raise RequestError("plain tags mark no spans; compare them word by word")
    for word, tag in enumerate(tags):
        if not _fits(tag, scheme):
            raise RequestError(str(Violation(word, tag, "O", scheme)))
