"""`bertkit facts`: all there, all ok, and each one able to fail."""

import json

import pytest

from bertkit.facts.fact import Vocabularies, at_most, close, equal, holds
from bertkit.facts.run import all_facts, run_facts
from bertkit.text.tokenizer import Tokenizer

# M and K items of the specification's sections 1.1 and 1.2; M17-M20 are the decoder and its predecessors.
ITEMS = {f"T{i}" for i in range(1, 22)} | {f"M{i}" for i in range(1, 24)} - {"M17", "M18", "M19", "M20", "M21"}


def test_every_item_has_a_fact():
    numbers = [fact.number for fact in all_facts()]
    assert len(numbers) == len(set(numbers))
    assert {number.rstrip("bcd") for number in numbers} >= ITEMS
    assert sum(number.startswith("!") for number in numbers) >= 18, "the documents' mistakes are named too"
    assert all(fact.source and fact.claim for fact in all_facts())


@pytest.mark.xdist_group("facts")
def test_all_facts_hold(uncased_vocab, cased_vocab):
    vocabularies = Vocabularies(
        uncased=Tokenizer.from_vocab(uncased_vocab), cased=Tokenizer.from_vocab(cased_vocab, lowercase=False)
    )
    results = list(run_facts(vocabularies))
    wrong = [(r.fact.number, r.outcome) for r in results if r.status != "ok"]
    assert not wrong
    assert len(results) == len(all_facts())


def test_facts_about_a_vocabulary_fail_with_another(cased_vocab):
    """A claim is never a constant held against itself: the wrong vocabulary makes it false."""
    wrong = Vocabularies(uncased=Tokenizer.from_vocab(cased_vocab))
    failed = {r.fact.number for r in run_facts(wrong, ["T"]) if r.status == "FAIL"}
    assert {"T1", "T2", "T3"} <= failed


def test_the_command_counts_what_it_cannot_run(bertkit_command):
    done = bertkit_command("facts", "T", "M4", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["status"] for row in rows} == {"ok", "not run"}
    assert all("expected" in row and "measured" in row for row in rows if row["status"] == "ok")
    assert {row["fact"][0] for row in rows} == {"T", "M"}
    unknown = bertkit_command("facts", "T99")
    assert unknown.returncode == 2
    assert "there is no fact T99" in unknown.stderr
    missing = bertkit_command("facts", "--uncased", "nowhere.txt")
    assert missing.returncode == 2
    assert "nowhere.txt" in missing.stderr


def test_comparisons_can_fail():
    assert equal(1, 1).ok
    assert not equal(1, 2).ok
    assert close(1.0, 1.05, 0.1).ok
    assert not close(1.0, 1.2, 0.1).ok
    assert not close(1.0, float("nan"), 0.1).ok
    assert at_most(0.1, 0.05, "x").ok
    assert not at_most(0.1, float("nan"), "x").ok
    assert not holds("a", "b", False).ok
