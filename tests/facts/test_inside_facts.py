"""Facts about looking inside: all hold, quickly, and each is able to fail."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bertkit.errors import RequestError
from bertkit.facts import inside, knowledge
from bertkit.facts.fact import Outcome, Vocabularies
from bertkit.inside.look.data import unpack
from bertkit.inside.static.vectors import StaticVectors

FACTS = {fact.number: fact for fact in [*inside.facts, *knowledge.facts]}

pytestmark = pytest.mark.usefixtures("_one_thread")


def check(number: str) -> Outcome:
    with torch.no_grad():
        return FACTS[number].check(Vocabularies())


def test_all_hold_and_quickly(facts_run):
    assert not facts_run.wrong(FACTS)
    assert facts_run.time(FACTS) < 30


def test_other_heads_make_facts_fail(monkeypatch):
    monkeypatch.setattr(inside, "STRENGTH", 0.01)
    assert not check("I4").ok


def test_other_numbers_on_the_page_make_the_view_fail(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(inside, "unpack", lambda packed: 1.01 * unpack(packed))
        assert not check("I1").ok
    monkeypatch.setattr(inside, "MAX_PAGE_BYTES", 1e6)
    assert not check("I2").ok


def test_vectors_without_knowledge_make_facts_fail(monkeypatch):
    words = knowledge.animals("skip-gram").words
    random = StaticVectors(words, np.random.default_rng(0).normal(size=(len(words), 24)).astype(np.float32))
    monkeypatch.setattr(knowledge, "animals", lambda method: random)
    assert not check("I8b").ok
    assert not check("I9").ok
    with pytest.raises(RequestError):
        check("I9b")


def test_probes_of_other_layers_make_facts_fail(monkeypatch):
    trees, labels = knowledge.trees_probed(), knowledge.labels_probed
    monkeypatch.setattr(knowledge, "trees_probed", lambda: replace(trees, layers=trees.layers[::-1]))
    assert not check("I5").ok
    assert not check("I5b").ok
    monkeypatch.setattr(knowledge, "labels_probed", lambda layer: labels(4 - layer))
    assert not check("I6").ok


def test_another_divergence_and_sight_make_facts_fail(monkeypatch):
    monkeypatch.setattr(inside, "kl", lambda p, q: (p - q).abs().sum(dim=-1))
    assert not check("I11").ok
    monkeypatch.setattr(inside, "override", lambda config, *pairs: config)
    assert not check("I10").ok
    monkeypatch.setattr(inside, "lowest_trainable", lambda settings, depth, progress: 0)
    assert not check("I10b").ok
