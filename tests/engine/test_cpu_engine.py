"""The packed forward equals the encoder, batches at a time equal one after the other, and packs follow the weights."""

import copy
import gc
import threading
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bertkit
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import family_config, override
from bertkit.engine import batches as engine
from bertkit.engine import cpu
from bertkit.engine import linear as linears
from bertkit.engine.batches import fastest, layer_vectors, map_batches, token_batches, token_budget
from bertkit.engine.cpu import CpuOperations, padded_to_step
from bertkit.engine.linear import PackedLinear, PlainLinear
from bertkit.errors import RequestError
from bertkit.families.family import FAMILIES
from bertkit.model.batch import Batch
from bertkit.model.layer import ACTIVATIONS
from bertkit.model.model import new_model
from bertkit.model.operations import TORCH
from bertkit.predict.bert import Bert
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

pytestmark = pytest.mark.usefixtures("_one_thread")
CPU = torch.device("cpu")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = [*SPECIALS, *LETTERS, *(f"##{c}" for c in LETTERS)]


def small(family="bert", *changes, **numbers):
    config = family_config(family, "tiny", vocab_size=60, max_length=64, init_std=0.1, **numbers)
    return new_model(override(config, *changes)).eval()


def batch_of(*lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Batch.pack([torch.randint(60, (length,), generator=generator).tolist() for length in lengths])


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_equals_the_encoder_in_every_family(family):
    model, batch = small(family), batch_of(5, 5, 1, 17, 64)
    with torch.inference_mode():
        packed = fastest(model.encoder)
        assert isinstance(packed.ops, CpuOperations)
        torch.testing.assert_close(packed(batch), model.encoder(batch), atol=1e-5, rtol=1e-5)
        expected = model.encoder.hidden_states(batch)
        for depth in range(model.config.depth + 1):
            found = packed.hidden_states(batch, depth)
            assert len(found) == depth + 1
            torch.testing.assert_close(found[:depth], expected[:depth], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("change", ["activation=relu", "activation=silu", "norm=pre", "bias=false"])
def test_packed_equals_the_encoder_with_other_parts(change):
    model, batch = small("bert", change), batch_of(9, 3)
    with torch.inference_mode():
        torch.testing.assert_close(fastest(model.encoder)(batch), model.encoder(batch), atol=1e-5, rtol=1e-5)


@settings(max_examples=25)
@given(
    st.integers(1, 300), st.integers(1, 40), st.integers(1, 40), st.booleans(), st.sampled_from([None, *ACTIVATIONS])
)
def test_a_packed_map_equals_a_plain_one(rows, width, outputs, biased, name):
    torch.manual_seed(rows)
    linear = torch.nn.Linear(width, outputs, bias=biased)
    x, base = torch.randn(rows, width), torch.randn(rows, outputs)
    activation = None if name is None else ACTIVATIONS[name]
    with torch.inference_mode():
        packed = PackedLinear.of(linear)
        plain = PlainLinear(linear.weight, linear.bias)
        torch.testing.assert_close(packed(x, activation), plain(x, activation), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(packed.add_to(base, x), plain.add_to(base, x), atol=1e-5, rtol=1e-5)


def test_without_wide_vectors_many_rows_go_the_plain_way(monkeypatch):
    linear, x = torch.nn.Linear(8, 4), torch.randn(300, 8)
    packed = PackedLinear.of(linear)
    monkeypatch.setattr(linears, "_has_avx512", lambda: False)
    with torch.inference_mode():
        assert torch.equal(packed(x), torch.nn.functional.linear(x, linear.weight, linear.bias))
        assert torch.equal(packed.add_to(x[:, :4], x), x[:, :4] + linear(x))
        torch.testing.assert_close(packed(x[:8]), linear(x[:8]), atol=1e-6, rtol=1e-5)


def test_without_onednn_maps_are_plain(monkeypatch):
    monkeypatch.setattr(linears, "_has_onednn", lambda: False)
    model, batch = small(), batch_of(4, 7)
    with torch.inference_mode():
        packed = fastest(model.encoder)
        assert isinstance(packed.ops.linears[model.encoder.stack[0].attention.qkv], PlainLinear)
        torch.testing.assert_close(packed(batch), model.encoder(batch), atol=1e-5, rtol=1e-5)


def test_changed_weights_are_packed_anew():
    model, batch = small(), batch_of(6)
    linear = model.encoder.layers[0].feed_forward.up
    with torch.inference_mode():
        before = fastest(model.encoder)
        assert fastest(model.encoder).ops is before.ops
    with torch.no_grad():
        linear.weight.mul_(1.5)
    check_equal(model, batch)
    linear.weight = torch.nn.Parameter(linear.weight.detach() * 2)
    check_equal(model, batch)
    model.encoder.layers[1].attention.out = torch.nn.Linear(128, 128)
    check_equal(model, batch)
    model.load_state_dict(small().state_dict())
    check_equal(model, batch)


def check_equal(model, batch):
    with torch.inference_mode():
        torch.testing.assert_close(fastest(model.encoder)(batch), model.encoder(batch), atol=1e-5, rtol=1e-5)


def test_packs_are_for_float32_without_gradients():
    model = small()
    assert fastest(model.encoder).ops is TORCH, "gradients are asked for"
    with torch.inference_mode():
        assert fastest(model.encoder).ops is not TORCH
        assert fastest(model.train().encoder).ops is TORCH, "dropout is on"
        hook = model.eval().encoder.layers[1].attention.out.register_forward_pre_hook(lambda *_: None)
        assert fastest(model.encoder).ops is TORCH, "somebody listens"
        hook.remove()
        assert fastest(model.encoder).ops is not TORCH
        assert fastest(model.double().encoder).ops is TORCH


def test_packs_go_when_the_model_goes_and_copies_have_their_own():
    model, batch = small(), batch_of(6)
    with torch.inference_mode():
        fastest(model.encoder)
        other = copy.deepcopy(model)
        other.encoder.layers[0].attention.out.weight.zero_()
        assert not torch.allclose(fastest(other.encoder)(batch), fastest(model.encoder)(batch))
    gone = weakref.ref(model.encoder)
    del model
    gc.collect()
    assert gone() is None


def test_too_long_is_refused_here_too():
    model = small()
    with torch.inference_mode(), pytest.raises(RequestError, match="65 tokens is over this model's 64 positions"):
        layer_vectors(model.encoder, batch_of(65), [2])


@settings(max_examples=50)
@given(st.lists(st.integers(1, 200), max_size=40))
def test_every_text_is_in_one_batch_and_none_bursts(lengths):
    budget = token_budget(lengths, CPU)
    batches = list(token_batches(lengths, budget))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in batch) <= budget for batch in batches)
    assert engine.MIN_TOKENS_PER_CPU_BATCH <= budget <= engine.MAX_TOKENS_PER_CPU_BATCH


def test_budgets_on_other_devices_are_those_of_a_gpu():
    assert token_budget([8] * 10, torch.device("cuda")) == engine.TOKENS_PER_CUDA_BATCH


@pytest.mark.parametrize("longest", [3, 32, 512])
def test_batches_come_in_few_sizes(longest):
    sizes = set()
    for tokens in range(1, 4097):
        batch = Batch(torch.full((tokens,), 5), torch.ones(tokens, dtype=torch.int64), (tokens,))
        filled = padded_to_step(batch, longest)
        assert filled.ids[:tokens].tolist() == [5] * tokens
        assert filled.lengths[0] == tokens
        assert all(length <= longest for length in filled.lengths[1:]), "what fills up fits the model, too"
        assert len(filled.ids) - tokens < max(8, tokens / 4)
        sizes.add(len(filled.ids))
    assert len(sizes) == 8 + 12 + 24 + 24


def test_batches_at_a_time_come_in_order_each_with_one_thread(two_threads):
    seen, meeting = {}, threading.Barrier(2, timeout=20)

    def compute(batch):
        meeting.wait()  # only two at a time get past this
        seen[threading.get_ident()] = (torch.get_num_threads(), torch.is_inference_mode_enabled())
        return batch[0] * 10

    assert map_batches(compute, [[number] for number in range(6)], 999, CPU) == [0, 10, 20, 30, 40, 50]
    assert list(seen.values()) == [(1, True)] * 2
    assert torch.get_num_threads() == 2
    counts = []
    thread = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert counts == [2], "threads of others are as before"


def test_an_error_in_one_batch_is_the_callers(two_threads):
    def compute(batch):
        if batch == [3]:
            raise RequestError("number 3")
        return batch

    with pytest.raises(RequestError, match="number 3"):
        map_batches(compute, [[number] for number in range(50)], 999, CPU)
    assert torch.get_num_threads() == 2


@pytest.fixture(scope="module")
def bert():
    config = family_config("bert", "tiny", vocab_size=len(PIECES), max_length=64, init_std=0.2)
    return Bert(
        Checkpoint(model=new_model(config).eval(), tokenizer=Tokenizer.from_vocab(PIECES), max_length=64),
    )


@pytest.mark.filterwarnings("ignore::bertkit.errors.BertkitWarning")
@pytest.mark.parametrize("pooling", ["mean", "max", "none"])
def test_many_texts_equal_each_alone_through_the_plain_encoder(bert, pooling, two_threads, monkeypatch):
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(list(LETTERS), size)) for size in draw.integers(0, 90, 36)]
    assert len(list(token_batches(bert.tokenizer.count(texts), token_budget(bert.tokenizer.count(texts), CPU)))) > 4
    found = {how: bert.embed(texts, pooling=pooling, too_long=how, normalize=True) for how in ("truncate", "window")}
    monkeypatch.setattr(cpu, "on_cpu", lambda encoder: False)
    cpu._PACKED.clear()
    torch.set_num_threads(1)
    for how, vectors in found.items():
        for text, vector in zip(texts, vectors, strict=True):
            [alone] = bert.embed([text], pooling=pooling, too_long=how, normalize=True)
            np.testing.assert_allclose(vector, alone, atol=1e-5)


def test_the_same_texts_give_the_same_bits_whatever_the_threads(bert, two_threads):
    texts = [" ".join(LETTERS[: 2 + number % 20]) for number in range(100)]
    two = bert.embed(texts)
    np.testing.assert_array_equal(two, bert.embed(texts))
    torch.set_num_threads(1)
    np.testing.assert_array_equal(two, bert.embed(texts))


def test_plain_encodings_equal_full_ones(uncased_vocab):
    tokenizer = Tokenizer.from_vocab(uncased_vocab)
    texts = ["", "Hello, wörld! 你好", "[MASK] a\u0000b", "\u202e𝒳 e\u0301"]
    full = tokenizer.encode_batch(texts)
    assert tokenizer.encode_plain(texts) == [(list(each.ids), list(each.segments)) for each in full]
    with pytest.raises(RequestError, match="lone surrogate"):
        tokenizer.encode_plain(["a\ud800"])


def test_real_weights(minilm, two_threads, monkeypatch):
    bert = bertkit.load(minilm)
    texts = ["A cat sat on the mat.", "two", "Where is the nearest station?", "long " * 200] * 3
    found = bert.embed(texts)
    monkeypatch.setattr(cpu, "on_cpu", lambda encoder: False)
    cpu._PACKED.clear()
    cosines = (found * bert.embed(texts)).sum(1)
    np.testing.assert_allclose(cosines, 1, atol=1e-6)
    np.testing.assert_allclose(found[1], bert.embed("two"), atol=1e-6)


def test_packs_follow_an_optimizer_whose_steps_torch_does_not_count():
    model, batch = small(), batch_of(5, 9)
    with torch.inference_mode():
        fastest(model.encoder)(batch)
    optimizer = torch.optim.AdamW(model.encoder.parameters(), lr=0.1, fused=True)
    model.encoder(batch).square().mean().backward()
    optimizer.step()
    with torch.inference_mode():
        packed = fastest(model.encoder)
        assert isinstance(packed.ops, CpuOperations)
        torch.testing.assert_close(packed(batch), model.encoder(batch), atol=1e-5, rtol=1e-5)


def edit_rows(weight, part):
    weight.data[len(weight) * part // 36 : len(weight) * (part + 1) // 36] = 0


def edit_columns(weight, part):
    edit_rows(weight.data.t(), part)


EDITS = {
    "all but the first row": lambda weight: weight.data[1:].zero_(),
    "all but the first column": lambda weight: weight.data[:, 1:].mul_(1.5),
    "a head's rows": lambda weight: edit_rows(weight, 7),
    "a head's columns": lambda weight: edit_columns(weight, 23),
    "the last rows": lambda weight: edit_rows(weight, 35),
    "the last columns": lambda weight: edit_columns(weight, 35),
    "through numpy": lambda weight: weight.detach().numpy().__imul__(1.01),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("module", ["attention.qkv", "attention.out", "feed_forward.up", "feed_forward.down"])
def test_packs_follow_edits_that_torch_does_not_count(module, edit):
    """A head is a twelfth of a matrix, or a 36th where queries, keys and values are one."""
    model, batch = small("bert", width=312, heads=12, inner=1200), batch_of(5, 9)
    weight = model.encoder.layers[1].get_submodule(module).weight
    with torch.inference_mode():
        before, counted = fastest(model.encoder)(batch), weight._version
        EDITS[edit](weight)
        assert weight._version == counted
        after = fastest(model.encoder)(batch)
        assert not torch.equal(before, after)
        torch.testing.assert_close(after, model.encoder(batch), atol=1e-5, rtol=1e-5)


LAYOUTS = {
    "columns": lambda weight: weight.t().contiguous().t(),
    "part of a larger one": lambda weight: torch.cat((weight, weight), dim=1)[:, : weight.shape[1]],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_packs_follow_edits_of_weights_of_any_layout(layout):
    model, batch = small(), batch_of(5, 9)
    up = model.encoder.layers[0].feed_forward.up
    up.weight = torch.nn.Parameter(LAYOUTS[layout](up.weight.detach()))
    with torch.inference_mode():
        fastest(model.encoder)(batch)
        up.weight.data[1:] = 0
        torch.testing.assert_close(fastest(model.encoder)(batch), model.encoder(batch), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fused", [True, False])
def test_training_between_vectors_is_followed_at_every_step(fused):
    model, batch = small(), batch_of(5, 9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=fused)
    for _ in range(4):
        with torch.inference_mode():
            packed = fastest(model.eval().encoder)
            assert isinstance(packed.ops, CpuOperations)
            torch.testing.assert_close(packed(batch), model.encoder(batch), atol=1e-5, rtol=1e-5)
        optimizer.zero_grad()
        model.train().encoder(batch).square().mean().backward()
        optimizer.step()


def test_an_edit_that_cannot_be_seen_counts_from_the_refresh_on():
    model, batch = small(), batch_of(5, 9)
    weight = model.encoder.layers[1].feed_forward.down.weight
    with torch.inference_mode():
        before = fastest(model.encoder)(batch)
        weight.data[5, 77] += 10
        assert torch.equal(fastest(model.encoder)(batch), before), "else this test needs another place"
        cpu.repack(model.encoder)
        after = fastest(model.encoder)(batch)
        torch.testing.assert_close(after, model.encoder(batch), atol=1e-5, rtol=1e-5)
        assert fastest(model.encoder).ops is fastest(model.encoder).ops, "packed once"
    assert not torch.equal(before, after)
    cpu.repack(small().encoder)  # which was never packed


@pytest.mark.parametrize("part", ["layers", "embeddings"])
def test_packs_follow_modules_that_are_put_in_the_place_of_others(part):
    model, other, batch = small(), new_model(small().config, seed=7).eval(), batch_of(5, 9)
    with torch.inference_mode():
        fastest(model.encoder)(batch)
        setattr(model.encoder, part, getattr(other.encoder, part))
        torch.testing.assert_close(fastest(model.encoder)(batch), model.encoder(batch), atol=1e-5, rtol=1e-5)


def test_packs_take_weights_of_any_layout_and_those_made_without_gradients():
    model, batch = small(), batch_of(5, 9)
    up = model.encoder.layers[0].feed_forward.up
    up.weight = torch.nn.Parameter(up.weight.detach().t().contiguous().t())
    with torch.inference_mode():
        torch.testing.assert_close(fastest(model.encoder)(batch), model.encoder(batch), atol=1e-5, rtol=1e-5)
        model.load_state_dict({name: tensor + 0.01 for name, tensor in model.state_dict().items()}, assign=True)
        torch.testing.assert_close(fastest(model.encoder)(batch), model.encoder(batch), atol=1e-5, rtol=1e-5)


def test_whoever_listens_to_the_encoder_hears_it():
    model, heard = small(), []
    with torch.inference_mode():
        fastest(model.encoder)
        handle = model.encoder.register_forward_hook(lambda *_: heard.append(1))
        layer_vectors(model.encoder, batch_of(5), [model.config.depth])
        handle.remove()
        assert isinstance(fastest(model.encoder).ops, CpuOperations)
    assert heard == [1]


def test_a_model_that_moves_away_leaves_no_pack():
    model = small()
    with torch.inference_mode():
        fastest(model.encoder)
        assert model.encoder in cpu._PACKED
        model.to(torch.bfloat16)
        assert fastest(model.encoder).ops is TORCH
    assert model.encoder not in cpu._PACKED


def test_half_precision_is_normalized_to_one(bert):
    half = Bert(copy.deepcopy(bert.checkpoint)).to("cpu", "bfloat16")
    lengths = np.linalg.norm(half.embed(["a b c", "d e"], normalize=True), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-6)
    rows = half.embed(["a b c"], normalize=True, pooling="none")[0]
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(half.embed("a b c"), bert.embed("a b c"), atol=0.05)
    with pytest.raises(RequestError, match="unknown dtype 'int4'"):
        half.to("cpu", "int4")
