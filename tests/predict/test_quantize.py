"""Maps in int8: near the float ones, refused where they are not, and nothing else about a model changes."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import bertkit
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import family_config
from bertkit.engine import int8
from bertkit.engine.int8 import Int8Linear, round_rows
from bertkit.engine.linear import ReplacedLinear, pack
from bertkit.errors import RequestError
from bertkit.families.family import FAMILIES
from bertkit.model.model import new_model
from bertkit.predict import quantize as quantizing
from bertkit.predict.bert import Bert
from bertkit.predict.quantize import compare, linear_layers, quantize

pytestmark = pytest.mark.usefixtures("_one_thread")
TEXTS = [
    "The river froze in January and did not thaw before April.",
    "refund",
    "Which of the two novels did she write first, and how was it received by the critics of her time?",
    "Zinc reacts with hydrochloric acid: hydrogen is set free.",
] * 2


def small(family="bert", **numbers):
    config = family_config(family, "tiny", vocab_size=90, max_length=64, **numbers)
    return new_model(config, {"masked_word": None}).eval()


@settings(max_examples=60)
@given(st.integers(1, 9), st.integers(1, 40), st.floats(1e-6, 1e6), st.sampled_from([90, 127]), st.integers(0, 99))
def test_rounding_is_within_half_a_step_of_each_row(rows, width, size, most, seed):
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * size
    rounded, scale = round_rows(x.clone(), most)
    assert rounded.dtype == torch.uint8
    whole = rounded.to(torch.int64) - most - 1
    assert whole.abs().max() <= most
    assert ((whole * scale - x).abs() <= scale * 0.501).all()
    assert (whole.abs().amax(1) == most).all(), "each row uses all of its range"


def test_rounding_zeros_gives_zeros():
    rounded, scale = round_rows(torch.zeros(2, 5), 127)
    assert ((rounded.long() - 128) * scale == 0).all()


@settings(max_examples=25)
@example(4, 29, 40, True, 0.5537935028340596)  # one weight is half-way
@given(st.integers(1, 70), st.integers(1, 48), st.integers(1, 48), st.booleans(), st.floats(0, 1))
def test_an_int8_map_equals_its_arithmetic_in_whole_numbers(rows, width, outputs, biased, smoothing):
    torch.manual_seed(width)
    linear, x, base = torch.nn.Linear(width, outputs, biased), torch.randn(rows, width), torch.randn(rows, outputs)
    with torch.inference_mode():
        made = Int8Linear.of(linear, x.abs().amax(0), smoothing)
        rounded, scale = round_rows(x * made.unsmooth_I, int8.levels())
        steps = linear.weight / made.unsmooth_I / made.scale_O[:, None]
        numbers = rounded.long() - int8.levels() - 1
        expected = numbers @ steps.round().long().T * scale * made.scale_O + (linear.bias if biased else 0)
        # A weight half-way between two numbers may become either: the last bit of its division decides.
        either = (steps - steps.floor() - 0.5).abs() < 1e-4
        most = 1e-4 + 1e-4 * expected.abs() + numbers.abs() @ either.long().T * scale * made.scale_O
        assert ((made(x) - expected).abs() <= most).all()
        assert ((made.add_to(base, x) - expected - base).abs() <= most).all()
        activated = made(x, torch.nn.functional.gelu)
        torch.testing.assert_close(activated, torch.nn.functional.gelu(made(x)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_keeps_its_vectors(family):
    model = small(family)
    if model.config.recurrent:
        with pytest.raises(RequestError, match="this model's layers are recurrent; leave it in float32"):
            quantize(model, "int8")
        return
    found = quantize(model, "int8")
    assert 0.999 <= found.mean < 1
    assert found.texts == 24
    maps = linear_layers(model).values()
    assert sum(isinstance(linear, ReplacedLinear) for linear in maps) >= len(maps) // 2


def test_answers_of_every_kind_are_computed_in_int8_and_near(minilm):
    exact, rough = bertkit.load(minilm), bertkit.load(minilm, quantize="int8")
    assert rough.fidelity.mean >= 0.999
    one, two = exact.embed(TEXTS), rough.embed(TEXTS)
    cosines = (one * two).sum(1)
    assert cosines.mean() >= 0.999
    assert cosines.min() >= 0.995
    assert np.abs(one - two).max() > 1e-5, "something was rounded"
    with torch.inference_mode():
        plain = torch.stack([rough.model(bertkit_batch(rough, text)).mean(0) for text in TEXTS[:4]])
    plain = torch.nn.functional.normalize(plain, dim=-1).numpy()
    assert (plain * one[:4]).sum(1).min() > 0.998
    assert np.abs(plain - one[:4]).max() > 1e-4, "the plain encoder computes through these maps too"


def bertkit_batch(bert, text):
    from bertkit.engine.batches import Passage, make_batch

    encoding = bert.tokenizer.encode(text)
    return make_batch([Passage(encoding.ids, encoding.segments)], torch.device("cpu"))


def test_a_dtype_among_others():
    bert = Bert(Checkpoint(model=small()))
    assert bert.dtype == "float32"
    assert bert.to("cpu", "int8").dtype == "int8"
    assert bert.fidelity.mean >= 0.999
    assert bert.to("cpu", "int8").dtype == "int8"
    before = [linear.weight for linear in linear_layers(bert.model).values()]
    assert bert.to("cpu", "float32").dtype == "float32"
    assert bert.fidelity is None
    assert not any(isinstance(linear, ReplacedLinear) for linear in linear_layers(bert.model).values())
    assert all(linear.weight is one for linear, one in zip(linear_layers(bert.model).values(), before, strict=True))
    assert bert.to("cpu", "bfloat16").dtype == "bfloat16"
    assert bert.to("cpu", "int8").dtype == "int8"
    with torch.no_grad():
        for linear in linear_layers(bert.model).values():
            linear.weight.mul_(2)
    assert bert.dtype == "float32", "maps of weights that are no more are not used"
    with pytest.raises(RequestError, match="int8 is for CPUs; on 'cuda' choose bfloat16"):
        Bert(Checkpoint(model=small())).to("cuda", "int8")


def test_a_model_that_cannot_take_it_is_refused_with_the_number_and_left_alone(monkeypatch):
    model = small(init_std=0.1)
    before = linear_layers(model)
    monkeypatch.setattr(quantizing, "MIN_MEAN_COSINE", 0.9999999)
    with pytest.raises(RequestError, match=r"mean cosine with float32 is [01]\.\d{5} on 24 samples, under 0.9999999; "):
        quantize(model, "int8")
    assert linear_layers(model) == before


def test_hard_maps_are_spared_first_from_below(monkeypatch):
    """A needle among the numbers that a second feed-forward map reads: one scale for a row cannot hold both."""
    model = small(init_std=0.05)
    with torch.no_grad():
        model.encoder.layers[0].feed_forward.up.bias[:1] = 300.0
        model.encoder.layers[0].feed_forward.down.weight[:, 1:] *= 100
    monkeypatch.setattr(quantizing, "MIN_MEAN_COSINE", 0.99997)
    assert quantize(model, "int8").spared == 1 / 8
    kinds = {name: isinstance(linear, ReplacedLinear) for name, linear in linear_layers(model).items()}
    assert [name for name, quick in kinds.items() if not quick] == ["layers.0.feed_forward.down"]


def test_wrong_wishes_are_one_sentence(minilm):
    with pytest.raises(RequestError, match="unknown way to quantize 'int4'; choose from: int8"):
        bertkit.load(minilm, quantize="int4")
    with pytest.raises(
        RequestError, match="int8 is for float32 models on the CPU, and this one is torch.float64 on cpu"
    ):
        quantize(small().double(), "int8")
    with pytest.raises(RequestError, match="texts to measure int8 on need a tokenizer"):
        Bert(Checkpoint(model=small())).quantize("int8", samples=["a text"])
    with pytest.raises(RequestError, match="this model is quantized already"):
        Bert(Checkpoint(model=small())).quantize().quantize()
    broken = small()
    with torch.no_grad():
        broken.encoder.layers[0].attention.qkv.weight[0, 0] = float("nan")
    with pytest.raises(RequestError, match="mean cosine with float32 is nan"):
        quantize(broken, "int8")
    with pytest.raises(RequestError, match="a list of texts belongs here"):
        Bert(Checkpoint(model=small())).quantize("int8", samples="one text")


def test_what_is_saved_is_what_was_loaded(tmp_path):
    model = small()
    bert = Bert(Checkpoint(model=model, max_length=64))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    bert.quantize()
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_gradients_go_through_the_float_weights():
    model = small()
    quantize(model, "int8")
    linear = model.encoder.layers[0].attention.qkv
    assert isinstance(linear, ReplacedLinear)
    x = torch.randn(3, 128)
    assert torch.equal(linear(x), torch.nn.functional.linear(x, linear.weight, linear.bias))
    linear(x).sum().backward()
    assert linear.weight.grad is not None


def test_weights_that_changed_are_used_as_they_are():
    model = small()
    quantize(model, "int8")
    linear = model.encoder.layers[0].attention.qkv
    with torch.no_grad():
        linear.weight.mul_(2)
    x = torch.randn(3, 128)
    with torch.inference_mode():
        assert torch.equal(linear(x), torch.nn.functional.linear(x, linear.weight, linear.bias))
        assert not isinstance(pack(linear), Int8Linear)
        assert isinstance(pack(model.encoder.layers[0].attention.out), Int8Linear)


def test_own_samples_are_what_is_measured(minilm):
    bert = bertkit.load(minilm).quantize(samples=TEXTS)
    assert bert.fidelity.texts == len(TEXTS)


def test_without_vnni_sums_of_two_products_fit_16_bits(monkeypatch):
    int8.levels.cache_clear()
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    assert (2 * int8.levels() + 1) * int8.levels() * 2 <= 2**15 - 1
    linear, x = torch.nn.Linear(64, 8), torch.randn(5, 64)
    with torch.inference_mode():
        near = Int8Linear.of(linear, x.abs().amax(0), 0.5)(x)
        assert compare(near, linear(x), 0.0).least > 0.995
    int8.levels.cache_clear()
