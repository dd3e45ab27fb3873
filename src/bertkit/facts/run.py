"""Run all facts, in order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from bertkit.errors import RequestError
from bertkit.facts import (
    absent,
    attention,
    decoders,
    families,
    finetuning,
    inside,
    knowledge,
    languages,
    mistakes,
    model,
    pretraining,
    tasks,
    tokenizer,
    trained,
)
from bertkit.facts.fact import Fact, Outcome, Vocabularies


@dataclass(frozen=True)
class Result:
    """A fact and its status: `ok` or `FAIL` with an outcome, else `not run` or `absent` with a reason."""

    fact: Fact
    outcome: Outcome | None = None

    @property
    def status(self) -> str:
        """The status that is printed after the number."""
        if self.outcome is None:
            return "absent" if self.fact.absent else "not run"
        return "ok" if self.outcome.ok else "FAIL"

    @property
    def reason(self) -> str:
        """Why it was not run."""
        vocabulary = f"needs the released {self.fact.needs} vocabulary: --{self.fact.needs} PATH"
        return self.fact.absent or (f"needs {self.fact.elsewhere}" if self.fact.elsewhere else vocabulary)


def all_facts() -> list[Fact]:
    """T1, T1b ... M23, P1 ..., F1 ..., S1 ..., I1 ..., then the mistakes of the documents."""
    modules = (tokenizer, attention, model, decoders, pretraining, families, finetuning, languages, tasks, inside)
    claims = [fact for module in (*modules, knowledge, trained, absent) for fact in module.facts]
    return [*sorted(claims, key=_order), *mistakes.facts, *decoders.mistakes, *pretraining.mistakes]


def summary(results: Sequence[Result]) -> str:
    """One line with the numbers of facts that are ok, failed, not run (with reasons), and absent."""
    by_status: dict[str, list[Fact]] = {status: [] for status in ("ok", "FAIL", "not run", "absent")}
    for result in results:
        by_status[result.status].append(result.fact)
    vocabulary = [fact for fact in by_status["not run"] if fact.needs]
    elsewhere = [fact for fact in by_status["not run"] if not fact.needs]
    reasons = [f"{len(vocabulary)} need a released vocabulary: --uncased PATH, --cased PATH"] if vocabulary else []
    reasons += [f"{len(elsewhere)} need more than this command: {_numbers(elsewhere)}"] if elsewhere else []
    parts = {
        "ok": "",
        "failed": _numbers(by_status["FAIL"]),
        "not run": "; ".join(reasons),
        "absent": _numbers(by_status["absent"]),
    }
    counts = (len(facts) for facts in by_status.values())
    return ", ".join(
        f"{n} {word}" + (f" ({why})" if why else "") for n, (word, why) in zip(counts, parts.items(), strict=True)
    )


def _numbers(facts: Sequence[Fact]) -> str:
    return ", ".join(fact.number for fact in facts)


def chosen_facts(names: Sequence[str] = ()) -> list[Fact]:
    """All facts, or those with these names: T3 includes T3b and T3c, T means all of T, and ! the mistakes."""
    everything = all_facts()
    for name in names:
        if not any(_is_named(fact, name) for fact in everything):
            raise RequestError(
                f"there is no fact {name}; name one such as T3 or P14b, or a letter: T, M, P, F, S, I, !"
            )
    return [fact for fact in everything if not names or any(_is_named(fact, name) for name in names)]


def run_facts(vocabularies: Vocabularies, names: Sequence[str] = ()) -> Iterator[Result]:
    """Yield the result of each fact; an exception is a FAIL with its message."""
    for fact in chosen_facts(names):
        if fact.check is None or (fact.needs and getattr(vocabularies, fact.needs) is None):
            yield Result(fact)
            continue
        try:
            with torch.no_grad():
                yield Result(fact, fact.check(vocabularies))
        except Exception as error:  # a fact that cannot be measured has failed; the others still run
            yield Result(fact, Outcome("no error", f"{type(error).__name__}: {error}", False))


def _is_named(fact: Fact, name: str) -> bool:
    rest = fact.number.removeprefix(name)
    return bool(name) and fact.number.startswith(name) and (len(name) == 1 or not rest[:1].isdigit())


def _order(fact: Fact) -> tuple[int, int, str]:
    letter, rest = fact.number[0], fact.number[1:]
    digits = "".join(c for c in rest if c.isdigit())
    return "TMPFSI".index(letter), int(digits), rest[len(digits) :]
