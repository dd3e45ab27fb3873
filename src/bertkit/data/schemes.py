"""Tag schemes, which encode spans of words as one tag per word: IOB1, IOB2, BIOES, BILOU; `plain` tags mark no spans.

A tag is a prefix letter and a label (`B-PER`), or `O` outside of spans; a letter alone is a span without a label.
`spans_from_tags` inverts `tags_from_spans`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from bertkit.errors import RequestError
from bertkit.settings import pick

# Prefix letters of each scheme for the first, inner, last and single word of a span. In IOB1 the first word has I too,
# and B only directly after a span with the same label.
SCHEMES: dict[str, str] = {"IOB1": "BIII", "IOB2": "BIIB", "BIOES": "BIES", "BILOU": "BILU", "plain": ""}
_PREFIXES = frozenset("BIESLU")
# When spans are read, BILOU's letters for last and single words are mapped to those of BIOES.
_AS_BIOES = str.maketrans("LU", "ES")


class Span(NamedTuple):
    """Words [start, end) with one label.

    A tuple, not a dataclass, because an evaluation creates and compares hundreds of thousands of them.
    """

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class Violation:
    """The first tag of a sentence that is invalid in the scheme; `word` counts from 0."""

    word: int
    tag: str | None  # None: the sentence must not end here
    before: str
    scheme: str

    def __str__(self) -> str:
        if self.tag is None:
            return f"word {self.word}: {self.scheme} does not let a sentence end with '{self.before}'"
        if not _is_tag_of(self.tag, self.scheme):
            return f"word {self.word + 1}: '{self.tag}' is no tag of {self.scheme}"
        after = f"follow '{self.before}'" if self.word else "begin a sentence"
        return f"word {self.word + 1}: {self.scheme} does not let '{self.tag}' {after}"


def split_tag(tag: str) -> tuple[str, str]:
    """(prefix, label): `B-PER` gives ("B", "PER"), `O` ("O", ""), `B` ("B", ""); a tag without prefix ("", tag)."""
    if tag == "O" or tag in _PREFIXES:
        return tag, ""
    if len(tag) > 2 and tag[0] in _PREFIXES and tag[1] == "-":
        return tag[0], tag[2:]
    return "", tag


def join_tag(letter: str, label: str) -> str:
    """The inverse of `split_tag`."""
    return f"{letter}-{label}" if label else letter


def may_follow(before: str, tag: str, scheme: str) -> bool:
    """Whether `tag` may come after `before`; the start and the end of a sentence count as `O`."""
    if scheme == "plain":
        return True
    (old, old_label), (new, label) = split_tag(before), split_tag(tag)
    in_span = old in ("B", "I") and old_label == label
    if scheme == "IOB1":
        return new != "B" or in_span
    if scheme == "IOB2":
        return new != "I" or in_span
    is_open, continues = old in ("B", "I"), new.translate(_AS_BIOES) in ("I", "E")
    return in_span if continues else not is_open


def first_violation(tags: Sequence[str], scheme: str) -> Violation | None:
    """The first invalid tag of one sentence, or None."""
    pick(SCHEMES, scheme, "tag scheme")
    before = "O"
    for word, tag in enumerate(tags):
        if not _is_tag_of(tag, scheme) or not may_follow(before, tag, scheme):
            return Violation(word, tag, before, scheme)
        before = tag
    return None if may_follow(before, "O", scheme) else Violation(len(tags), None, before, scheme)


def check_tags(sentences: Iterable[Sequence[str]], scheme: str, locations: Sequence[object] | None = None) -> None:
    """Raise RequestError at the first invalid tag; `locations` locate the sentences, such as `train.conll, line 7`."""
    for number, tags in enumerate(sentences, start=1):
        violation = first_violation(tags, scheme)
        if violation is not None:
            location = f"sentence {number}" if locations is None else locations[number - 1]
            raise RequestError(f"{location}, {violation}; correct the tag there")


def recognize(sentences: Iterable[Sequence[str]]) -> str:
    """The scheme of these sentences; of IOB1 and IOB2 the one with fewer invalid tags.

    `plain` if most of the distinct tags have no prefix. A few tags without prefix among others are typing errors, which
    `check_tags` reports.
    """
    transitions = _count_transitions(sentences)
    tags = {tag for _, tag in transitions} - {"O"}
    letters = {split_tag(tag)[0] for tag in tags} - {""}
    without_prefix = sum(not split_tag(tag)[0] for tag in tags)
    if 2 * without_prefix > len(tags):
        return "plain"
    if letters & {"E", "S"}:
        return "BIOES"
    if letters & {"L", "U"}:
        return "BILOU"
    invalid = {scheme: _count_invalid(transitions, scheme) for scheme in ("IOB2", "IOB1")}
    return min(invalid, key=invalid.__getitem__)


def spans_from_tags(tags: Sequence[str]) -> list[Span]:
    """The spans by the lenient rules of CoNLL's scorer, for tags of any scheme; an invalid sequence gives spans, too.

    A tag continues a span if it is inside or last, the tag before it is first or inside, and the labels are equal;
    every other tag but `O` begins a span. Tags without prefix mark no spans.
    """
    spans: list[Span] = []
    parsed, start = [*map(_parse, tags), ("O", "")], 0
    for word in range(len(tags)):
        if not _continues(parsed[word], parsed[word + 1]):
            if parsed[word][0] != "O":
                spans.append(Span(start, word + 1, parsed[word][1]))
            start = word + 1
    return spans


def strict_spans(tags: Sequence[str], scheme: str) -> list[Span]:
    """Only the spans that are valid in the scheme; fragments of invalid ones are left out."""
    _check_prefixes(tags, scheme)
    parsed = [*map(_parse, tags), ("O", "")]
    spans: list[Span] = []
    before, start = ("O", ""), 0
    while start < len(tags):
        end = start + 1
        if _begins(before, parsed[start], scheme):
            while _continues(parsed[end - 1], parsed[end]):
                end += 1
            if _is_complete(parsed[end - 1], parsed[end], scheme):
                spans.append(Span(start, end, parsed[start][1]))
        before, start = parsed[end - 1], end
    return spans


def tags_from_spans(spans: Iterable[Span], length: int, scheme: str) -> tuple[str, ...]:
    """One tag for each of `length` words; spans that overlap or exceed the sentence are refused."""
    letters = pick(SCHEMES, scheme, "tag scheme")
    if not letters:
        raise RequestError(f"spans cannot be written as plain tags; choose from: {', '.join(sorted(SCHEMES))}")
    tags, last = ["O"] * length, Span(0, 0, "")
    for span in sorted(spans):
        if not last.end <= span.start < span.end <= length:
            raise RequestError(f"{span} overlaps {last} or leaves its {length} words; give spans that do not overlap")
        tags[span.start : span.end] = _span_tags(span, letters)
        touches = span.start == last.end and span.label == last.label and last.end > 0
        if scheme == "IOB1" and touches:
            tags[span.start] = join_tag("B", span.label)
        last = span
    return tuple(tags)


def convert(tags: Sequence[str], source: str, target: str) -> tuple[str, ...]:
    """The same spans in another scheme; a sequence that is invalid in `source` is refused, so that no label is lost."""
    violation = first_violation(tags, source)
    if violation is not None:
        raise RequestError(f"{violation}; correct the tag, then convert")
    if source == target:
        return tuple(tags)
    if source == "plain":
        raise RequestError(f"plain tags mark no spans; they cannot be converted to {target}")
    return tags_from_spans(spans_from_tags(tags), len(tags), target)


def _span_tags(span: Span, letters: str) -> list[str]:
    begin, inside, last, single = tuple(letters)
    words = span.end - span.start
    if words == 1:
        return [join_tag(single, span.label)]
    # IOB1's B, for spans with the same label side by side, is set by the caller.
    first = inside if letters == SCHEMES["IOB1"] else begin
    return [join_tag(letter, span.label) for letter in (first, *inside * (words - 2), last)]


def _is_tag_of(tag: str, scheme: str) -> bool:
    letter = split_tag(tag)[0]
    return tag != "" if scheme == "plain" else letter == "O" or (letter != "" and letter in SCHEMES[scheme])


def _count_transitions(sentences: Iterable[Sequence[str]]) -> Counter[tuple[str, str]]:
    """How often each tag follows each other one: a file has only some hundreds of distinct pairs."""
    return Counter(pair for tags in sentences for pair in zip(("O", *tags), tags, strict=False))


def _count_invalid(transitions: Counter[tuple[str, str]], scheme: str) -> int:
    return sum(count for (before, tag), count in transitions.items() if not may_follow(before, tag, scheme))


@lru_cache(maxsize=4096)  # a file has few distinct tags
def _parse(tag: str) -> tuple[str, str]:
    letter, label = split_tag(tag)
    return (letter.translate(_AS_BIOES), label) if letter else ("O", "")


def _continues(before: tuple[str, str], now: tuple[str, str]) -> bool:
    return before[0] in ("B", "I") and now[0] in ("I", "E") and before[1] == now[1]


def _begins(before: tuple[str, str], now: tuple[str, str], scheme: str) -> bool:
    if scheme != "IOB1":
        return now[0] in ("B", "S")
    in_span = before[0] in ("B", "I") and before[1] == now[1]
    return in_span if now[0] == "B" else now[0] == "I" and not (in_span and before[0] == "I")


def _is_complete(last: tuple[str, str], after: tuple[str, str], scheme: str) -> bool:
    if scheme == "IOB1":  # as in seqeval: a B without a span of its label before it also invalidates a single B before
        return not (last[0] == after[0] == "B" and last[1] != after[1])
    return scheme == "IOB2" or last[0] in ("E", "S")


def _check_prefixes(tags: Sequence[str], scheme: str) -> None:
    if not pick(SCHEMES, scheme, "tag scheme"):
        raise RequestError("plain tags mark no spans; compare them word by word")
    for word, tag in enumerate(tags):
        if not _is_tag_of(tag, scheme):
            raise RequestError(str(Violation(word, tag, "O", scheme)))
