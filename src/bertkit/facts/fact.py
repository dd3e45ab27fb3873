"""A fact: a claim with its source, and a function that measures it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bertkit.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Vocabularies:
    """Released vocabularies that some facts are about; without them those facts are not run."""

    uncased: Tokenizer | None = None
    cased: Tokenizer | None = None


@dataclass(frozen=True)
class Outcome:
    """What a fact found."""

    expected: str
    measured: str
    ok: bool


@dataclass(frozen=True)
class Fact:
    """One claim, and what measures it. One without a check says what is absent, or where else it is measured."""

    number: str
    source: str  # file and lines of the source documents
    claim: str
    check: Callable[[Vocabularies], Outcome] | None = None
    needs: str = ""  # the released vocabulary that it is about, if any
    absent: str = ""  # what bertkit does not have
    elsewhere: str = ""  # what it takes, and where that is


def equal(expected: Any, measured: Any) -> Outcome:
    """Holds when both are the same."""
    return Outcome(_show(expected), _show(measured), bool(expected == measured))


def close(expected: float, measured: float, within: float) -> Outcome:
    """Holds when both differ by at most `within`."""
    shown = f"{expected:.6g} ± {within:.0e}"
    return Outcome(shown, f"{measured:.6g}", abs(expected - measured) <= within)


def at_most(limit: float, measured: float, what: str) -> Outcome:
    """Holds when a difference is small enough."""
    return Outcome(f"{what} ≤ {limit:.0e}", f"{measured:.1e}", measured <= limit)


def holds(expected: str, measured: Any, ok: bool) -> Outcome:
    """Holds when `ok` does."""
    return Outcome(expected, _show(measured), bool(ok))


class Facts:
    """A list of facts that functions join by decorator."""

    def __init__(self) -> None:
        self.rows: list[Fact] = []

    def __call__(self, number: str, source: str, claim: str, needs: str = "") -> Callable[[Any], Any]:
        """`@facts("T3", "D234", "words are broken into pieces")` over a function that takes Vocabularies."""

        def join(check: Callable[[Vocabularies], Outcome]) -> Callable[[Vocabularies], Outcome]:
            self.rows.append(Fact(number, source, claim, check, needs))
            return check

        return join

    def __iter__(self) -> Iterator[Fact]:
        return iter(self.rows)


def _show(value: Any) -> str:
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return " ".join(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
