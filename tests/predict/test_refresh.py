"""`bert.refresh()`: every engine computes with the weights as they are now."""

import sys
from pathlib import Path

import numpy as np
import pytest

import bertkit
from bertkit.errors import RequestError
from bertkit.predict import quantize as quantizing
from bertkit.predict.quantize import int8_maps

sys.path.insert(0, str(Path(__file__).parents[1] / "finetuning"))
import tiny

TEXTS = ["the film was good", "ada lives in london ."]


@pytest.fixture
def folder(tmp_path):
    return tiny.tiny_folder(tmp_path / "model")


def edit_one_number(bert):
    """A change that no sample of the weights shows, large enough to move every vector."""
    bert.model.encoder.layers[1].feed_forward.up.weight.data[5, 9] += 100


def expected(bert, folder):
    """The vectors of a model that was edited before it answered."""
    fresh = bertkit.load(folder)
    edit_one_number(fresh)
    return fresh.embed(TEXTS)


@pytest.mark.parametrize("options", [{}, {"backend": "onnx"}])
def test_edited_weights_answer_after_a_refresh(folder, options, monkeypatch):
    bert = bertkit.load(folder, **options)
    before = np.stack([bert.embed(TEXTS[0]), *bert.embed(TEXTS)[1:]])
    edit_one_number(bert)
    assert bert.refresh() is bert
    wanted = expected(bert, folder)
    np.testing.assert_allclose(bert.embed(TEXTS), wanted, atol=1e-5)
    np.testing.assert_allclose(bert.embed(TEXTS[0]), wanted[0], atol=1e-5)
    assert np.abs(wanted - before).max() > 1e-3


def test_int8_is_made_again_from_the_weights_as_they_are(folder):
    bert = bertkit.load(folder, quantize="int8")
    before, count = bert.embed(TEXTS), len(int8_maps(bert.model.encoder))
    bert.model.encoder.layers[1].feed_forward.up.weight.data.mul_(1.5)
    assert len(int8_maps(bert.model.encoder)) == count - 1, "a map whose weights have changed stays in float32"
    bert.refresh()
    assert len(int8_maps(bert.model.encoder)) == count
    assert bert.dtype == "int8"
    assert np.abs(bert.embed(TEXTS) - before).max() > 1e-3


def test_int8_that_would_change_vectors_is_refused_as_at_first(folder, monkeypatch):
    bert = bertkit.load(folder, quantize="int8")
    edit_one_number(bert)
    monkeypatch.setattr(quantizing, "MIN_MEAN_COSINE", 1.1)
    with pytest.raises(RequestError, match="int8 would change this model's vectors"):
        bert.refresh()
    assert bert.dtype == "float32"
    np.testing.assert_allclose(bert.embed(TEXTS), expected(bert, folder), atol=1e-5)
