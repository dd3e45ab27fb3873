"""Facts about attention: the formula, its scale, its weights, its heads."""

import math

import numpy as np
import torch
from torch import Tensor

from bertkit.config import BertConfig, family_config, override
from bertkit.facts.by_hand import HandHeads, gap, heads_by_hand, scores_by_hand, states_by_hand
from bertkit.facts.fact import Facts, Outcome, at_most, equal, holds
from bertkit.facts.setup import base_encoder, bundled, random_tensor, small_encoder
from bertkit.inside.look.reading import read
from bertkit.inside.look.table import StepTable, step_table
from bertkit.model.attention import KERNELS, AttentionWindow, attend, attention_weights
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.model import new_model

facts = Facts()
NO_WINDOW = AttentionWindow()  # every token attends to all tokens


def numpy_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """softmax(q k^T / sqrt(K)) v of one sequence and head, by the formula, in float64."""
    scores = q @ k.T / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed: np.ndarray = (weights / weights.sum(axis=-1, keepdims=True)) @ v
    return mixed


@facts("M3", "A9", "144 attention heads in base, 384 in large; each has its own projection, and no two are equal")
def heads_counted() -> Outcome:
    def count(config: BertConfig) -> int:
        with torch.device("meta"):  # shapes only, without 1.3 GB for large
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
    measured = f"{counts[0]}, {counts[1]}; off by {worst:.0e}; the most similar two differ by {nearest:.4f}"
    ok = counts == [144, 384] and worst < 1e-5 and nearest > 1e-3
    return holds("144, 384; by hand to 1e-5; differ by over 0.001", measured, ok)


@facts("M4", "E494, A49-56", "Attention(Q,K,V) = softmax(QK^T / sqrt(d_k)) V, in every kernel")
def formula() -> Outcome:
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
    gaps = [
        np.abs(KERNELS[name](torch.stack((q, k, v), dim=1), batch, NO_WINDOW).numpy() - expected).max()
        for name in names
    ]
    return at_most(1e-5, float(max(gaps)), f"|numpy - {', '.join(names)}|")


@facts("M5", "B130, D760, E377, E442", "scores are divided by 8 = sqrt(64): 112, 96 become 14, 12, then 0.8808, 0.1192")
def scale() -> Outcome:
    query = torch.ones(2, 1, 64)
    keys = torch.stack([torch.full((1, 64), 112 / 64), torch.full((1, 64), 96 / 64)])
    weights = attention_weights(query, keys, NO_WINDOW)[0, 0]
    return equal("0.8808 0.1192", f"{weights[0]:.4f} {weights[1]:.4f}")


@facts("M6", "D566-570", "weights are in (0, 1) and sum to 1; none is zero, also not that of the word itself")
def weights_are_a_distribution() -> Outcome:
    trace = small_encoder().trace(Batch.pack([list(range(5, 25))]))
    weights = torch.stack([layer.weights for layer in trace.layers])
    off = (weights.sum(dim=-1) - 1).abs().max().item()
    itself = weights.diagonal(dim1=-2, dim2=-1).min().item()
    measured = f"row sums off by {off:.0e}, smallest {weights.min():.1e}, smallest of the word itself {itself:.1e}"
    return holds("row sums 1 ± 1e-6, all > 0", measured, off < 1e-6 and weights.min().item() > 0)


@facts("M6b", "D566-570", "padding gets weight exactly 0: a longer text in the batch does not change a vector")
def padding_is_ignored() -> Outcome:
    qkv = random_tensor(12, 3, 2, 8, seed=0)
    alone = Batch(torch.zeros(4, dtype=torch.long), torch.zeros(4, dtype=torch.long), (4,))
    padded = Batch(torch.zeros(12, dtype=torch.long), torch.zeros(12, dtype=torch.long), (4, 8))
    one = KERNELS["padded"](qkv[:4], alone, NO_WINDOW)
    two = KERNELS["padded"](qkv, padded, NO_WINDOW)[:4]
    return at_most(1e-6, gap(one, two), "difference")


@facts("M7", "D583-589, A22-31", "the output of a head is a weighted average of the values, with weights that sum to 1")
def weighted_average() -> Outcome:
    encoder = small_encoder()
    trace = encoder.trace(Batch.pack([list(range(5, 12))]))
    hand = heads_by_hand(encoder, 0, trace.embeddings)
    raw = scores_by_hand(hand.queries, hand.keys).exp()  # H L L: the weights before normalization
    values = hand.values.transpose(0, 1)
    average = (raw[..., None] * values[:, None]).sum(dim=2) / raw.sum(dim=2)[..., None]
    return at_most(1e-5, gap(trace.layers[0].mixed, average.transpose(0, 1).flatten(1)), "model - average by hand")


@facts("M8", "A31, A41, C101", "toy example: weights 0.2 0.7 0.1 and 0.1 0.8 0.1 over 10, 20, 30 give 19 and 20")
def toy() -> Outcome:
    weights = torch.tensor([[0.2, 0.7, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
    queries, keys = math.sqrt(3) * weights.log(), torch.eye(3)  # q . k / sqrt(3) is the logarithm of the weight
    values = torch.tensor([10.0, 20.0, 30.0])[:, None].expand(3, 3)
    qkv = torch.stack((queries, keys, values), dim=1)[:, :, None]
    outputs = attend(qkv, Batch.pack([[1, 2, 3]]), NO_WINDOW)[:2, 0, 0].tolist()
    return equal("19.0000 20.0000", f"{outputs[0]:.4f} {outputs[1]:.4f}")


def table_and_heads(word: str, layer: int, head: int) -> tuple[StepTable, HandHeads]:
    """`bertkit heads "Action gets results" --table` on the bundled model, and that layer's heads by hand."""
    encoder, reading = bundled().model.encoder, read(bundled(), "Action gets results")
    x = states_by_hand(encoder, reading.encoding.ids)[layer - 1]
    return step_table(reading, layer=layer, head=head, word=word), heads_by_hand(encoder, layer - 1, x)


@facts("M9", "E433-479", '`heads --table`, for "Action gets results": score, / sqrt(d), softmax, x value, sum')
def step_by_step() -> Outcome:
    table, hand = table_and_heads("gets", layer=3, head=2)
    query, keys, values = hand.queries[table.place, 1], hand.keys[:, 1], hand.values[:, 1]
    scores = keys @ query
    weights = (scores / 8).exp() / (scores / 8).exp().sum()
    columns = {
        "score": (scores, [step.score for step in table.steps]),
        "scaled": (scores / 8, [step.scaled for step in table.steps]),
        "softmax": (weights, [step.weight for step in table.steps]),
        "x value": (weights[:, None] * values, [step.weighted for step in table.steps]),
        "sum": ((weights[:, None] * values).sum(dim=0), table.sum),
    }
    gaps = {name: gap(torch.tensor(shown), by_hand) for name, (by_hand, shown) in columns.items()}
    tokens = " ".join(step.token for step in table.steps)
    return at_most(1e-4, max(gaps.values()), f"{tokens}: table - by hand")


@facts("M10", "D636-740, E347-360, E542-564", "heads have width 64; head h is a slice of the joined matrix")
def heads_are_slices() -> Outcome:
    attention = base_encoder().stack[0].attention
    x, batch = random_tensor(4, 768), Batch.pack([[1, 2, 3, 4]])
    q, _k, _v = attention.project(x, batch)
    head = 7
    rows = slice(head * 64, (head + 1) * 64)
    sliced = x @ attention.qkv.weight[rows].T + attention.qkv.bias[rows]
    same = torch.allclose(q[:, head], sliced, atol=1e-5)
    return equal(((4, 12, 64), (768, 768), True), (tuple(q.shape), tuple(attention.out.weight.shape), same))


@facts("M11", "E402", "a score of `heads --table` is the cosine of query and key times both lengths")
def dot_product() -> Outcome:
    table, hand = table_and_heads("gets", layer=3, head=2)
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
    "every layer is bidirectional: any word changes all vectors; in a causal model, only later ones",
)
def both_ways() -> Outcome:
    length, changed = 6, {}
    encoders = {
        causal: new_model(override(small_encoder().config, f"causal={causal}")).eval().encoder
        for causal in (False, True)
    }

    def states(ids: list[int], causal: bool) -> Tensor:
        batch = Batch.pack([ids])
        return torch.stack([*encoders[causal].hidden_states(batch)[1:], encoders[causal](batch)])

    for causal in (False, True):
        for word in range(length):  # 1: a vector changes in every layer with this word, -1: in none
            ids = list(range(5, 5 + length))
            other = [*ids[:word], 99, *ids[word + 1 :]]
            change = (states(ids, causal) - states(other, causal)).abs().amax(dim=2)
            signs = (change > 1e-3).all(dim=0).int() - (change == 0).all(dim=0).int()
            changed[causal, word] = signs.tolist()
    both = all(changed[False, word] == [1] * length for word in range(length))
    causal = all(changed[True, word] == [-1] * word + [1] * (length - word) for word in range(length))
    measured = f"all words, in every layer: {both}; in a causal model only later words: {causal}"
    return holds("both true", measured, both and causal)
