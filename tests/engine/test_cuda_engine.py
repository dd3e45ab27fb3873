"""A GPU's forward, with its kernels run by Triton's interpreter on the CPU, equals the encoder."""

import pytest
import torch
import torch.nn.functional as F

from bertkit.config import family_config, override
from bertkit.engine import cuda
from bertkit.engine.batches import Forward
from bertkit.engine.cuda import CudaOperations, can_fuse
from bertkit.model.batch import Batch
from bertkit.model.layer import is_plain
from bertkit.model.model import new_model


def small(family="bert", *changes):
    config = family_config(family, "tiny", vocab_size=60, max_length=64, init_std=0.1)
    return new_model(override(config, *changes), seed=1).eval()


def batch_of(*lengths):
    generator = torch.Generator().manual_seed(0)
    return Batch.pack([torch.randint(60, (length,), generator=generator).tolist() for length in lengths])


@pytest.mark.parametrize("width", [64, 384, 100])
def test_residual_and_norm_in_one_pass_are_the_formula(width):
    from bertkit.model.triton_kernels.norm import add_norm

    generator = torch.Generator().manual_seed(0)
    x, base = torch.randn(2, 5, width, generator=generator) * 3 + 1
    bias, weight, shift = torch.randn(3, width, generator=generator)
    expected = F.layer_norm(base + (x + bias), (width,), weight, shift, 1e-12)
    torch.testing.assert_close(add_norm(x, bias, base, weight, shift, 1e-12), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
def test_fused_equals_the_encoder(family):
    model, batch = small(family), batch_of(5, 5, 1, 17)
    with torch.inference_mode():
        fused = Forward(model.encoder, CudaOperations())
        torch.testing.assert_close(fused(batch), model.encoder(batch), atol=1e-5, rtol=1e-5)
        for one, two in zip(fused.hidden_states(batch, 1), model.encoder.hidden_states(batch, 1), strict=True):
            torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


def test_in_bfloat16_gelu_within_the_product_is_lost_in_the_rounding(monkeypatch):
    def as_on_a_gpu(bias, x, weight, *, use_gelu):
        assert use_gelu
        return F.gelu(torch.addmm(bias, x, weight), approximate="tanh")

    x = torch.arange(-8, 8, 1 / 1024)
    assert (F.gelu(x, approximate="tanh") - F.gelu(x)).abs().max() < 5e-4 < torch.finfo(torch.bfloat16).eps / 8
    monkeypatch.setattr(torch, "_addmm_activation", as_on_a_gpu)
    model, batch = small(), batch_of(5, 5, 1, 17)
    with torch.inference_mode():
        exact = model.encoder(batch)
        half = model.to(torch.bfloat16).encoder
        ours, theirs = (
            F.cosine_similarity(found.float(), exact) for found in (half(batch, ops=CudaOperations()), half(batch))
        )
    assert (1 - ours).max() < 1.5 * (1 - theirs).max()


def test_only_what_it_computes_is_taken(monkeypatch):
    with torch.inference_mode():
        assert not can_fuse(small().encoder), "a CPU has its own"
        monkeypatch.setattr(cuda, "triton_supports_inference", lambda x: not torch.is_grad_enabled())
        assert can_fuse(small().encoder)
        assert not can_fuse(small("modernbert").encoder)
        assert not can_fuse(small("albert").encoder), "its GELU is another"
        assert not can_fuse(small().train().encoder)
        heard = small().encoder
        heard.layers[0].register_forward_hook(lambda *_: None)
        assert not can_fuse(heard)
    assert not can_fuse(small().encoder), "gradients may be asked for"


def test_plain_layers_are_told_from_others():
    assert all(is_plain(layer) for layer in small("albert").encoder.stack)
    assert not any(is_plain(layer) for layer in small("modernbert").encoder.stack)
