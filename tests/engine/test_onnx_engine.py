"""One short text through ONNX Runtime equals the packed forward, follows the weights, and takes only what it can."""

import importlib.util

import numpy as np
import pytest
import torch

import bertkit
from bertkit.checkpoint.save_load import Checkpoint, save_checkpoint
from bertkit.config import family_config, override
from bertkit.engine import cpu
from bertkit.engine.batches import fastest
from bertkit.engine.cpu import MAX_ONNX_TOKENS, CpuOperations, use_onnx
from bertkit.engine.onnx import OnnxEncoder
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import new_model
from bertkit.predict.bert import Bert
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = [*SPECIALS, *LETTERS, *(f"##{c}" for c in LETTERS)]
KNOWN = ("bert", "roberta", "distilbert", "albert", "electra")


def small(family="bert", *changes):
    config = family_config(family, "tiny", vocab_size=60, max_length=MAX_ONNX_TOKENS + 32, init_std=0.1)
    return new_model(override(config, *changes)).eval()


def one(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Batch.pack([torch.randint(60, (length,), generator=generator).tolist()])


@pytest.fixture
def counted(monkeypatch):
    """How many texts went through ONNX Runtime."""
    calls = []
    own = OnnxEncoder.__call__
    monkeypatch.setattr(OnnxEncoder, "__call__", lambda self, ids: calls.append(len(ids)) or own(self, ids))
    return calls


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("family", KNOWN)
def test_equal_to_the_encoder_in_every_family_that_it_knows(family, causal, counted):
    model = small(family, f"causal={causal}")
    use_onnx(model.encoder)
    with torch.inference_mode():
        for length in (1, 2, 17, MAX_ONNX_TOKENS):
            found = fastest(model.encoder)(one(length))
            torch.testing.assert_close(found, model.encoder(one(length)), atol=1e-5, rtol=1e-5)
    assert counted == [1, 2, 17, MAX_ONNX_TOKENS]


def test_gelu_by_tanh_is_another_node():
    model = small("bert", "activation=gelu_tanh")
    use_onnx(model.encoder)
    with torch.inference_mode():
        torch.testing.assert_close(fastest(model.encoder)(one(9)), model.encoder(one(9)), atol=1e-5, rtol=1e-5)


def test_only_one_short_text_goes_there(counted):
    model = small()
    use_onnx(model.encoder)
    two = Batch.pack([[1, 2, 3], [4, 5]])
    with torch.inference_mode():
        for batch in (one(MAX_ONNX_TOKENS + 1), two):
            torch.testing.assert_close(fastest(model.encoder)(batch), model.encoder(batch), atol=1e-5, rtol=1e-5)
    assert counted == []


def test_other_weights_are_other_vectors():
    model = small()
    use_onnx(model.encoder)
    with torch.inference_mode():
        before = fastest(model.encoder)(one(9))
    with torch.no_grad():
        model.encoder.layers[0].feed_forward.up.weight.mul_(2)
    with torch.inference_mode():
        packed = fastest(model.encoder)
        assert isinstance(packed.ops, CpuOperations)
        assert packed.ops.onnx is not None
        after = packed(one(9))
        torch.testing.assert_close(after, model.encoder(one(9)), atol=1e-5, rtol=1e-5)
    assert (after - before).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["modernbert"])
def test_layers_that_it_does_not_know_are_refused(family):
    with pytest.raises(RequestError, match="layers as BERT's"):
        use_onnx(small(family).encoder)
    with pytest.raises(RequestError, match="layers as BERT's"):
        use_onnx(small("bert", "activation=silu").encoder)


def test_other_numbers_are_refused():
    with pytest.raises(RequestError, match="float32 models on the CPU"):
        use_onnx(small().to(torch.bfloat16).encoder)


def test_missing_packages_are_named(monkeypatch):
    own = importlib.util.find_spec
    monkeypatch.setattr("bertkit.engine.onnx.find_spec", lambda name: own(name) if name != "onnxruntime" else None)
    with pytest.raises(RequestError, match=r"needs onnxruntime; install: pip install 'bertkit\[onnx\]'"):
        use_onnx(small().encoder)


@pytest.fixture
def folder(tmp_path):
    save_checkpoint(Checkpoint(model=small(), tokenizer=Tokenizer.from_vocab(PIECES)), tmp_path / "model")
    return tmp_path / "model"


def test_load_with_the_backend_gives_the_same_answers(folder, counted):
    plain, quicker = bertkit.load(folder), bertkit.load(folder, backend="onnx")
    for text in ("", "abc", "a b c " * 10):
        np.testing.assert_allclose(quicker.embed(text), plain.embed(text), atol=1e-5)
    assert len(counted) == 3
    for pooling in ("cls", "mean", "max", "mean-max", "last", "none"):
        for normalize in (True, False):
            one, two = (bert.embed(["abc"], pooling=pooling, normalize=normalize) for bert in (quicker, plain))
            np.testing.assert_allclose(one[0], two[0], atol=1e-5)
    assert len(counted) == 15
    counted.clear()
    texts = ["one text", "and another", "x" * 50]
    np.testing.assert_array_equal(quicker.embed(texts), plain.embed(texts))
    np.testing.assert_array_equal(quicker.embed("abc", layers=1), plain.embed("abc", layers=1))  # a lower layer: torch
    assert counted == []


def test_int8_beside_it_leaves_short_texts_exact(folder, counted, monkeypatch):
    monkeypatch.setattr("bertkit.predict.quantize.MIN_MEAN_COSINE", 0.0)
    quicker = bertkit.load(folder, quantize="int8", backend="onnx")
    np.testing.assert_allclose(quicker.embed("abc"), bertkit.load(folder).embed("abc"), atol=1e-5)
    assert counted == [5]


def test_unknown_backends_are_named_before_the_model_is_read(tmp_path):
    with pytest.raises(RequestError, match=r"unknown backend 'tvm'.*onnx"):
        bertkit.load(tmp_path / "nothing", backend="tvm")


def test_a_model_in_training_is_put_to_rest(folder):
    bert = bertkit.load(folder)
    bert.model.train()
    assert isinstance(bert.use_onnx(), Bert)
    assert not bert.model.training


def test_whoever_listens_is_not_passed_over():
    encoder = small().encoder
    encoder.layers[0].register_forward_hook(lambda *_: None)
    with pytest.raises(RequestError, match="forward hooks"):
        use_onnx(encoder)


def test_made_again_it_has_the_threads_it_had(folder):
    bert = bertkit.load(folder)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        bert.use_onnx()
        with torch.no_grad():
            bert.model.encoder.layers[0].feed_forward.up.weight.mul_(2)
        bert.embed("abc")
        bert.embed("abc")
    finally:
        torch.set_num_threads(before)
    made = cpu._PACKED[bert.model.encoder].onnx
    assert made.threads == 2
    assert cpu.onnx_of(bert.model.encoder) is made


def test_ids_may_come_as_any_sequence():
    model = small()
    use_onnx(model.encoder)
    made = cpu.onnx_of(model.encoder)
    np.testing.assert_array_equal(made((3, 4, 5)), made([3, 4, 5]))
