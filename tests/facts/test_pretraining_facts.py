"""Facts about pre-training: all hold, quickly, and each is able to fail."""

from functools import partial

import pytest
import torch

from bertkit.facts import families, pretraining
from bertkit.facts.fact import Outcome, Vocabularies
from bertkit.facts.random_text import equal_sentences, random_text
from bertkit.pretraining.examples.batches import DataSettings

FACTS = {fact.number: fact for fact in [*pretraining.facts, *families.facts, *pretraining.mistakes]}


def check(number: str) -> Outcome:
    with torch.no_grad():
        return FACTS[number].check(Vocabularies())


def test_all_hold_and_quickly(facts_run):
    assert not facts_run.wrong(FACTS)
    assert facts_run.time(FACTS) < 22


SPOILED = {
    "another rate": ({"rate": 0.2}, ["P2", "P10", "P11", "P21", "P18", "!B56"]),
    "only [MASK]": ({"mask_share": 1.0, "random_share": 0.0}, ["P2", "!D855", "!B56"]),
    "80/20/20 halved": ({"mask_share": 0.8, "random_share": 0.2}, ["P2", "!D855"]),
    "no short pairs": ({"short_share": 0.0}, ["P6"]),
}


@pytest.mark.parametrize("name", SPOILED)
def test_other_settings_make_facts_fail(name, facts_run, monkeypatch):
    settings, numbers = SPOILED[name]
    monkeypatch.setattr(pretraining, "DataSettings", partial(DataSettings, **settings))
    asking = [number for number in FACTS if number in facts_run.with_settings]  # others cannot notice
    assert [number for number in asking if not check(number).ok] == numbers


@pytest.mark.parametrize(("number", "asked"), [("P10", "whole-word"), ("P21", "entity")])
def test_pieces_chosen_one_by_one_make_facts_fail(number, asked, monkeypatch):
    def by_token(*, masking: str = "token", **settings) -> DataSettings:
        return DataSettings(masking="token", **settings)

    monkeypatch.setattr(pretraining, "DataSettings", by_token)
    assert not check(number).ok, asked


def test_pairs_of_the_other_objective_make_facts_fail(monkeypatch):
    def swapped(*, objective: tuple[str, ...] = ("mlm",), **settings) -> DataSettings:
        other = {"nsp": "sop", "sop": "nsp"}
        return DataSettings(objective=tuple(other.get(name, name) for name in objective), **settings)

    monkeypatch.setattr(pretraining, "DataSettings", swapped)
    assert not check("P5").ok
    assert not check("P13").ok


def test_the_random_text_is_what_it_says():
    text = random_text()
    assert text is random_text()
    assert len(text.document_starts) == 801
    assert text.document_starts[-1] == len(text.sentence_starts) - 1
    assert text.sentence_starts[-1] == len(text.ids) == len(text.words) > 200_000
    assert (text.begins_word(text.ids) == text.words.astype(bool)).all()
    assert (text.words[text.entities[:, 0]] == 1).all()
    assert (text.words[text.entities[:, 1]] == 1).all(), "a name ends before a word"
    assert (text.entities[1:, 0] >= text.entities[:-1, 1]).all()
    even = equal_sentences(3, 4, 5)
    assert even.document_of(even.sentence_starts[:-1]).tolist() == [0] * 4 + [1] * 4 + [2] * 4
