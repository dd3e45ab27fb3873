"""CUDA's kernels, run by Triton's interpreter on the CPU, against their plain twins: values and gradients."""

import pytest
import torch
import torch.nn.functional as F

from bertkit.model.attention import AttentionWindow, attention_weights, eager
from bertkit.model.batch import Batch
from bertkit.model.word_loss import IGNORE, plain_losses, plain_sample

MIXES = {
    "short, all sizes up to a block": (128, (5, 17, 100, 128, 1)),
    "small blocks": (32, (5, 17, 30)),
    "long, several blocks": (257, (200, 130, 7, 257)),
    "long, and empty places of a fixed layout": (300, (140, 1, 64)),
}
WINDOWS = {
    "all": AttentionWindow(),
    "window": AttentionWindow(9),
    "backwards": AttentionWindow(None, True),
    "window backwards": AttentionWindow(20, True),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows behind the end of a block are computed and never written
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("mix", MIXES)
def test_attention_and_its_gradient_are_the_formula(mix, window):
    from bertkit.model.triton_kernels.attention import attention

    longest, lengths = MIXES[mix]
    seen, ids = WINDOWS[window], torch.zeros(sum(lengths), dtype=torch.long)
    batch = Batch(ids, ids, lengths).laid_out(longest, len(lengths) + 2)
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(len(ids), 3, 2, 16, generator=generator).requires_grad_()
    plain = ours.detach().clone().requires_grad_()
    radius = -1 if seen.radius is None else seen.radius
    mixed, _ = attention(ours, batch.offsets, batch.offsets, batch.longest, radius, seen.causal, 0.0)
    expected = eager(plain, batch, seen)
    grad = torch.randn(mixed.shape, generator=generator)
    mixed.backward(grad)
    expected.backward(grad)
    torch.testing.assert_close(mixed, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.grad, plain.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("longest", "lengths"), [(64, (60, 20, 5)), (140, (140, 9))])
def test_dropout_leaves_out_the_same_weights_on_the_way_back(longest, lengths):
    from bertkit.model.triton_kernels.attention import attention

    ids, generator = torch.zeros(sum(lengths), dtype=torch.long), torch.Generator().manual_seed(0)
    batch, seeds = Batch(ids, ids, lengths), torch.tensor([7])
    ours = torch.randn(len(ids), 3, 2, 16, generator=generator).requires_grad_()
    plain = ours.detach().clone().requires_grad_()
    mixed, _ = attention(ours, batch.offsets, seeds, longest, -1, False, 0.3)
    expected, kept = [], []
    for q, k, v in zip(*map(batch.split, plain.unbind(1)), strict=True):
        weights, length = attention_weights(q, k, AttentionWindow()), len(q)
        thin = thinned_weights(q, k, longest, seeds, len(expected))
        kept.append((thin > 0).flatten())
        assert torch.allclose(thin[thin > 0], (weights / 0.7)[thin > 0], atol=1e-5)
        expected.append(torch.einsum("hqs,shk->qhk", weights * (thin > 0) / 0.7, v))
        assert thin.shape == (2, length, length)
    grad = torch.randn(mixed.shape, generator=generator)
    mixed.backward(grad)
    torch.cat(expected).backward(grad)
    assert float(torch.cat(kept).float().mean()) == pytest.approx(0.7, abs=0.02)
    torch.testing.assert_close(mixed, torch.cat(expected), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.grad, plain.grad, atol=1e-5, rtol=1e-5)


def thinned_weights(q, k, longest, seeds, before):
    """H L L: the weights of sequence number `before` after dropout, read off 16 columns at a time by unit vectors."""
    from bertkit.model.triton_kernels.attention import attention

    length, found = len(q), []
    offsets = torch.tensor([0] * (before + 1) + [length], dtype=torch.int32)  # empty ones stand before it
    for first in range(0, length, 16):
        unit = torch.zeros(length, 2, 16)
        unit[range(first, min(first + 16, length)), :, range(min(16, length - first))] = 1.0
        qkv = torch.stack((q.detach(), k.detach(), unit), dim=1)
        found.append(attention(qkv, offsets, seeds, longest, -1, False, 0.3)[0].permute(1, 0, 2))
    return torch.cat(found, dim=-1)[:, :, :length]


@pytest.mark.parametrize("shape", [(300, 96), (1, 16), (600, 520)])
def test_gelu_takes_the_bias_and_gives_its_gradient(shape):
    from bertkit.model.triton_kernels.gelu import bias_gelu

    generator = torch.Generator().manual_seed(0)
    x, bias = 3 * torch.randn(shape, generator=generator), torch.randn(shape[1], generator=generator)
    x[0, 0], x[0, 1] = 40.0, -40.0
    ours, plain = ([t.clone().requires_grad_() for t in (x, bias)] for _ in range(2))
    grad = torch.randn(shape, generator=generator)
    activated, expected = bias_gelu(*ours), F.gelu(plain[0] + plain[1])
    activated.backward(grad)
    expected.backward(grad)
    torch.testing.assert_close(activated, expected, atol=1e-5, rtol=1e-5)
    for got, wanted in zip(ours, plain, strict=True):
        torch.testing.assert_close(got.grad, wanted.grad, atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize(("size", "width", "apart"), [(9000, 9024, 1), (5, 64, 1), (4096, 4096, 4)])
def test_the_words_loss_its_gradient_and_a_sample_are_the_plain_ones(size, width, apart):
    from bertkit.model.triton_kernels.words import word_loss, word_sample

    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(6, width, generator=generator)
    logits[:, size:] = 1e4  # what is behind the vocabulary counts nowhere
    targets = torch.randint(0, size, (6, apart), generator=generator)[:, 0]
    targets[0], targets[1] = logits[0, :size].argmax(), IGNORE
    ours, plain = (logits.clone().requires_grad_() for _ in range(2))
    weights, places = torch.rand(6, generator=generator), torch.rand(6, generator=generator)
    losses, logs, right = word_loss(ours, targets, size)
    expected, expected_right = plain_losses(plain[:, :size], targets)
    (losses * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(losses, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logs, logits[:, :size].logsumexp(-1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.grad, plain.grad, atol=1e-6, rtol=1e-5)
    assert right.tolist() == expected_right.tolist()
    assert right[0]
    assert not right[1]
    drawn = word_sample(logits, logs, places, size)
    assert drawn.tolist() == plain_sample(logits[:, :size], places * (1 - 1e-5)).tolist()
