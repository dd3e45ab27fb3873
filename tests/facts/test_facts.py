"""`bertkit facts`: every item has a row, none fails, and each one is able to."""

import json
import re
from collections import Counter

from bertkit.cli.facts import facts as cli_facts
from bertkit.facts import run
from bertkit.facts.fact import Fact, Vocabularies, at_most, close, equal, holds
from bertkit.facts.run import Result, all_facts, run_facts, summary
from bertkit.text.tokenizer import Tokenizer

# Every item of the specification's sections 1.1 to 1.6.
SIZES = {"T": 21, "M": 23, "P": 25, "F": 17, "S": 2, "I": 12}
ITEMS = {f"{letter}{number}" for letter, size in SIZES.items() for number in range(1, size + 1)}
ABSENT = ["M21", "P23"]  # named only: docs/glossary.md


def test_every_item_has_a_row():
    numbers = [fact.number for fact in all_facts()]
    assert len(numbers) == len(set(numbers))
    assert {number.rstrip("bcd") for number in numbers if number[0] != "!"} == ITEMS
    assert sum(number.startswith("!") for number in numbers) == 27, "the documents' mistakes are named too"
    assert all(fact.source and fact.claim for fact in all_facts())
    assert all(bool(fact.check) != bool(fact.absent or fact.elsewhere) for fact in all_facts())
    assert [fact.number for fact in all_facts() if fact.absent] == ABSENT


def test_the_bare_command_counts_everything_and_exits_0(facts_run):
    assert facts_run.code == 0, facts_run.printed[-3000:]
    rows = [line for line in facts_run.printed.splitlines() if line and line[0] in "TMPFSI!"]
    assert len(rows) == len(all_facts())
    counts = Counter(re.match(r"\S+ +(ok|FAIL|not run|absent) ", row)[1] for row in rows)
    last = facts_run.printed.splitlines()[-1]
    assert last == (
        f"{counts['ok']} ok, 0 failed, 20 not run (13 need a released vocabulary: --uncased PATH, --cased PATH; "
        f"7 need more than this command: P15, P18b, P19, P20b, F16, S1, S2), 2 absent ({', '.join(ABSENT)})"
    )
    assert counts["ok"] + 20 + 2 == len(rows)


def test_facts_about_the_released_vocabularies_hold(uncased_vocab, cased_vocab):
    vocabularies = Vocabularies(
        uncased=Tokenizer.from_vocab(uncased_vocab), cased=Tokenizer.from_vocab(cased_vocab, lowercase=False)
    )
    names = [fact.number for fact in all_facts() if fact.needs]
    found = {result.fact.number: result.status for result in run_facts(vocabularies, names)}
    assert {number: found[number] for number in names} == dict.fromkeys(names, "ok")
    assert len(names) == 13


def test_the_last_line_names_what_failed_and_what_was_not_run():
    fact = Fact("T1", "D1", "a claim", lambda _: equal(1, 1), needs="uncased")
    results = [
        Result(fact),
        Result(Fact("M1", "D1", "x", lambda _: equal(1, 1)), equal(1, 1)),
        Result(Fact("M2", "D1", "x", lambda _: equal(1, 1)), equal(1, 2)),
        Result(Fact("M17", "D1", "x", absent="no decoder")),
    ]
    assert summary(results) == (
        "1 ok, 1 failed (M2), 1 not run (1 need a released vocabulary: --uncased PATH, --cased PATH), 1 absent (M17)"
    )
    assert summary(results[1:2]) == "1 ok, 0 failed, 0 not run, 0 absent"
    assert [result.status for result in results] == ["not run", "ok", "FAIL", "absent"]
    assert results[3].reason == "no decoder"


def test_a_failed_fact_is_exit_1(monkeypatch, capsys):
    broken = Fact("M99", "D1", "x", lambda _: 1 / 0)
    monkeypatch.setattr(run, "all_facts", lambda: [broken])
    assert cli_facts([]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 ok, 1 failed (M99), 0 not run, 0 absent"


def test_facts_about_a_vocabulary_fail_with_another(cased_vocab):
    """A claim is never a constant held against itself: the wrong vocabulary makes it false."""
    wrong = Vocabularies(uncased=Tokenizer.from_vocab(cased_vocab))
    failed = {r.fact.number for r in run_facts(wrong, ["T"]) if r.status == "FAIL"}
    assert {"T1", "T2", "T3"} <= failed


def test_the_command_counts_what_it_cannot_run(bertkit_command, command_here):
    done = bertkit_command("facts", "T3", "T4", "M4", "M21", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["status"] for row in rows} == {"ok", "not run", "absent"}
    assert all("reason" in row for row in rows if row["status"] != "ok")
    assert all("expected" in row and "measured" in row for row in rows if row["status"] == "ok")
    assert {row["fact"][0] for row in rows} == {"T", "M"}
    unknown = command_here("facts", "T99")
    assert unknown.returncode == 2
    assert "there is no fact T99" in unknown.stderr
    missing = command_here("facts", "--uncased", "nowhere.txt")
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
