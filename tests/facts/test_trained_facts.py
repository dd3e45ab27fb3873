"""Facts about a trained model: they hold for the bundled one, and for no model with random weights."""

from dataclasses import replace

import pytest

from bertkit.facts import trained
from bertkit.facts.fact import Vocabularies
from bertkit.facts.run import run_facts
from bertkit.facts.trained_texts import SENSES, TOPICS
from bertkit.model.model import new_model
from bertkit.predict.bert import Bert

NUMBERS = [fact.number for fact in trained.facts]

pytestmark = pytest.mark.usefixtures("_one_thread", "_fresh_senses")


@pytest.fixture
def _fresh_senses():
    trained.senses.cache_clear()
    yield
    trained.senses.cache_clear()


def random_bert(seed: int) -> Bert:
    checkpoint = trained.bundled().checkpoint
    return Bert(replace(checkpoint, model=new_model(checkpoint.model.config, {"masked_word": None}, seed=seed).eval()))


def statuses() -> dict[str, str]:
    found = {result.fact.number: result.status for result in run_facts(Vocabularies(), NUMBERS)}
    return {number: found[number] for number in NUMBERS}


def test_they_are_about_the_bundled_model_and_hold(facts_run):
    assert {"F11", "I3", "I4b", "I7", "I8", "I12", "I12b", "M23"} == set(NUMBERS)
    assert not facts_run.wrong(NUMBERS)


@pytest.mark.parametrize("seed", [0, 3])
def test_random_weights_make_every_one_fail(seed, monkeypatch):
    fresh = random_bert(seed)
    monkeypatch.setattr(trained, "bundled", lambda: fresh)
    assert set(statuses().values()) == {"FAIL"}


def test_sentences_to_learn_from_and_to_ask_are_different():
    assert all(len(set(texts)) == 12 for texts in TOPICS.values())
    assert all(len(set(rests)) == 8 for senses in SENSES.values() for rests in senses.values())
