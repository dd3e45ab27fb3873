"""Facts about the model: sizes, layers, embeddings, positions."""

import time
from copy import deepcopy
from dataclasses import replace

import torch
import torch.nn.functional as F

from bertkit.config import BertConfig, family_config
from bertkit.errors import RequestError
from bertkit.facts.attention import base_encoder, random_tensor, small_encoder
from bertkit.facts.by_hand import Arithmetic, furthest, gap, layer_by_hand, sinusoids_by_hand
from bertkit.facts.fact import Facts, Outcome, Vocabularies, at_most, equal, holds
from bertkit.model.batch import Batch
from bertkit.model.embeddings import sinusoid
from bertkit.model.model import BertModel, new_model, parameter_count

facts = Facts()
PRETRAINING: dict[str, int | None] = {"masked_word": None, "next_sentence": None}


def table(module: torch.nn.Module, name: str) -> torch.Tensor:
    """One of a module's tensors by its name."""
    return module.get_parameter(name).data


def shape_only(config: BertConfig, heads: dict[str, int | None] | None = None, *, pooler: bool = True) -> BertModel:
    """A model without memory: enough to count."""
    with torch.device("meta"):
        return BertModel(config, heads or {}, pooler=pooler)


@facts("T15b", "B83, D462-466", "two segment vectors")
def two_segments(_: Vocabularies) -> Outcome:
    return equal(2, table(base_encoder(), "embeddings.segment.weight").shape[0])


@facts("T16", "D361-371", "512 learned position vectors, added before layer 1 only; a text of 513 tokens is refused")
def hard_limit(_: Vocabularies) -> Outcome:
    encoder, ids = base_encoder(), list(range(5, 13))
    try:
        encoder(Batch.pack([[1] * 513]))
        refused = False
    except RequestError:
        refused = True
    tables = [name for name, p in encoder.named_parameters() if p.shape[0] == 512]
    once, everywhere = (
        furthest(small_encoder(), ids, how=Arithmetic(positions_everywhere=each)) for each in (False, True)
    )
    measured = (
        f"{', '.join(tables)}; refused: {refused}; by hand {once:.0e}, or {everywhere:.2f} with positions everywhere"
    )
    ok = tables == ["embeddings.position.weight"] and refused and once < 1e-4 < 0.1 < everywhere
    return holds("one table of 512, refused, by hand to 1e-4", measured, ok)


@facts("T17", "E233-303", "sinusoids: sin, cos of pos / 10000^(2i/d), in [-1, 1]")
def sinusoids(_: Vocabularies) -> Outcome:
    rows = sinusoid(torch.arange(50), 64)
    off, largest = gap(rows, sinusoids_by_hand(50, 64)), rows.abs().max().item()
    return holds("formula to 1e-6, |x| ≤ 1", f"{off:.0e}, {largest:.3f}", off < 1e-6 and largest <= 1)


@facts("T17b", "E233-303", "PE(pos + k) is a rotation of PE(pos), the same for all pos, for k = 1, 5, 17")
def sinusoids_rotate(_: Vocabularies) -> Outcome:
    width, worst = 32, 0.0
    rows = sinusoid(torch.arange(60), width).double()
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    for k in (1, 5, 17):
        cos, sin = (k * rates).cos(), (k * rates).sin()
        turned = torch.stack((rows[:, 0::2] * cos + rows[:, 1::2] * sin, rows[:, 1::2] * cos - rows[:, 0::2] * sin), -1)
        worst = max(worst, (turned.flatten(1)[:40] - rows[k : k + 40]).abs().max().item())
    return at_most(1e-5, worst, "difference")


@facts("T17c", "E233-303", "position='sinusoidal' is a setting: nothing is learned, and order still matters")
def sinusoids_selectable(_: Vocabularies) -> Outcome:
    config = family_config("bert", "tiny", vocab_size=50, init_std=0.5)
    encoder = new_model(replace(config, parts=replace(config.parts, position="sinusoidal"))).encoder.eval()
    learned = sum("position" in name for name, _ in encoder.named_parameters())
    by_hand = furthest(encoder, [1, 2, 3])
    order = gap(encoder(Batch.pack([[1, 2, 3]]))[0], encoder(Batch.pack([[1, 3, 2]]))[0])  # of the first word's vector
    measured = (
        f"{learned} learned; by hand {by_hand:.0e}; two words swapped change the first one's vector by {order:.2f}"
    )
    return holds("0 learned, by hand to 1e-4, over 0.1", measured, learned == 0 and by_hand < 1e-4 and order > 0.1)


@facts("T18", "D462, B82-84", "token + segment + position, summed, then normalized")
def embeddings_sum(_: Vocabularies) -> Outcome:
    tables = small_encoder().embeddings
    batch = Batch.pack([[7, 8, 9]], [[0, 1, 1]])
    seen: list[torch.Tensor] = []
    hook = tables.norm.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    tables(batch)
    hook.remove()
    word, segment, position = (table(tables, f"{name}.weight") for name in ("word", "segment", "position"))
    expected = word[[7, 8, 9]] + segment[[0, 1, 1]] + position[[0, 1, 2]]
    return at_most(1e-6, (seen[0] - expected).abs().max().item(), "difference")


@facts("T19", "D353, E267", "without positions attention is order-blind: permuted input, permuted output")
def order_blind(_: Vocabularies) -> Outcome:
    encoder = new_model(family_config("bert", "tiny", vocab_size=50, init_std=0.2)).encoder.eval()
    ids, order = [11, 12, 13, 14, 15], [3, 0, 4, 1, 2]
    shuffled = [ids[i] for i in order]

    def gap() -> float:
        return float((encoder(Batch.pack([ids]))[order] - encoder(Batch.pack([shuffled]))).abs().max())

    with torch.no_grad():
        with_positions = gap()
        table(encoder, "embeddings.position.weight").zero_()
        without = gap()
    measured = f"{without:.0e} without, {with_positions:.2f} with"
    return holds("≤ 1e-5 without, more with", measured, without <= 1e-5 < with_positions)


@facts("T20", "D433-440, E232", "padded and unpadded runs agree, the padding share is known")
def padded_equals_packed(_: Vocabularies) -> Outcome:
    encoder = small_encoder()
    texts = [[5] * 3, [6] * 9, [7, 8]]
    together = Batch.pack(texts)
    alone = torch.cat([encoder(Batch.pack([text])) for text in texts])
    gap = (encoder(together) - alone).abs().max().item()
    return holds(
        "≤ 1e-5, 48% padding",
        f"{gap:.0e}, {together.padding:.0%} padding",
        gap <= 1e-5 and f"{together.padding:.0%}" == "48%",
    )


@facts("T20b", "D433-440", "shorter is faster: texts per second at 128 tokens against 512")
def shorter_is_faster(_: Vocabularies) -> Outcome:
    encoder = small_encoder()

    def seconds(length: int) -> float:
        batch = Batch.pack([[9] * length] * 4)
        with torch.inference_mode():
            start = time.perf_counter()
            encoder(batch)
        return time.perf_counter() - start

    times = [(seconds(512), seconds(128)) for _ in range(12)]  # the best of each: a busy machine only adds
    ratio = min(long for long, _ in times) / min(short for _, short in times)
    return holds("over 1x", f"{ratio:.1f}x", ratio > 1)


@facts("T21", "D273-279", "768 numbers in and out for every token, at every layer")
def same_width(_: Vocabularies) -> Outcome:
    with torch.inference_mode():
        shapes = {tuple(state.shape) for state in base_encoder().hidden_states(Batch.pack([[1, 2, 3, 4, 5]]))}
    return equal({(5, 768)}, shapes)


@facts("M1", "A9, C28-31, E316-321, D324", "12 (24) layers of 12 (16) heads; no sharing, but in ALBERT")
def layers_counted(_: Vocabularies) -> Outcome:
    def describe(family: str, size: str) -> tuple[int, int, int]:
        encoder = shape_only(family_config(family, size)).encoder
        return len(encoder.stack), encoder.config.heads, len({id(layer) for layer in encoder.stack})

    found = [describe("bert", "base"), describe("bert", "large"), describe("albert", "base")]
    return equal([(12, 12, 12), (24, 16, 24), (12, 12, 1)], found)


COUNTS = {
    "tiny": 4_385_920,
    "mini": 11_170_560,
    "small": 28_763_648,
    "medium": 41_373_184,
    "base": 109_482_240,
    "large": 335_141_888,
}


@facts("M2", "A9, C30", "parameters with pooler: tiny, mini, small, medium, base, large")
def parameters(_: Vocabularies) -> Outcome:
    return equal(list(COUNTS.values()), [parameter_count(shape_only(family_config("bert", size))) for size in COUNTS])


@facts("M2b", "A9, C30", "parameters with the tied pre-training heads: base, large")
def parameters_with_heads(_: Vocabularies) -> Outcome:
    counts = [parameter_count(shape_only(family_config("bert", size), PRETRAINING)) for size in ("base", "large")]
    return equal([110_106_428, 336_226_108], counts)


@facts("M12", "D660-676, E606-620", "feed-forward 768 -> 3072 -> 768 with GELU; the same as two 1x1 convolutions")
def feed_forward_is_convolution(_: Vocabularies) -> Outcome:
    block = base_encoder().stack[0].feed_forward
    up, down = block.up, block.down
    x = random_tensor(6, 768)
    inner = F.gelu(F.conv1d(x.T[None], up.weight[:, :, None], up.bias))
    convolved = F.conv1d(inner, down.weight[:, :, None], down.bias)[0].T
    gap = (block(x) - convolved).abs().max().item()
    shape = (up.in_features, up.out_features, down.out_features)
    return holds("(768, 3072, 768), ≤ 1e-5", f"{shape}, {gap:.0e}", shape == (768, 3072, 768) and gap <= 1e-5)


@facts("M12b", "E606-620", "the Transformer's ReLU and d_ff 2048 at width 512 are settings")
def relu_selectable(_: Vocabularies) -> Outcome:
    config = family_config("bert", "small", vocab_size=50, depth=1)
    block = new_model(replace(config, parts=replace(config.parts, activation="relu"))).encoder.stack[0].feed_forward
    x = random_tensor(4, 512)
    by_hand = block.down(block.up(x).clamp(min=0))
    gap = (block(x) - by_hand).abs().max().item()
    return holds("2048, ≤ 1e-6", f"{block.up.out_features}, {gap:.0e}", block.up.out_features == 2048 and gap <= 1e-6)


@facts("M13", "D678-689", "Q, K, V hold 27.27 % of a layer's matrices without W_O; with it attention holds 33.3 %")
def parameter_split(_: Vocabularies) -> Outcome:
    layer = base_encoder().stack[0]
    qkv, out = layer.attention.qkv.weight.numel(), layer.attention.out.weight.numel()
    feed = layer.feed_forward.up.weight.numel() + layer.feed_forward.down.weight.numel()
    shares = f"{qkv / (qkv + feed):.2%}, {(qkv + out) / (qkv + out + feed):.1%}"
    return equal((1_769_472, 589_824, 4_718_592, "27.27%, 33.3%"), (qkv, out, feed, shares))


@facts(
    "M14",
    "E576-604, B149-151, D750",
    "LayerNorm(x + Dropout(...)) after attention, which ends in the output projection W_O, and after feed-forward",
)
def post_norm(_: Vocabularies) -> Outcome:
    encoder, x, batch = small_encoder(), 3 * random_tensor(5, 128) + 1, Batch.pack([[1, 2, 3, 4, 5]])
    found = encoder.stack[0](x, batch)
    by_hand = gap(found, layer_by_hand(encoder, 0, x))
    without = gap(found, layer_by_hand(encoder, 0, x, Arithmetic(output_projection=False)))
    mean, var = found.mean(dim=1).abs().max().item(), found.var(dim=1, unbiased=False)
    measured = f"by hand {by_hand:.0e}, or {without:.2f} without W_O; mean {mean:.0e}, variance {var.min():.4f}"
    ok = by_hand < 1e-4 < 0.1 < without and mean < 1e-5 and (var - 1).abs().max().item() < 1e-3
    return holds("by hand to 1e-4; mean 0, variance 1", measured, ok)


@facts(
    "M14b", "B149-151, D750", "dropout: in training a tenth of what each half of a layer adds is set to 0, else nothing"
)
def dropped(_: Vocabularies) -> Outcome:
    layer, batch = deepcopy(small_encoder().stack[0]), Batch.pack([[1] * 100])
    for last in (layer.attention.out, layer.feed_forward.down):  # both halves now add exactly 1 everywhere
        last.weight.zero_()
        last.bias.fill_(1)
    shares = {}
    for name in ("training", "use"):
        layer.train(name == "training")
        shares[name] = [_zeros(layer, norm, batch) for norm in ("attention_norm", "feed_forward_norm")]
    measured = "; ".join(f"in {name} {', '.join(f'{share:.1%}' for share in found)}" for name, found in shares.items())
    ok = all(abs(share - 0.1) < 0.01 for share in shares["training"]) and shares["use"] == [0, 0]
    return holds("10 ± 1 % twice, 0 % twice", measured, ok)


def _zeros(layer: torch.nn.Module, norm: str, batch: Batch) -> float:
    """The share of zeros in what was added to the input before this norm; what is not zero is 1 over the share left."""
    found: list[torch.Tensor] = []
    hooks = [
        layer.get_submodule(name).register_forward_pre_hook(lambda _, given: found.append(given[0].clone()))
        for name in ("attention_norm", "feed_forward_norm")
    ]
    hooks.append(layer.get_submodule("attention_norm").register_forward_hook(lambda *given: found.append(given[2])))
    x = random_tensor(len(batch.ids), 128)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer(x, batch)
    for hook in hooks:
        hook.remove()
    first, middle, second = found
    added = first - x if norm == "attention_norm" else second - middle
    return (added.abs() < 0.5).float().mean().item()


@facts("M15", "E319", "each layer takes the output of the one before, of the same shape")
def blocks_chain(_: Vocabularies) -> Outcome:
    encoder, ids = small_encoder(depth=5), [5, 6, 7]
    states = encoder.hidden_states(Batch.pack([ids]))
    shapes = {tuple(state.shape) for state in states}
    chained = max(gap(layer_by_hand(encoder, n, state), states[n + 1]) for n, state in enumerate(states[:-1]))
    measured = f"{len(states) - 1} layers, {shapes}, each from the one before to {chained:.0e}"
    return holds(
        "5 layers, {(3, 128)}, to 1e-4", measured, len(states) == 6 and shapes == {(3, 128)} and chained < 1e-4
    )


@facts("M22", "B58-60, D826-828", "the masked-word head ends in the embedding matrix itself, plus a bias")
def tied_head(_: Vocabularies) -> Outcome:
    model = new_model(family_config("bert", "tiny", vocab_size=50), {"masked_word": None})
    head = model.heads["masked_word"]
    same = head.decoder.weight.data_ptr() == model.encoder.embeddings.word.weight.data_ptr()  # type: ignore[union-attr, operator]
    parts = sorted(name for name, _ in head.named_parameters())
    wanted = ["decoder.bias", "decoder.weight", "dense.bias", "dense.weight", "norm.bias", "norm.weight"]
    return equal((True, wanted), (same, parts))
