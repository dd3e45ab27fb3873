"""All facts in the order of the specification, run one by one."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from bertkit.facts import attention, finetuning, mistakes, model, pretraining, tasks, tokenizer
from bertkit.facts.fact import Fact, Outcome, Vocabularies


@dataclass(frozen=True)
class Result:
    """One fact and what became of it: `ok`, `FAIL`, or `not run` when its vocabulary was not given."""

    fact: Fact
    outcome: Outcome | None

    @property
    def status(self) -> str:
        """The word printed at the end of its line."""
        if self.outcome is None:
            return "not run"
        return "ok" if self.outcome.ok else "FAIL"


def all_facts() -> list[Fact]:
    """T1, T1b, T1c, T2 ... M23, P1 ..., F1 ..., then the documents' mistakes in the order they are written down."""
    claims = [*tokenizer.facts, *attention.facts, *model.facts, *pretraining.facts, *finetuning.facts, *tasks.facts]
    return [*sorted(claims, key=_order), *mistakes.facts, *pretraining.mistakes]


def run_facts(vocabularies: Vocabularies) -> Iterator[Result]:
    """Each fact as it is measured; an exception is a FAIL that says what it was."""
    for fact in all_facts():
        if fact.needs and getattr(vocabularies, fact.needs) is None:
            yield Result(fact, None)
            continue
        try:
            with torch.no_grad():
                yield Result(fact, fact.check(vocabularies))
        except Exception as error:  # a fact that cannot be measured is a failed fact, not the end of the list
            yield Result(fact, Outcome("no error", f"{type(error).__name__}: {error}", False))


def _order(fact: Fact) -> tuple[int, int, str]:
    letter, rest = fact.number[0], fact.number[1:]
    digits = "".join(c for c in rest if c.isdigit())
    return "TMPFSI".index(letter), int(digits), rest[len(digits) :]
