"""Faults of examples, found without a model: twins, contradictions, leaks, spoiled characters, forbidden tags."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from bertkit.data.examples import Example, QuestionExample, TaggedExample
from bertkit.data.schemes import first_violation, recognize
from bertkit.data.tables import Place

# What a text can hold that its author did not write. Each is searched for in every text.
SPOILED = {
    "texts with U+FFFD, the rest of a character that was lost": re.compile("\ufffd"),
    "texts that look like UTF-8 read as Latin-1 (Ã©, â€™)": re.compile("Ã[\x80-\xbf]|â€|Â[\xa0-\xbf]"),
    "texts with control characters": re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"),
    "texts with HTML (&quot; or <br>)": re.compile(r"&(amp|quot|lt|gt|nbsp|#\d+);|<br ?/?>"),
    "empty texts": re.compile(r"\A\s*\Z"),
}


@dataclass(frozen=True)
class Finding:
    """What was found, how often (0: it is not a thing to count), the first place of it, and perhaps some more."""

    what: str
    count: int
    first: str
    more: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = "".join(f"\n      {each}" for each in self.more)
        count = f"{self.count:,}; " if self.count else ""
        return f"{self.what}: {count}{self.first}{more}"


def folded(text: str) -> str:
    """The text without regard to case and spaces."""
    return " ".join(text.casefold().split())


def key(example: Example, fold: Callable[[str], str]) -> bytes:
    """Equal for equal texts; 16 bytes, so that large files fit into memory."""
    joined = "\x1f".join(map(fold, example.texts))
    return hashlib.blake2b(joined.encode(), digest_size=16).digest()


def _twins(examples: Iterable[Example]) -> Iterator[tuple[Example, Example]]:
    """(first, later) for every later example with the same texts, case and spaces aside."""
    seen: dict[bytes, Example] = {}
    for example in examples:
        first = seen.setdefault(key(example, folded), example)
        if first is not example:
            yield first, example


def duplicates(examples: Sequence[Example]) -> Iterator[Finding]:
    """Examples that stand in the file before, with the same label."""
    same = [(a, b) for a, b in _twins(examples) if a.outcome == b.outcome]
    yield from _finding("repeated examples with the same label", [_both(a, b) for a, b in same])


def conflicts(examples: Sequence[Example]) -> Iterator[Finding]:
    """The same texts with another label."""
    other = [(a, b) for a, b in _twins(examples) if a.outcome != b.outcome]
    shown = [f"{_both(a, b)}, as {_short(b.outcome)} and as {_short(a.outcome)}" for a, b in other]
    yield from _finding("repeated examples with another label", shown)


def leaks(train: Sequence[Example], dev: Sequence[Example]) -> Iterator[Finding]:
    """Examples of dev that stand in train: exactly, or but for case and spaces."""
    before = 0
    for fold, how in ((str, "letter by letter"), (folded, "case and spaces aside")):
        places = {key(example, fold): example.place for example in train}
        found = [(e.place, places[k]) for e in dev if (k := key(e, fold)) in places]
        share = f" ({len(found) / max(len(dev), 1):.1%} of dev)"
        shown = [f"the first is {a}, as in {b}{share}" for a, b in found]
        yield from _finding(f"dev examples that are in train, {how}", shown if len(found) > before else [])
        before = len(found)


def shared_passages(train: Sequence[Example], dev: Sequence[Example]) -> Iterator[Finding]:
    """Questions of dev about a passage that train asks about as well."""
    known = {folded(e.passage) for e in train if isinstance(e, QuestionExample)}
    shared = [e.place for e in dev if isinstance(e, QuestionExample) and folded(e.passage) in known]
    yield from _finding("dev questions on a passage of train", [f"the first is {place}" for place in shared])


def spoiled_texts(examples: Sequence[Example]) -> Iterator[Finding]:
    """Texts with characters that tell of a wrong conversion, and empty ones."""
    found: dict[str, list[Place]] = {what: [] for what in SPOILED}
    for example in examples:
        texts = example.texts
        for what, pattern in SPOILED.items():
            if any(map(pattern.search, texts)):
                found[what].append(example.place)
    for what, places in found.items():
        yield from _finding(what, [f"the first is {place}" for place in places])


def broken_tags(examples: Sequence[Example]) -> Iterator[Finding]:
    """Sentences whose tags the file's own scheme forbids."""
    tagged = [(e, e.tags) for e in examples if isinstance(e, TaggedExample) and e.tags]
    if not tagged:
        return
    scheme = recognize(tags for _, tags in tagged)
    broken = [f"{e.place}, {broke}" for e, tags in tagged if (broke := first_violation(tags, scheme)) is not None]
    yield from _finding(f"sentences with tags that {scheme} forbids", broken, more=4)


def _finding(what: str, places: Sequence[str], more: int = 0) -> Iterator[Finding]:
    if places:
        yield Finding(what, len(places), places[0], tuple(places[1 : 1 + more]))


def _both(first: Example, later: Example) -> str:
    return f"the first is {later.place}, as in {first.place.unit} {first.place.line}"


def _short(label: object) -> str:
    if isinstance(label, frozenset):
        label = ", ".join(sorted(label)) or "nothing"
    text = " ".join(label) if isinstance(label, tuple) else str(label)
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
