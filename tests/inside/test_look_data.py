"""What the page is given equals what the model did; nothing is made up on the way."""

import base64
import json
import zlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from bertkit.errors import BertkitWarning, RequestError
from bertkit.inside.look import data as data_module
from bertkit.inside.look.data import DTYPES, lens, movement, pack, page_data, unpack
from bertkit.inside.look.reading import read, states
from bertkit.predict.bert import Bert
from bertkit.serve.routes.attention import plan_attention
from bertkit.serve.settings import ServeSettings
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.tokenizer_files import BERT_TOKENS

shapes = arrays.array_shapes(min_dims=1, max_dims=3, max_side=6)


@pytest.mark.parametrize("dtype", list(DTYPES))
@given(data=st.data())
def test_packing_and_unpacking_keeps_every_bit(dtype, data):
    array = data.draw(arrays.arrays(DTYPES[dtype], data.draw(shapes)))
    back = unpack(json.loads(json.dumps(pack(array, dtype))))
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


def test_packed_bytes_come_in_planes():
    packed = pack(np.array([0x01020304, 0x11121314], dtype=np.uint32), "uint32")
    assert zlib.decompress(base64.b64decode(packed["data"])) == bytes.fromhex("0414031302120111")


def test_normalizers_turn_scores_into_the_models_weights(bert):
    reading = read(bert, "a cab can back", "up a hill")
    for layer, packed in zip(reading.trace.layers, page_data(bert, reading)["layers"], strict=True):
        queries, keys = unpack(packed["queriesKeys"])
        scores = queries @ keys.transpose(0, 2, 1) / np.sqrt(queries.shape[-1])
        weights = np.exp(scores - unpack(packed["normalizers"])[:, :, None])
        np.testing.assert_allclose(weights, layer.weights.numpy(), atol=1e-5)
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)


def test_long_texts_are_kept_in_half_precision_and_still_sum_to_one(bert, monkeypatch):
    monkeypatch.setattr(data_module, "MAX_FLOAT32_BYTES", 100)
    reading = read(bert, "a cab can back up a hill")
    found = page_data(bert, reading)
    assert found["precision"] == "float16"
    layer = found["layers"][0]
    queries, keys = unpack(layer["queriesKeys"]).astype(np.float32)
    scores = queries @ keys.transpose(0, 2, 1) / np.sqrt(queries.shape[-1])
    weights = np.exp(scores - unpack(layer["normalizers"])[:, :, None])
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
    np.testing.assert_allclose(weights, reading.trace.layers[0].weights.numpy(), atol=0.02)


def test_thumbnails_are_the_weights_of_a_short_text_and_the_largest_of_each_patch_of_a_long_one(bert):
    short = read(bert, "a cab")
    weights = torch.stack([layer.weights for layer in short.trace.layers]).numpy()
    thumbnails = unpack(page_data(bert, short)["thumbnails"])
    np.testing.assert_array_equal(thumbnails, np.rint(np.sqrt(weights) * 255))
    long = read(bert, "ab " * 31)  # 64 tokens: patches of two by two
    weights = torch.stack([layer.weights for layer in long.trace.layers]).numpy()
    patches = weights.reshape(*weights.shape[:2], 32, 2, 32, 2).max(axis=(3, 5))
    np.testing.assert_array_equal(unpack(page_data(bert, long)["thumbnails"]), np.rint(np.sqrt(patches) * 255))


def test_movement_is_the_cosine_between_layers(bert):
    reading = read(bert, "a cab can back")
    found, vectors = movement(reading), states(reading)
    slow = torch.nn.functional.cosine_similarity
    for one, left in enumerate(vectors):
        for other, right in enumerate(vectors):
            torch.testing.assert_close(found.cosines[:, one, other], slow(left, right), atol=1e-5, rtol=1e-5)
        pairs = [slow(left[i], left[j], dim=0) for i in range(len(left)) for j in range(len(left)) if i != j]
        torch.testing.assert_close(found.likeness[one], torch.stack(pairs).mean(), atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("_one_thread")  # the bound is of sums in one order
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_the_last_layer_of_the_lens_is_what_the_model_fills(tiny_bert, family):
    bert = tiny_bert(family)
    reading = read(bert, "a cab [MASK] back")
    found = lens(bert.model, bert.tokenizer, reading)
    place = reading.tokens.index("[MASK]")
    filled = bert.fill("a cab [MASK] back", top=5, whole_words=False)
    assert [found.words[number] for number in found.ids[place, -1].tolist()] == [each.word for each in filled]
    np.testing.assert_allclose(found.probabilities[place, -1], [each.probability for each in filled], atol=1e-6)
    assert found.ids.shape == (len(reading.tokens), bert.model.config.depth + 1, 5)


def test_no_lens_without_a_masked_word_head(tiny_bert):
    bert = tiny_bert(heads=())
    assert page_data(bert, read(bert, "a cab"))["lens"] is None


def test_words_of_the_lens_are_found_by_their_indices(bert):
    reading = read(bert, "a cab")
    found, packed = lens(bert.model, bert.tokenizer, reading), page_data(bert, reading)["lens"]
    words = [found.words[number] for number in found.ids.flatten().tolist()]
    assert [packed["words"][index] for index in unpack(packed["best"]).flatten()] == words


def test_reading_numbers_tokens_parts_and_words(bert):
    reading = read(bert, "a cab", "Big BAG")
    assert " ".join(reading.tokens) == "[CLS] a c ##a ##b [SEP] b ##i ##g b ##a ##g [SEP]"
    assert reading.parts == (0,) * 6 + (1,) * 7
    assert reading.words() == [None, "a", *["cab"] * 3, None, *["Big"] * 3, *["BAG"] * 3, None]
    assert reading.positions_of("bag") == [9, 10, 11]
    with pytest.raises(RequestError, match="the text has no word 'dog'; its words are: a, cab, Big, BAG"):
        reading.positions_of("dog")


def test_a_long_text_is_cut_with_a_warning_and_a_long_pair_refused(bert):
    with pytest.warns(BertkitWarning, match="has 102 tokens; the first 64 are shown"):
        reading = read(bert, "a " * 100)
    assert (len(reading.tokens), reading.cut_from) == (64, 102)
    assert reading.tokens[-1] == "[SEP]"
    with pytest.raises(RequestError, match="the pair has 153 tokens, over the limit of 64; shorten one"):
        read(bert, "a " * 100, "b " * 50)


@pytest.mark.parametrize("text", ["", "   ", "\U0001f9d1\u200d\U0001f680", "\u05e9\u05dc\u05d5\u05dd", "a\u0000b"])
def test_odd_texts_have_data_too(bert, text):
    found = page_data(bert, read(bert, text))
    assert found["tokens"][0] == "[CLS]"
    assert found["text"] == text
    assert np.isfinite(unpack(found["layers"][0]["queriesKeys"])).all()
    assert all(np.isfinite(row["entropy"]) for row in found["catalogue"])


@pytest.fixture
def byte_bert(tiny_bert):
    """A model over single bytes; as RoBERTa's, its vocabulary has a piece that starts with ##."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(alphabet), "##"]
    backend = Backend(models.BPE({piece: n for n, piece in enumerate(pieces)}, [("#", "#")], unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    checkpoint = tiny_bert(heads=()).checkpoint
    checkpoint.model.encoder.embeddings.word = torch.nn.Embedding(len(pieces), checkpoint.model.config.width)
    return Bert(replace(checkpoint, tokenizer=Tokenizer(backend, BERT_TOKENS)))


def test_byte_level_pieces_are_shown_as_characters(byte_bert):
    tokens = read(byte_bert, "ab é##", "ü").tokens
    assert tokens == ("[CLS]", "a", "b", "\u0120", "é", "é", "##", "[SEP]", "ü", "ü", "[SEP]")


@pytest.mark.parametrize("pair", [None, "dü b"])
@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_a_server_names_tokens_as_the_page_does(bert, byte_bert, kind, pair):
    """Two small functions, for neither folder may import the other."""
    own = byte_bert if kind == "bytes" else bert
    served = SimpleNamespace(bert=own, limit=64, shared_encoder=SimpleNamespace(encoder=own.model.encoder))
    plan = plan_attention(served, "Cab é##", pair, 1, 1, ServeSettings())
    assert tuple(plan.finish([[{}]])["tokens"]) == read(own, "Cab é##", pair).tokens
