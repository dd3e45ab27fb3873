"""Facts about attention: the formula, its scale, its weights, its heads."""

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from bertkit.config import BertConfig, family_config, override
from bertkit.facts.bundled import bundled
from bertkit.facts.by_hand import HandHeads, gap, heads_by_hand, scores_by_hand, states_by_hand
from bertkit.facts.fact import Facts, Outcome, Vocabularies, at_most, equal, holds
from bertkit.inside.look.reading import read
from bertkit.inside.look.table import StepTable, step_table
from bertkit.model.attention import KERNELS, AttentionWindow, attend, attention_weights
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.model import new_model

facts = Facts()
SEES_ALL = AttentionWindow()


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


@facts("M3", "A9", "144 attention heads in base, 384 in large; each has a projection of its own, and no two agree")
def heads_counted(_: Vocabularies) -> Outcome:
    def count(config: BertConfig) -> int:
        with torch.device("meta"):  # shapes only: no 1.3 GB for large
            trace = Encoder(config).trace(Batch.pack([[1, 2, 3]]).to("meta"))
        return sum(layer.weights.shape[0] for layer in trace.layers)

    encoder, counts = base_encoder(), [count(family_config("bert", size)) for size in ("base", "large")]
    trace = encoder.trace(Batch.pack([list(range(5, 21))]))
    inputs = [trace.embeddings, *(layer.output for layer in trace.layers)]
    worst = max(
        gap(heads_by_hand(encoder, n, inputs[n]).weights, layer.weights) for n, layer in enumerate(trace.layers)
    )
    tables = torch.cat([layer.weights.flatten(1) for layer in trace.layers])
    nearest = torch.cdist(tables, tables, p=torch.inf).fill_diagonal_(torch.inf).min().item()
    measured = f"{counts[0]}, {counts[1]}; off by {worst:.0e}; the two most alike differ by {nearest:.4f}"
    ok = counts == [144, 384] and worst < 1e-5 and nearest > 1e-3
    return holds("144, 384; by hand to 1e-5; differ by over 0.001", measured, ok)


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


@facts("M7", "D583-589, A22-31", "what a head gives is a weighted average of the values, with weights that sum to 1")
def weighted_average(_: Vocabularies) -> Outcome:
    encoder = small_encoder()
    trace = encoder.trace(Batch.pack([list(range(5, 12))]))
    hand = heads_by_hand(encoder, 0, trace.embeddings)
    raw = scores_by_hand(hand.queries, hand.keys).exp()  # H L L: weights as they are before they are made to sum to 1
    values = hand.values.transpose(0, 1)
    average = (raw[..., None] * values[:, None]).sum(dim=2) / raw.sum(dim=2)[..., None]
    return at_most(1e-5, gap(trace.layers[0].mixed, average.transpose(0, 1).flatten(1)), "model - average by hand")


@facts("M8", "A31, A41, C101", "the toy: weights 0.2 0.7 0.1 and 0.1 0.8 0.1 over the values 10, 20, 30 give 19 and 20")
def toy(_: Vocabularies) -> Outcome:
    weights = torch.tensor([[0.2, 0.7, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
    queries, keys = math.sqrt(3) * weights.log(), torch.eye(3)  # q . k / sqrt(3) is the logarithm of the weight
    values = torch.tensor([10.0, 20.0, 30.0])[:, None].expand(3, 3)
    qkv = torch.stack((queries, keys, values), dim=1)[:, :, None]
    found = attend(qkv, Batch.pack([[1, 2, 3]]), SEES_ALL)[:2, 0, 0].tolist()
    return equal("19.0000 20.0000", f"{found[0]:.4f} {found[1]:.4f}")


def looked_at(word: str, layer: int, head: int) -> tuple[StepTable, HandHeads]:
    """`bertkit heads "Action gets results" --table` on the bundled model, and that layer's heads by hand."""
    encoder, reading = bundled().model.encoder, read(bundled(), "Action gets results")
    x = states_by_hand(encoder, reading.encoding.ids)[layer - 1]
    return step_table(reading, layer=layer, head=head, word=word), heads_by_hand(encoder, layer - 1, x)


@facts("M9", "E433-479", '`heads --table`, for "Action gets results": score, / sqrt(d), softmax, x value, sum')
def step_by_step(_: Vocabularies) -> Outcome:
    table, hand = looked_at("gets", layer=3, head=2)
    query, keys, values = hand.queries[table.place, 1], hand.keys[:, 1], hand.values[:, 1]
    scores = keys @ query
    shares = (scores / 8).exp() / (scores / 8).exp().sum()
    columns = {
        "score": (scores, [step.score for step in table.steps]),
        "scaled": (scores / 8, [step.scaled for step in table.steps]),
        "softmax": (shares, [step.weight for step in table.steps]),
        "x value": (shares[:, None] * values, [step.weighted for step in table.steps]),
        "sum": ((shares[:, None] * values).sum(dim=0), table.sum),
    }
    gaps = {name: gap(torch.tensor(shown), by_hand) for name, (by_hand, shown) in columns.items()}
    return at_most(1e-4, max(gaps.values()), f"{' '.join(table_tokens(table))}: table - by hand")


def table_tokens(table: StepTable) -> list[str]:
    """The tokens in the rows of a step table."""
    return [step.token for step in table.steps]


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


@facts("M11", "E402", "a score of `heads --table` is the cosine of query and key times both lengths")
def dot_product(_: Vocabularies) -> Outcome:
    table, hand = looked_at("gets", layer=3, head=2)
    query, keys = hand.queries[table.place, 1], hand.keys[:, 1]
    angles = [math.acos(float(query @ key / math.sqrt(query @ query) / math.sqrt(key @ key))) for key in keys]
    lengths = [math.sqrt(query @ query) * math.sqrt(key @ key) for key in keys]
    worst = max(
        abs(step.score - length * math.cos(angle))
        for step, length, angle in zip(table.steps, lengths, angles, strict=True)
    )
    shown = ", ".join(
        f"{step.token} {math.degrees(angle):.0f}°" for step, angle in zip(table.steps, angles, strict=True)
    )
    return holds("score = |q| |k| cos to 1e-4", f"off by {worst:.0e}; angles {shown}", worst < 1e-4)


@facts(
    "M16",
    "E181, D506",
    "every layer looks both ways: any word changes the vectors of all words; in a causal model, "
    "only of those from itself on",
)
def both_ways(_: Vocabularies) -> Outcome:
    length, seen = 6, {}
    encoders = {
        causal: new_model(override(small_encoder().config, f"causal={causal}")).eval().encoder
        for causal in (False, True)
    }

    def states(ids: list[int], causal: bool) -> Tensor:
        batch = Batch.pack([ids])
        return torch.stack([*encoders[causal].hidden_states(batch)[1:], encoders[causal](batch)])

    for causal in (False, True):
        for place in range(length):  # which words' vectors change, in every layer, when the word at `place` does?
            ids = list(range(5, 5 + length))
            other = [*ids[:place], 99, *ids[place + 1 :]]
            change = (states(ids, causal) - states(other, causal)).abs().amax(dim=2)
            seen[causal, place] = [
                (change[:, at] > 1e-3).all().item() - (change[:, at] == 0).all().item() for at in range(length)
            ]
    both = all(seen[False, place] == [1] * length for place in range(length))
    causal = all(seen[True, place] == [-1] * place + [1] * (length - place) for place in range(length))
    measured = f"all words, in every layer: {both}; in a causal model only later words: {causal}"
    return holds("both true", measured, both and causal)
