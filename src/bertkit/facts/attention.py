"""Facts about attention: the formula, its scale, its weights, its heads (SPEC 1.2)."""

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from bertkit.config import BertConfig, family_config, override
from bertkit.facts.fact import Facts, Outcome, Vocabularies, at_most, close, equal, holds
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.kernels import KERNELS, Sight, attention_weights
from bertkit.model.weights import new_model

facts = Facts()
SEES_ALL = Sight()


@cache
def base_encoder() -> Encoder:
    """BERT-base with random weights: these facts are about shape and arithmetic, not about learning."""
    return new_model(family_config("bert", "base")).eval().encoder


@cache
def small_encoder(**settings: object) -> Encoder:
    """A two-layer encoder for facts that hold at any size, with weights large enough to matter."""
    return new_model(family_config("bert", "tiny", vocab_size=200, init_std=0.2, **settings)).eval().encoder


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    """Reproducible normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def numpy_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """softmax(q k^T / sqrt(K)) v of one sequence and head, in float64, from the formula alone."""
    scores = q @ k.T / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed: np.ndarray = (weights / weights.sum(axis=-1, keepdims=True)) @ v
    return mixed


def attend(weights: Tensor, values: Tensor) -> Tensor:
    """The toy of the source documents: each row of weights mixes the values."""
    return weights @ values


@facts("M3", "A9", "144 distinct attention heads in base, 384 in large")
def heads_counted(_: Vocabularies) -> Outcome:
    def count(config: BertConfig) -> int:
        with torch.device("meta"):  # shapes only: no 1.3 GB for large
            trace = Encoder(config).trace(Batch.pack([[1, 2, 3]]).to("meta"))
        return sum(layer.weights.shape[0] for layer in trace.layers)

    return equal((144, 384), (count(family_config("bert", "base")), count(family_config("bert", "large"))))


@facts("M4", "E494, A49-56", "Attention(Q,K,V) = softmax(QK^T / sqrt(d_k)) V, in every kernel")
def formula(_: Vocabularies) -> Outcome:
    lengths = (5, 1, 7, 7)
    batch = Batch(torch.zeros(20, dtype=torch.long), torch.zeros(20, dtype=torch.long), lengths)
    q, k, v = (random_tensor(20, 3, 16, seed=s) for s in range(3))
    expected = np.concatenate(
        [
            np.stack([numpy_attention(*(x[:, h].double().numpy() for x in part)) for h in range(3)], axis=1)
            for part in zip(*map(batch.split, (q, k, v)), strict=True)
        ]
    )
    names = [name for name in KERNELS if name not in ("varlen", "fused")]  # those need a GPU
    gaps = [np.abs(KERNELS[name](q, k, v, batch, SEES_ALL).numpy() - expected).max() for name in names]
    return at_most(1e-5, float(max(gaps)), f"|numpy - {', '.join(names)}|")


@facts("M5", "B130, D760, E377, E442", "scores are divided by 8 = sqrt(64): 112, 96 become 14, 12, then 0.8808, 0.1192")
def scale(_: Vocabularies) -> Outcome:
    query = torch.ones(2, 1, 64)
    keys = torch.stack([torch.full((1, 64), 112 / 64), torch.full((1, 64), 96 / 64)])
    found = attention_weights(query, keys, SEES_ALL)[0, 0]
    return equal("0.8808 0.1192", f"{found[0]:.4f} {found[1]:.4f}")


@facts("M6", "D566-570", "weights lie in (0, 1), sum to 1, the own word included, none is zero")
def weights_are_a_distribution(_: Vocabularies) -> Outcome:
    trace = small_encoder().trace(Batch.pack([list(range(5, 25))]))
    weights = torch.stack([layer.weights for layer in trace.layers])
    gap = (weights.sum(dim=-1) - 1).abs().max().item()
    own = weights.diagonal(dim1=-2, dim2=-1).min().item()
    measured = f"row sums off by {gap:.0e}, least {weights.min():.1e}, least own {own:.1e}"
    return holds("row sums 1 ± 1e-6, all > 0", measured, gap < 1e-6 and weights.min().item() > 0)


@facts("M6b", "D566-570", "a padded position gets weight exactly 0: a text's vectors do not change beside a longer one")
def padding_is_unseen(_: Vocabularies) -> Outcome:
    q, k, v = (random_tensor(12, 2, 8, seed=s) for s in range(3))
    alone = Batch(torch.zeros(4, dtype=torch.long), torch.zeros(4, dtype=torch.long), (4,))
    beside = Batch(torch.zeros(12, dtype=torch.long), torch.zeros(12, dtype=torch.long), (4, 8))
    one = KERNELS["padded"](q[:4], k[:4], v[:4], alone, SEES_ALL)
    two = KERNELS["padded"](q, k, v, beside, SEES_ALL)[:4]
    return at_most(1e-6, (one - two).abs().max().item(), "difference")


@facts("M7", "D583-589, A22-31", "a weighted average: normalized weights drop the denominator")
def weighted_average(_: Vocabularies) -> Outcome:
    raw, values = random_tensor(5).exp(), random_tensor(5, 8, seed=1)
    with_denominator = (raw[:, None] * values).sum(dim=0) / raw.sum()
    gap = (attend(raw / raw.sum(), values) - with_denominator).abs().max().item()
    return at_most(1e-6, gap, "difference")


@facts("M8", "A31, A41, C101", "the toy: weights 0.2 0.7 0.1 and 0.1 0.8 0.1 mix three values")
def toy(_: Vocabularies) -> Outcome:
    mixed = attend(torch.tensor([[0.2, 0.7, 0.1], [0.1, 0.8, 0.1]]), torch.tensor([[10.0], [20.0], [30.0]]))
    by_hand = [0.2 * 10 + 0.7 * 20 + 0.1 * 30, 0.1 * 10 + 0.8 * 20 + 0.1 * 30]
    return at_most(1e-5, max(abs(a - b) for a, b in zip(mixed[:, 0].tolist(), by_hand, strict=True)), "difference")


@facts("M9", "E433-479", "the step table: score, / sqrt(d), softmax, x V, sum, is what a head gives")
def step_table(_: Vocabularies) -> Outcome:
    encoder = small_encoder()
    layer = encoder.trace(Batch.pack([[5, 6, 7]])).layers[0]
    scores = layer.queries[:, 0] @ layer.keys[:, 0].T
    divided = scores / math.sqrt(encoder.config.head_width)
    shares = divided.exp() / divided.exp().sum(dim=-1, keepdim=True)
    summed = torch.stack([(shares[i, :, None] * layer.values[:, 0]).sum(dim=0) for i in range(3)])
    gap = (summed - layer.mixed[:, : encoder.config.head_width]).abs().max().item()
    return at_most(1e-5, gap, "table - head 0")


@facts("M10", "D636-740, E347-360, E542-564", "heads of 64, side by side; head h of the joined matrix is its slice")
def heads_are_slices(_: Vocabularies) -> Outcome:
    attention = base_encoder().stack[0].attention
    x, batch = random_tensor(4, 768), Batch.pack([[1, 2, 3, 4]])
    q, _k, _v = attention.project(x, batch)
    head = 7
    rows = slice(head * 64, (head + 1) * 64)
    sliced = x @ attention.qkv.weight[rows].T + attention.qkv.bias[rows]
    same = torch.allclose(q[:, head], sliced, atol=1e-5)
    return equal(((4, 12, 64), (768, 768), True), (tuple(q.shape), tuple(attention.out.weight.shape), same))


@facts("M11", "E402", "a dot product is the cosine times both lengths")
def dot_product(_: Vocabularies) -> Outcome:
    a, b = random_tensor(64), random_tensor(64, seed=1)
    cosine = torch.nn.functional.cosine_similarity(a, b, dim=0)
    return close(float(a @ b), float(cosine * a.norm() * b.norm()), 1e-4)


@facts(
    "M16",
    "E181, D506",
    "every layer looks both ways: a later word changes an earlier vector; not so if causal",
)
def both_ways(_: Vocabularies) -> Outcome:
    def first_vector(last: int, causal: bool) -> Tensor:
        model = new_model(override(small_encoder().config, f"causal={causal}")).eval()
        out: Tensor = model(Batch.pack([[5, 6, 7, last]]))
        return out[0]

    both = (first_vector(8, False) - first_vector(9, False)).abs().max().item()
    causal = (first_vector(8, True) - first_vector(9, True)).abs().max().item()
    return holds("changes, 0 when causal", f"{both:.3f}, {causal:.1g} when causal", both > 1e-3 and causal == 0)
