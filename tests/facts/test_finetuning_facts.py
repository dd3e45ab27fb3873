"""Facts about fine-tuning: all hold, quickly, and each is able to fail."""

import numpy as np
import pytest
import torch

from bertkit.facts import finetuning, tasks, topics
from bertkit.facts.fact import Outcome, Vocabularies
from bertkit.finetuning import learner, settings
from bertkit.tasks.multilabel import Multilabel
from bertkit.tasks.regress import Regress
from bertkit.tasks.shared import length, word_task
from bertkit.tasks.shared.decision import Decision

FACTS = {fact.number: fact for fact in [*finetuning.facts, *tasks.facts]}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def fresh():
    """Runs that were kept are done again, before and after."""
    finetuning.fine_tuned.cache_clear()
    finetuning.curve.cache_clear()
    yield
    finetuning.fine_tuned.cache_clear()
    finetuning.curve.cache_clear()


def check(number: str) -> Outcome:
    with torch.no_grad():
        return FACTS[number].check(Vocabularies())


def test_all_hold_and_quickly(facts_run):
    assert not facts_run.wrong(FACTS)
    assert facts_run.time(FACTS) < 22


def test_without_pre_training_nothing_is_known_from_few_texts(monkeypatch, fresh):
    untaught = topics.pretrained.__wrapped__
    monkeypatch.setattr(topics, "_pretrain", lambda model: None)
    begin = untaught()
    monkeypatch.setattr(finetuning, "pretrained", lambda: begin)
    assert not check("F4").ok
    assert not check("F12").ok


def test_one_epoch_is_not_enough_and_five_are_too_many(monkeypatch, fresh):
    for epochs in (1, 5):
        monkeypatch.setattr(finetuning, "EPOCHS", epochs)
        assert not check("F2").ok


def test_another_default_number_of_epochs_makes_the_fact_fail(monkeypatch, fresh):
    monkeypatch.setattr(settings, "MIN_EPOCHS", 6)
    assert not check("F2").ok


def test_frozen_weights_make_the_fact_that_all_move_fail(monkeypatch, fresh):
    monkeypatch.setattr(topics, "SMALL_MODEL", (*topics.SMALL_MODEL, "frozen=1"))
    assert not check("F3").ok


def test_another_reading_of_a_text_makes_facts_fail(monkeypatch):
    monkeypatch.setattr(learner, "config_for_task", lambda config, *given: config)
    assert not check("F5").ok, "every pooling is the model's own"
    monkeypatch.setattr(Multilabel, "target", lambda self, example: (1,))
    assert not check("F10").ok
    monkeypatch.setattr(Regress, "target", lambda self, example: 0.0)
    assert not check("F9").ok
    monkeypatch.setattr(Decision, "label_probabilities", lambda self, logits: np.full(np.shape(logits), 0.5))
    assert not check("F10b").ok


def test_windows_that_lose_words_make_facts_fail(monkeypatch):
    def gaps(tokens: int, room: int, stride: int | None = None) -> list[tuple[int, int]]:
        return [(start, min(start + room, tokens)) for start in range(0, tokens, room + 5)]

    monkeypatch.setattr(length, "window_spans", gaps)
    assert not check("F13").ok
    served = word_task.words_of_windows
    monkeypatch.setattr(word_task, "words_of_windows", lambda *given: [own[1:] for own in served(*given)])
    assert not check("F6b").ok


def test_eleven_files_are_written_as_their_makers_do():
    assert len(tasks.ELEVEN) == 11
    assert len({name for name, _, _ in tasks.ELEVEN.values()}) == 11
