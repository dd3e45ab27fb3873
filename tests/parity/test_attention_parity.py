"""The views' numbers are the model's own, and those of transformers' `output_attentions`, for every family row."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from family_rows import BASE_ROWS, ROWS, random_model

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.families.family import FAMILIES
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
    if "weights" in packed:
        return unpack(packed["weights"])
    queries, keys = unpack(packed["queriesKeys"]).astype(np.float64)
    scores = queries @ keys.transpose(0, 2, 1) / np.sqrt(queries.shape[-1])
    place = np.arange(scores.shape[-1])
    if packed["radius"] is not None:
        scores[:, np.abs(place[:, None] - place[None, :]) > packed["radius"]] = -np.inf
    if packed["causal"]:
        scores[:, place[:, None] < place[None, :]] = -np.inf
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
    last = checkpoint.model.config.parts.two_streams  # [CLS] is the last token for transformers, the first here
    ids, segments = reading.batch.ids[None].roll(-int(last)), reading.batch.segments[None].roll(-int(last))
    known = {"token_type_ids": segments} if checkpoint.model.config.segments > 1 else {}
    if last:
        known = {"token_type_ids": torch.cat((segments[:, :-1], torch.full((1, 1), 2)), dim=1)}  # [CLS] has its own
    with torch.no_grad():
        expected = theirs(input_ids=ids, output_attentions=True, **known).attentions
    if last:
        expected = [weights.roll((1, 1), dims=(-2, -1)) for weights in expected]
    layers = page_data(bert, reading)["layers"]
    assert len(layers) == len(expected) == 3
    for layer, packed, wanted in zip(reading.trace.layers, layers, expected, strict=True):
        torch.testing.assert_close(layer.weights, wanted[0], atol=1e-5, rtol=1e-5)
        near = {"atol": 1e-3} if "weights" in packed else {"atol": 1e-5, "rtol": 1e-5}  # stored in half precision
        np.testing.assert_allclose(weights_from(packed), wanted[0].numpy(), **near)
        if FAMILIES[family].kind == "decoder":
            assert packed["causal"]
            assert not layer.weights.triu(1).any(), "a row ends at the diagonal"
        mixed = torch.einsum("hqs,shk->qhk", layer.weights, layer.values).flatten(1)
        torch.testing.assert_close(layer.mixed, mixed, atol=1e-5, rtol=1e-5)
    if family == "modernbert":
        assert {packed["radius"] for packed in layers} == {None, 5}, "the row must show both kinds of layer"
        assert float(reading.trace.layers[1].weights[:, 0, 6:].max()) == 0


TARGET_ROWS = [row for row in ROWS if row[2] == ("decoder",)]


@pytest.mark.parametrize(("family", "kind", "heads"), TARGET_ROWS, ids=[row[0] for row in TARGET_ROWS])
def test_source_and_target_equal_transformers(family, kind, heads, tmp_path):
    theirs = random_model(family, kind, heads)
    theirs.save_pretrained(tmp_path)
    theirs.set_attn_implementation("eager")
    checkpoint = load_checkpoint(tmp_path)
    bert = Bert(replace(checkpoint, tokenizer=Tokenizer.from_vocab(PIECES), max_length=64))
    reading = read(bert, TEXT, PAIR)
    assert reading.tokens[1:] == ("d", "##o", "##g", "##s", "d", "##i", "##g")
    source = torch.tensor([bert.tokenizer.encode(TEXT).ids])
    with torch.no_grad():
        out = theirs(input_ids=source, decoder_input_ids=reading.batch.ids[None], output_attentions=True)
    data = page_data(bert, reading)
    assert data["source"]["tokens"] == bert.tokenizer.tokens(source[0].tolist())
    assert data["source"]["written"][:-1] == list(reading.tokens[1:])
    rows = zip(reading.trace.layers, data["layers"], data["source"]["layers"], strict=True)
    expected = zip(out.decoder_attentions, out.cross_attentions, strict=True)
    for (layer, packed, crossed), (wanted, wanted_crossed) in zip(rows, expected, strict=True):
        np.testing.assert_allclose(weights_from(packed), wanted[0].numpy(), atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(unpack(crossed["weights"]), wanted_crossed[0].numpy(), atol=1e-5, rtol=1e-5)
        assert not layer.weights.triu(1).any()
        assert layer.cross_weights.shape == (4, len(reading.tokens), source.shape[1])
    trace = bert.trace(TEXT, PAIR)
    assert trace.source == tuple(data["source"]["tokens"])
    assert torch.equal(trace.layers[1].cross_weights, reading.trace.layers[1].cross_weights)
    assert bert.trace(TEXT).layers[0].cross_weights is None, "without a target: the encoder"
    written = read(bert, TEXT)
    assert written.text == bert.write(TEXT, tokens=32).text, "without a target: what it writes"
