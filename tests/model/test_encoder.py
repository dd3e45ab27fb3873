"""The encoder of every family: packed, padded and one by one agree; a trace is what the layers did."""

from dataclasses import replace

import pytest
import torch

from bertkit.config import family_config, override
from bertkit.errors import RequestError
from bertkit.families.family import FAMILIES
from bertkit.model import operations
from bertkit.model.attention import KERNELS
from bertkit.model.batch import Batch
from bertkit.model.model import new_model, parameter_count
from bertkit.model.relative import DisentangledBias, TableBias, TransformerXLBias

ROWS = sorted(FAMILIES)
ATTENDING = [row for row in ROWS if not family_config(row).recurrent]
MIXTURES = {
    "bert-rotary": ("bert", {"position": "rotary"}),
    "bert-sinusoidal-relu": ("bert", {"position": "sinusoidal", "activation": "relu"}),
    "bert-pre-gated": ("bert", {"norm": "pre", "feed_forward": "gated"}),
    "bert-window": ("bert", {"window": 6, "global_every": 2}),
    "bert-no-positions": ("bert", {"position": "none"}),
}
TEXTS = [[5, 6, 7], [8] * 31, [9, 10], [3], [11, 12, 13], list(range(20, 52))]


def tiny(row, **numbers):
    family, parts = MIXTURES.get(row, (row, {}))
    config = family_config(family, "tiny", vocab_size=60, max_length=64, init_std=0.1, **numbers)
    return replace(config, parts=replace(config.parts, **{"window": 12 if family == "modernbert" else None} | parts))


def model_of(row, heads=None, **numbers):
    return new_model(tiny(row, **numbers), heads or {}, seed=3).eval()


@pytest.mark.parametrize("row", [*ROWS, *MIXTURES])
def test_packed_equals_padded_equals_one_by_one(row, monkeypatch):
    model = model_of(row, {"masked_word": None, "classify": 3, "tag": 4})
    kinds = max(1, model.config.segments)
    segments = [[i % kinds for i in range(len(text))] for text in TEXTS]
    batch = Batch.pack(TEXTS, segments)
    with torch.no_grad():
        packed = {head: model.logits(batch, head) for head in model.heads}
        alone = [Batch.pack([text], [row]) for text, row in zip(TEXTS, segments, strict=True)]
        one_by_one = {head: torch.cat([model.logits(each, head) for each in alone]) for head in model.heads}
        monkeypatch.setattr(operations, "attend", KERNELS["padded"])
        padded = {head: model.logits(batch, head) for head in model.heads}
    for head in model.heads:
        torch.testing.assert_close(packed[head], one_by_one[head], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(packed[head], padded[head], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("row", [*ATTENDING, *MIXTURES])
def test_a_trace_is_what_the_layers_did(row):
    encoder = model_of(row).encoder
    batch = Batch.pack([TEXTS[-1]])
    with torch.no_grad():
        trace = encoder.trace(batch)
        states = encoder.hidden_states(batch)
        output = encoder(batch)
    assert len(trace.layers) == encoder.config.depth == len(states) - 1
    torch.testing.assert_close(trace.output, output)
    torch.testing.assert_close(trace.embeddings, states[0])
    for layer, module in zip(trace.layers, encoder.stack, strict=True):
        torch.testing.assert_close(layer.weights.sum(-1), torch.ones_like(layer.weights[..., 0]))
        mixed = torch.einsum("hqs,shk->qhk", layer.weights, layer.values).flatten(1)
        torch.testing.assert_close(mixed, layer.mixed, atol=1e-5, rtol=1e-5)
        assert layer.queries.shape == (32, encoder.config.heads, encoder.config.head_width)
        assert module.attention.heads == encoder.config.heads
    with pytest.raises(RequestError, match="a trace follows one sequence, not 2"):
        encoder.trace(Batch.pack([[1], [2]]))


@pytest.mark.parametrize("row", [*ROWS, *MIXTURES])
def test_a_causal_encoder_sees_nothing_ahead(row):
    encoder = new_model(override(tiny(row), "causal=true"), seed=3).eval().encoder
    with torch.no_grad():
        one, two = (encoder(Batch.pack([[5, 6, 7, last]])) for last in (8, 9))
    assert torch.equal(one[:3], two[:3])
    assert not torch.allclose(one[3], two[3])


def test_hidden_states_stop_where_asked():
    encoder = model_of("modernbert").encoder
    batch = Batch.pack(TEXTS)
    with torch.no_grad():
        short, long = encoder.hidden_states(batch, depth=1), encoder.hidden_states(batch)
    assert len(short) == 2
    torch.testing.assert_close(short[1], long[1])
    torch.testing.assert_close(long[-1], encoder(batch))


@pytest.mark.parametrize("row", [*ROWS, *MIXTURES])
def test_half_precision_runs_and_is_near(row):
    model = model_of(row, {"classify": 3})
    batch = Batch.pack(TEXTS)
    with torch.no_grad():
        expected = model(batch)
        got = model.to(torch.bfloat16)(batch).float()
    assert ((got - expected).norm() / expected.norm()).item() < 0.05


def test_a_head_gives_the_same_beside_any_other():
    """ModernBERT's tags read through the pooler; its replaced-token head does not, whatever else is there."""
    alone = model_of("modernbert", {"replaced_token": None})
    both = model_of("modernbert", {"replaced_token": None, "tag": 3})
    state = alone.state_dict()
    both.load_state_dict(state, strict=False)
    batch = Batch.pack(TEXTS)
    with torch.no_grad():
        torch.testing.assert_close(both.logits(batch, "replaced_token"), alone.logits(batch, "replaced_token"))


def test_too_long_never_reaches_the_model():
    model = model_of("bert")
    with pytest.raises(RequestError, match="a sequence of 65 tokens is over this model's 64 positions"):
        model(Batch.pack([[1] * 65]))
    assert model(Batch.pack([[1] * 64])).shape == (64, 128)


def test_heads_say_what_is_missing():
    model = model_of("bert", {"tag": 3})
    with pytest.raises(RequestError, match="unknown head of this model 'classify'; choose from: tag"):
        model.logits(Batch.pack([[1]]), "classify")
    with pytest.raises(RequestError, match="unknown head 'sing'; choose from: answer"):
        new_model(tiny("bert"), {"sing": 1})
    with pytest.raises(RequestError, match="no pooler"):
        model_of("bert").pooled(torch.zeros(1, 128), Batch.pack([[1]]))


def test_same_seed_same_weights_and_the_stated_distribution():
    one, two, other = (new_model(tiny("bert"), {"masked_word": None}, seed=seed) for seed in (1, 1, 2))
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, two.state_dict()[name])
    word = one.encoder.embeddings.word.weight
    assert not torch.equal(word, other.encoder.embeddings.word.weight)
    assert word.abs().max() <= 2 * 0.1
    # a normal cut at two deviations has 0.8796 of its deviation
    assert word.std().item() == pytest.approx(0.1 * 0.8796, rel=0.03)
    assert one.heads["masked_word"].decoder.weight is word
    assert (one.encoder.stack[0].attention_norm.weight == 1).all()
    assert (one.encoder.stack[0].attention.qkv.bias == 0).all()


def test_a_head_gets_the_same_weights_whatever_stands_beside_it():
    """Fresh weights depend on the seed and the tensor's place among all names, not on torch's global state."""
    torch.manual_seed(5)
    one = new_model(tiny("bert"), {"tag": 3})
    torch.manual_seed(6)
    two = new_model(tiny("bert"), {"tag": 3})
    assert torch.equal(one.heads["tag"].out.weight, two.heads["tag"].out.weight)


def test_albert_shares_its_layer_and_factors_its_table():
    model = new_model(family_config("albert", "base"), {"masked_word": None, "next_sentence": None})
    # transformers' AlbertForPreTraining of the same shape counts the same
    assert len(model.encoder.layers) == 1
    assert len(model.encoder.stack) == 12
    assert parameter_count(model.encoder) == 30000 * 128 + 512 * 128 + 2 * 128 + 2 * 128 + 129 * 768 + 7_087_872


@pytest.mark.parametrize("bias", [TableBias, DisentangledBias, TransformerXLBias])
def test_a_bias_is_hashed_by_identity(bias):
    """torch 2.11 hashes callables in compiled code before their tensors are set."""
    assert bias.__hash__ is object.__hash__
