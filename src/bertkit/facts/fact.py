"""A fact: a claim with its source, and a function that checks it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from bertkit.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Vocabularies:
    """The released vocabularies; without them, facts about them are not run."""

    uncased: Tokenizer | None = None
    cased: Tokenizer | None = None


class Outcome(NamedTuple):
    """The result of a check."""

    expected: str
    measured: str
    ok: bool


@dataclass(frozen=True)
class Fact:
    """One claim and its check. A fact without a check says what is absent, or where else it is measured."""

    number: str
    source: str  # document and lines
    claim: str
    check: Callable[[Vocabularies], Outcome] | None = None
    needs: str = ""  # the released vocabulary that the claim is about: uncased or cased
    absent: str = ""  # what bertkit does not implement
    elsewhere: str = ""  # what the check needs, and where it is


def equal(expected: Any, measured: Any) -> Outcome:
    """Holds if both are equal."""
    return Outcome(_show(expected), _show(measured), bool(expected == measured))


def close(expected: float, measured: float, within: float) -> Outcome:
    """Holds if both differ by at most `within`."""
    shown = f"{expected:.6g} ± {within:.0e}"
    return Outcome(shown, f"{measured:.6g}", abs(expected - measured) <= within)


def at_most(limit: float, measured: float, quantity: str) -> Outcome:
    """Holds if a quantity is at most the limit."""
    return Outcome(f"{quantity} ≤ {limit:.0e}", f"{measured:.1e}", measured <= limit)


def holds(expected: str, measured: Any, ok: bool) -> Outcome:
    """Holds if `ok` is true."""
    return Outcome(expected, _show(measured), bool(ok))


class Facts:
    """A list of facts, filled by decorating functions."""

    def __init__(self) -> None:
        self.rows: list[Fact] = []

    def __call__(
        self, number: str, source: str, claim: str, needs: str = ""
    ) -> Callable[[Callable[..., Outcome]], Callable[..., Outcome]]:
        """`@facts("T3", "D234", "words are split")` over a function without arguments.

        With `needs`, the function takes the tokenizer of that released vocabulary.
        """

        def register(measure: Callable[..., Outcome]) -> Callable[..., Outcome]:
            def check(vocabularies: Vocabularies) -> Outcome:
                return measure(getattr(vocabularies, needs)) if needs else measure()

            self.rows.append(Fact(number, source, claim, check, needs))
            return measure

        return register

    def __iter__(self) -> Iterator[Fact]:
        return iter(self.rows)


def _show(value: Any) -> str:
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return " ".join(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
