"""Checks of examples without a model: duplicates, conflicting labels, leaks, corrupted characters, invalid tags."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from bertkit.data.examples import Example, QuestionExample, TaggedExample
from bertkit.data.schemes import first_violation, recognize

# Traces of faulty conversions, searched for in every text.
CORRUPTED_TEXT = {
    "texts with U+FFFD, the rest of a character that was lost": re.compile("\ufffd"),
    "texts that look like UTF-8 read as Latin-1 (Ã©, â€™)": re.compile("Ã[\x80-\xbf]|â€|Â[\xa0-\xbf]"),
    "texts with control characters": re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"),
    "texts with HTML (&quot; or <br>)": re.compile(r"&(amp|quot|lt|gt|nbsp|#\d+);|<br ?/?>"),
    "empty texts": re.compile(r"\A\s*\Z"),
}


@dataclass(frozen=True)
class Finding:
    """One problem of the data."""

    what: str
    count: int  # of occurrences; 0 if they are not counted
    first: str  # description of the first occurrence
    more: tuple[str, ...] = ()  # and of some others

    def __str__(self) -> str:
        more = "".join(f"\n      {line}" for line in self.more)
        count = f"{self.count:,}; " if self.count else ""
        return f"{self.what}: {count}{self.first}{more}"


def folded(text: str) -> str:
    """The text with case and spaces normalized."""
    return " ".join(text.casefold().split())


def key(example: Example, fold: Callable[[str], str]) -> bytes:
    """A hash of an example's texts; 16 bytes, so that large files fit into memory."""
    joined = "\x1f".join(map(fold, example.texts))
    return hashlib.blake2b(joined.encode(), digest_size=16).digest()


def _repeated(examples: Iterable[Example]) -> Iterator[tuple[Example, Example]]:
    """(first, later) for every example with the same texts as an earlier one, ignoring case and spaces."""
    seen: dict[bytes, Example] = {}
    for example in examples:
        first = seen.setdefault(key(example, folded), example)
        if first is not example:
            yield first, example


def duplicates(examples: Sequence[Example]) -> Iterator[Finding]:
    """Examples that repeat an earlier one with the same label."""
    same = [(a, b) for a, b in _repeated(examples) if a.outcome == b.outcome]
    yield from _finding("repeated examples with the same label", [_both(a, b) for a, b in same])


def conflicts(examples: Sequence[Example]) -> Iterator[Finding]:
    """Examples that repeat an earlier one with another label."""
    other = [(a, b) for a, b in _repeated(examples) if a.outcome != b.outcome]
    lines = [f"{_both(a, b)}, as {_short(b.outcome)} and as {_short(a.outcome)}" for a, b in other]
    yield from _finding("repeated examples with another label", lines)


def leaks(train: Sequence[Example], dev: Sequence[Example]) -> Iterator[Finding]:
    """Dev examples that are in train: exactly, or ignoring case and spaces."""
    exact = 0
    for fold, how in ((str, "letter by letter"), (folded, "case and spaces aside")):
        train_locations = {key(example, fold): example.location for example in train}
        pairs = [(e.location, train_locations[k]) for e in dev if (k := key(e, fold)) in train_locations]
        share = f" ({len(pairs) / max(len(dev), 1):.1%} of dev)"
        lines = [f"the first is {a}, as in {b}{share}" for a, b in pairs]
        yield from _finding(f"dev examples that are in train, {how}", lines if len(pairs) > exact else [])
        exact = len(pairs)


def shared_passages(train: Sequence[Example], dev: Sequence[Example]) -> Iterator[Finding]:
    """Dev questions about a passage that is also in train."""
    passages = {folded(e.passage) for e in train if isinstance(e, QuestionExample)}
    shared = [e.location for e in dev if isinstance(e, QuestionExample) and folded(e.passage) in passages]
    yield from _finding("dev questions on a passage of train", [f"the first is {location}" for location in shared])


def corrupted_texts(examples: Sequence[Example]) -> Iterator[Finding]:
    """Texts with traces of a faulty conversion, and empty texts."""
    for what, pattern in CORRUPTED_TEXT.items():
        affected = [example.location for example in examples if any(map(pattern.search, example.texts))]
        yield from _finding(what, [f"the first is {location}" for location in affected])


def invalid_tags(examples: Sequence[Example]) -> Iterator[Finding]:
    """Sentences with tags that are invalid in the scheme of the file."""
    tagged = [(e, e.tags) for e in examples if isinstance(e, TaggedExample) and e.tags]
    if not tagged:
        return
    scheme = recognize(tags for _, tags in tagged)
    invalid = [f"{e.location}, {fault}" for e, tags in tagged if (fault := first_violation(tags, scheme)) is not None]
    yield from _finding(f"sentences with tags that {scheme} forbids", invalid, more=4)


def _finding(what: str, lines: Sequence[str], more: int = 0) -> Iterator[Finding]:
    """One finding with a line for each occurrence; nothing if there are none."""
    if lines:
        yield Finding(what, len(lines), lines[0], tuple(lines[1 : 1 + more]))


def _both(first: Example, later: Example) -> str:
    return f"the first is {later.location}, as in {first.location.unit} {first.location.line}"


def _short(label: object) -> str:
    if isinstance(label, frozenset):
        label = ", ".join(sorted(label)) or "nothing"
    text = " ".join(label) if isinstance(label, tuple) else str(label)
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
