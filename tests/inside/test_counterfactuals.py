"""Flips: likely words that change a classifier's answer, and the bounds of the search for them."""

from math import prod

import pytest
from topic_models import topic_classifier, topic_filler

from bertkit.errors import RequestError
from bertkit.inside.attribution.counterfactuals import FlipSettings, _Draft, flips

pytestmark = pytest.mark.usefixtures("_one_thread")
EVERY = FlipSettings(least=0.0)


def test_one_word_decides_a_short_text():
    bert, fill = topic_classifier(), topic_filler()
    found = flips(bert, "c1 t0w1 c2", fill=fill, settings=EVERY)
    assert found.answer == "0" == bert.classify("c1 t0w1 c2").label
    assert found.found
    for flip in found.found:
        assert bert.classify(flip.text).label == flip.answer != "0"
        assert [flip.text[a:b] for a, b in flip.places] == [change.new for change in flip.changes]
        assert len(flip.changes) == 1
        assert flip.likely == prod(change.probability for change in flip.changes)
    likely = [flip.likely for flip in found.found]
    assert likely == sorted(likely, reverse=True)


def test_probabilities_are_the_masked_word_models():
    found = flips(topic_classifier(), "c1 t0w1 c2", fill=topic_filler(), settings=EVERY)
    [change] = found.found[0].changes
    hidden = "c1 t0w1 c2".replace(change.old, "[MASK]")
    filled = {each.word: each.probability for each in topic_filler().fill(hidden, top=30)}
    assert change.probability == pytest.approx(filled[change.new], rel=1e-4)


def test_two_words_where_one_does_not_do():
    """A text that leans on several words: the search goes on to a second one, and says what it tried."""
    bert, text = topic_classifier(), "t0w1 t0w2 c3"
    one = flips(bert, text, fill=topic_filler(), settings=FlipSettings(words=1, least=0.0))
    assert not one.found
    assert "no likely replacement of up to 1 words changes that" in str(one)
    two = flips(bert, text, fill=topic_filler(), settings=EVERY)
    assert two.tried > one.tried
    assert two.found
    for flip in two.found:
        assert len(flip.changes) == 2
        assert bert.classify(flip.text).label == flip.answer != two.answer
        assert [flip.text[a:b] for a, b in flip.places] == [change.new for change in flip.changes]
    assert len({flip.text for flip in two.found}) == len(two.found)


def test_of_many_words_those_that_add_most_are_tried():
    """A text of more words than are tried: the one word of another kind is among them."""
    text = "c1 c2 c3 c4 t0w1 c5 c6"
    found = flips(topic_classifier(), text, fill=topic_filler(), settings=FlipSettings(tried=1, words=1, least=0.0))
    assert found.tried <= FlipSettings().likely + 1
    assert found.found
    assert {flip.changes[0].old for flip in found.found} == {"t0w1"}


def test_unlikely_words_are_not_proposed():
    found = flips(topic_classifier(), "c1 t0w1 c2", fill=topic_filler(), settings=FlipSettings(least=0.99))
    assert (found.tried, found.found) == (0, ())


def test_blanks_and_pairs_of_the_text_stay():
    found = flips(topic_classifier(), "[MASK] t0w1 c2", "c4", fill=topic_filler(), settings=EVERY)
    assert found.tried
    assert all(flip.text.startswith("[MASK] ") for flip in found.found)


def test_a_draft_moves_the_places_behind_a_change():
    draft = _Draft("a bb ccc").replaced((5, 8), "dd", 0.5).replaced((0, 1), "longer", 0.5)
    assert draft.text == "longer bb dd"
    assert [draft.text[a:b] for a, b in draft.places] == ["dd", "longer"]


@pytest.mark.parametrize("text", ["", "  ", "!?", "<b>\u202e"])
def test_texts_without_words_have_nothing_to_flip(text):
    found = flips(topic_classifier(), text, fill=topic_filler(), settings=FlipSettings(words=1))
    assert all(flip.answer != found.answer for flip in found.found)


def test_what_cannot_be_flipped_is_refused(bert):
    with pytest.raises(RequestError, match="this classifier has no masked-word head to propose words; name a model"):
        flips(topic_classifier(), "t0w1")
    with pytest.raises(RequestError, match="the model given as --fill-model has no masked-word head"):
        flips(topic_classifier(), "t0w1", fill=topic_classifier())
    with pytest.raises(RequestError, match="fine-tune it"):
        flips(bert, "a")
    for wrong in ({"words": 3}, {"tried": 0}, {"likely": 0}, {"kept": 0}):
        with pytest.raises(RequestError):
            FlipSettings(**wrong)
