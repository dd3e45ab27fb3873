"""Five kernels, one answer; the equality holds for values and for gradients."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.model.attention import KERNELS, AttentionWindow, attend, attention_weights, eager
from bertkit.model.batch import Batch

FAST = ["grouped", "padded"]  # the others run on CUDA only: benchmarks/kernels_gpu.py holds them to the same twin


def batch_of(lengths):
    ids = torch.zeros(sum(lengths), dtype=torch.long)
    return Batch(ids, torch.arange(sum(lengths)) % 3, tuple(lengths))


@dataclass(frozen=True)
class AnyBias:
    """A bias of queries, keys, positions and segments, all of which count."""

    scale: float = 0.3
    by_length: bool = False  # [CLS] is the last token

    def __call__(self, q, k, places):
        if self.by_length:
            places = places.with_cls_last()
            return q.sum(-1)[..., None] * places.distance.sin().view(-1, 1, *places.distance.shape[-2:])
        apart = places.segments[:, None, :, None] != places.segments[:, None, None, :]
        return q.sum(-1)[..., None] * places.distance.sin() + k.sum(-1)[..., None, :] * apart


BIASES = [None, AnyBias(), AnyBias(by_length=True)]


def qkv(tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(tokens, 2, 6, generator=generator) for _ in range(3)]


windows = st.builds(AttentionWindow, st.one_of(st.none(), st.integers(0, 9)), st.booleans())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), windows, st.integers(0, 99), st.sampled_from(BIASES))
def test_every_kernel_equals_the_formula(lengths, window, seed, bias):
    batch, tensors = batch_of(lengths), qkv(sum(lengths), seed)
    expected = eager(torch.stack(tensors, dim=1), batch, window, bias=bias)
    for name in FAST:
        found = KERNELS[name](torch.stack(tensors, dim=1), batch, window, bias=bias)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    found = attend(torch.stack(tensors, dim=1), batch, window, bias=bias)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    fixed = batch.laid_out(longest=12, sequences=9)
    found = attend(torch.stack(tensors, dim=1), fixed, window, bias=bias)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_bias_is_part_of_the_formula():
    q, k, v = qkv(4)
    batch, bias = batch_of((4,)), AnyBias()
    weights = attention_weights(q, k, AttentionWindow(), bias, batch.segments)
    for head in range(2):
        for row in range(4):
            scores = [
                bias.scale * float(q[row, head] @ k[column, head])
                + float(q[row, head].sum()) * math.sin(row - column)
                + float(k[column, head].sum()) * bool(batch.segments[row] != batch.segments[column])
                for column in range(4)
            ]
            torch.testing.assert_close(weights[head, row], torch.tensor(scores).softmax(0), atol=1e-5, rtol=1e-5)
    mixed = eager(torch.stack((q, k, v), dim=1), batch, AttentionWindow(), bias=bias)
    torch.testing.assert_close(mixed, torch.einsum("hqs,shk->qhk", weights, v))


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize(
    "window", [AttentionWindow(), AttentionWindow(2), AttentionWindow(None, True), AttentionWindow(3, True)]
)
def test_gradients_equal_too(name, window, bias):
    lengths = (5, 5, 1, 9)
    results = []
    for kernel in (eager, KERNELS[name]):
        tensors = [tensor.requires_grad_() for tensor in qkv(20)]
        kernel(torch.stack(tensors, dim=1), batch_of(lengths), window, bias=bias).pow(2).sum().backward()
        results.append([tensor.grad for tensor in tensors])
    for expected, got in zip(*results, strict=True):
        assert torch.isfinite(got).all()
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@given(st.integers(1, 20), windows)
def test_sight_is_what_its_words_say(length, window):
    mask = window.mask(length, torch.device("cpu"))
    for row in range(length):
        for column in range(length):
            near = window.radius is None or abs(row - column) <= window.radius
            before = not window.causal or column <= row
            assert (mask is None or bool(mask[row, column])) == (near and before)


def test_weights_are_a_distribution_and_zero_out_of_sight():
    q, k, _ = qkv(7)
    weights = attention_weights(q, k, AttentionWindow(1))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 7))
    assert (weights[:, 0, 2:] == 0).all()
    assert (weights[:, 0, :2] > 0).all()


def test_dropout_drops():
    q, k, v = qkv(30)
    torch.manual_seed(0)
    one, two = (
        attend(torch.stack((q, k, v), dim=1), batch_of((30,)), AttentionWindow(), dropout=0.5) for _ in range(2)
    )
    assert not torch.allclose(one, two)
