"""The views' numbers are the model's own, and those of transformers' `output_attentions`, for every family row."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from family_rows import BASE_ROWS, random_model

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.inside.look.data import page_data, unpack
from bertkit.inside.look.reading import read
from bertkit.predict.bert import Bert
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
TEXT, PAIR = "a cab can back a big bag up a hill", "dogs dig"  # 34 tokens: more than modernbert's window


def weights_from(packed: dict) -> np.ndarray:
    """H L L, as the page computes them: queries, keys, the square root, the window, the softmax."""
    queries, keys = unpack(packed["queriesKeys"]).astype(np.float64)
    scores = queries @ keys.transpose(0, 2, 1) / np.sqrt(queries.shape[-1])
    place = np.arange(scores.shape[-1])
    if packed["radius"] is not None:
        scores[:, np.abs(place[:, None] - place[None, :]) > packed["radius"]] = -np.inf
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(("family", "kind", "heads"), BASE_ROWS, ids=[row[0] for row in BASE_ROWS])
@pytest.mark.parametrize("pair", [None, PAIR])
def test_views_equal_transformers(family, kind, heads, pair, tmp_path):
    theirs = random_model(family, kind, heads)
    theirs.save_pretrained(tmp_path)
    theirs.set_attn_implementation("eager")
    checkpoint = load_checkpoint(tmp_path)
    bert = Bert(replace(checkpoint, tokenizer=Tokenizer.from_vocab(PIECES), max_length=64))
    reading = read(bert, TEXT, pair)
    ids, segments = reading.batch.ids[None], reading.batch.segments[None]
    known = {"token_type_ids": segments} if checkpoint.model.config.segments > 1 else {}
    with torch.no_grad():
        expected = theirs(input_ids=ids, output_attentions=True, **known).attentions
    layers = page_data(bert, reading)["layers"]
    assert len(layers) == len(expected) == 3
    for layer, packed, wanted in zip(reading.trace.layers, layers, expected, strict=True):
        torch.testing.assert_close(layer.weights, wanted[0], atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(weights_from(packed), wanted[0].numpy(), atol=1e-5, rtol=1e-5)
        mixed = torch.einsum("hqs,shk->qhk", layer.weights, layer.values).flatten(1)
        torch.testing.assert_close(layer.mixed, mixed, atol=1e-5, rtol=1e-5)
    if family == "modernbert":
        assert {packed["radius"] for packed in layers} == {None, 5}, "the row must show both kinds of layer"
        assert float(reading.trace.layers[1].weights[:, 0, 6:].max()) == 0
