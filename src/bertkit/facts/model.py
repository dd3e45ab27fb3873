"""Facts about the model: sizes, layers, embeddings, positions."""

import time
from copy import deepcopy
from dataclasses import replace

import torch
import torch.nn.functional as F

from bertkit.config import family_config
from bertkit.facts.by_hand import Arithmetic, gap, largest_gap, layer_by_hand, sinusoids_by_hand
from bertkit.facts.fact import Facts, Outcome, at_most, equal, holds
from bertkit.facts.setup import base_encoder, is_refused, random_tensor, shape_only, small_encoder
from bertkit.model.batch import Batch
from bertkit.model.embeddings import sinusoid
from bertkit.model.model import new_model, parameter_count

facts = Facts()
PRETRAINING_HEADS: dict[str, int | None] = {"masked_word": None, "next_sentence": None}


@facts("T15b", "B83, D462-466", "two segment vectors")
def two_segments() -> Outcome:
    return equal(2, base_encoder().get_parameter("embeddings.segment.weight").shape[0])


@facts("T16", "D361-371", "512 learned position vectors, added before layer 1 only; a text of 513 tokens is refused")
def hard_limit() -> Outcome:
    encoder, ids = base_encoder(), list(range(5, 13))
    refused = is_refused(lambda: encoder(Batch.pack([[1] * 513])))
    tables = [name for name, p in encoder.named_parameters() if p.shape[0] == 512]
    variants = (Arithmetic(), Arithmetic(positions_everywhere=True))
    once, everywhere = (largest_gap(small_encoder(), ids, variant=variant) for variant in variants)
    measured = (
        f"{', '.join(tables)}; refused: {refused}; by hand {once:.0e}, with positions everywhere {everywhere:.2f}"
    )
    ok = tables == ["embeddings.position.weight"] and refused and once < 1e-4 < 0.1 < everywhere
    return holds("one table of 512, refused, by hand to 1e-4", measured, ok)


@facts("T17", "E233-303", "sinusoids: sin, cos of pos / 10000^(2i/d), in [-1, 1]")
def sinusoids() -> Outcome:
    rows = sinusoid(torch.arange(50), 64)
    off, largest = gap(rows, sinusoids_by_hand(50, 64)), rows.abs().max().item()
    return holds("formula to 1e-6, |x| ≤ 1", f"{off:.0e}, {largest:.3f}", off < 1e-6 and largest <= 1)


@facts("T17b", "E233-303", "PE(pos + k) is a rotation of PE(pos), the same for all pos, for k = 1, 5, 17")
def sinusoids_rotate() -> Outcome:
    width, worst = 32, 0.0
    rows = sinusoid(torch.arange(60), width).double()
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    for k in (1, 5, 17):
        cos, sin = (k * rates).cos(), (k * rates).sin()
        even, odd = rows[:, 0::2], rows[:, 1::2]
        rotated = torch.stack((even * cos + odd * sin, odd * cos - even * sin), -1)
        worst = max(worst, gap(rotated.flatten(1)[:40], rows[k : k + 40]))
    return at_most(1e-5, worst, "difference")


@facts("T17c", "E233-303", "position=sinusoidal is a setting: no position vector is trained, and order still matters")
def sinusoids_selectable() -> Outcome:
    config = family_config("bert", "tiny", vocab_size=50, init_std=0.5)
    encoder = new_model(replace(config, parts=replace(config.parts, position="sinusoidal"))).encoder.eval()
    trained = sum("position" in name for name, _ in encoder.named_parameters())
    by_hand = largest_gap(encoder, [1, 2, 3])
    order = gap(encoder(Batch.pack([[1, 2, 3]]))[0], encoder(Batch.pack([[1, 3, 2]]))[0])
    measured = f"{trained} trained; by hand {by_hand:.0e}; swapping two words changes the first vector by {order:.2f}"
    return holds("0 trained, by hand to 1e-4, over 0.1", measured, trained == 0 and by_hand < 1e-4 and order > 0.1)


@facts("T18", "D462, B82-84", "token + segment + position, summed, then normalized")
def embeddings_sum() -> Outcome:
    tables = small_encoder().embeddings
    batch = Batch.pack([[7, 8, 9]], [[0, 1, 1]])
    sums: list[torch.Tensor] = []
    hook = tables.norm.register_forward_pre_hook(lambda _module, inputs: sums.append(inputs[0]))
    tables(batch)
    hook.remove()
    word, segment, position = (tables.get_parameter(f"{name}.weight") for name in ("word", "segment", "position"))
    expected = word[[7, 8, 9]] + segment[[0, 1, 1]] + position[[0, 1, 2]]
    return at_most(1e-6, gap(sums[0], expected), "difference")


@facts("T19", "D353, E267", "without positions, attention ignores order: permuted input, permuted output")
def order_ignored() -> Outcome:
    encoder = new_model(family_config("bert", "tiny", vocab_size=50, init_std=0.2)).encoder.eval()
    ids, order = [11, 12, 13, 14, 15], [3, 0, 4, 1, 2]
    shuffled = [ids[i] for i in order]

    def change() -> float:
        return gap(encoder(Batch.pack([ids]))[order], encoder(Batch.pack([shuffled])))

    with_positions = change()
    encoder.get_parameter("embeddings.position.weight").zero_()
    without = change()
    measured = f"{without:.0e} without, {with_positions:.2f} with"
    return holds("≤ 1e-5 without, more with", measured, without <= 1e-5 < with_positions)


@facts("T20", "D433-440, E232", "padded and unpadded batches give equal vectors, and the share of padding is known")
def padded_equals_packed() -> Outcome:
    encoder = small_encoder()
    texts = [[5] * 3, [6] * 9, [7, 8]]
    together = Batch.pack(texts)
    alone = torch.cat([encoder(Batch.pack([text])) for text in texts])
    off, padding = gap(encoder(together), alone), f"{together.padding:.0%}"
    return holds("≤ 1e-5, 48% padding", f"{off:.0e}, {padding} padding", off <= 1e-5 and padding == "48%")


@facts("T20b", "D433-440", "shorter is faster: texts per second at 128 tokens against 512")
def shorter_is_faster() -> Outcome:
    encoder = small_encoder()

    def seconds(length: int) -> float:
        batch = Batch.pack([[9] * length] * 16)
        with torch.inference_mode():
            start = time.perf_counter()
            encoder(batch)
        return time.perf_counter() - start

    times = [(seconds(512), seconds(128)) for _ in range(8)]  # the shortest counts, because other load only adds time
    ratio = min(long for long, _ in times) / min(short for _, short in times)
    return holds("over 1x", f"{ratio:.1f}x", ratio > 1)


@facts("T21", "D273-279", "768 numbers in and out for every token, at every layer")
def same_width() -> Outcome:
    with torch.inference_mode():
        shapes = {tuple(state.shape) for state in base_encoder().hidden_states(Batch.pack([[1, 2, 3, 4, 5]]))}
    return equal({(5, 768)}, shapes)


@facts("M1", "A9, C28-31, E316-321, D324", "12 (24) layers of 12 (16) heads; no shared layers, except in ALBERT")
def layers_counted() -> Outcome:
    def describe(family: str, size: str) -> tuple[int, int, int]:
        encoder = shape_only(family_config(family, size)).encoder
        return len(encoder.stack), encoder.config.heads, len({id(layer) for layer in encoder.stack})

    models = (("bert", "base"), ("bert", "large"), ("albert", "base"))
    return equal([(12, 12, 12), (24, 16, 24), (12, 12, 1)], [describe(*model) for model in models])


PARAMETER_COUNTS = {
    "tiny": 4_385_920,
    "mini": 11_170_560,
    "small": 28_763_648,
    "medium": 41_373_184,
    "base": 109_482_240,
    "large": 335_141_888,
}


@facts("M2", "A9, C30", "parameters with pooler: tiny, mini, small, medium, base, large")
def parameters() -> Outcome:
    counts = [parameter_count(shape_only(family_config("bert", size))) for size in PARAMETER_COUNTS]
    return equal(list(PARAMETER_COUNTS.values()), counts)


@facts("M2b", "A9, C30", "parameters with the tied pre-training heads: base, large")
def parameters_with_heads() -> Outcome:
    counts = [parameter_count(shape_only(family_config("bert", size), PRETRAINING_HEADS)) for size in ("base", "large")]
    return equal([110_106_428, 336_226_108], counts)


@facts("M12", "D660-676, E606-620", "feed-forward 768 -> 3072 -> 768 with GELU; the same as two 1x1 convolutions")
def feed_forward_is_convolution() -> Outcome:
    block = base_encoder().stack[0].feed_forward
    up, down = block.up, block.down
    x = random_tensor(6, 768)
    inner = F.gelu(F.conv1d(x.T[None], up.weight[:, :, None], up.bias))
    convolved = F.conv1d(inner, down.weight[:, :, None], down.bias)[0].T
    off, shape = gap(block(x), convolved), (up.in_features, up.out_features, down.out_features)
    return holds("(768, 3072, 768), ≤ 1e-5", f"{shape}, {off:.0e}", shape == (768, 3072, 768) and off <= 1e-5)


@facts("M12b", "E606-620", "the Transformer's ReLU and d_ff 2048 at width 512 are settings")
def relu_selectable() -> Outcome:
    config = family_config("bert", "small", vocab_size=50, depth=1)
    block = new_model(replace(config, parts=replace(config.parts, activation="relu"))).encoder.stack[0].feed_forward
    x = random_tensor(4, 512)
    off, width = gap(block(x), block.down(block.up(x).clamp(min=0))), block.up.out_features
    return holds("2048, ≤ 1e-6", f"{width}, {off:.0e}", width == 2048 and off <= 1e-6)


@facts("M13", "D678-689", "Q, K, V hold 27.27 % of a layer's matrices without W_O; with it attention holds 33.3 %")
def parameter_split() -> Outcome:
    layer = base_encoder().stack[0]
    qkv, out = layer.attention.qkv.weight.numel(), layer.attention.out.weight.numel()
    feed = layer.feed_forward.up.weight.numel() + layer.feed_forward.down.weight.numel()
    shares = f"{qkv / (qkv + feed):.2%}, {(qkv + out) / (qkv + out + feed):.1%}"
    return equal((1_769_472, 589_824, 4_718_592, "27.27%, 33.3%"), (qkv, out, feed, shares))


@facts(
    "M14", "E576-604, B149-151, D750", "LayerNorm(x + Dropout(...)) after attention with W_O, and after feed-forward"
)
def post_norm() -> Outcome:
    encoder, x, batch = small_encoder(), 3 * random_tensor(5, 128) + 1, Batch.pack([[1, 2, 3, 4, 5]])
    output = encoder.stack[0](x, batch)
    by_hand = gap(output, layer_by_hand(encoder, 0, x))
    without = gap(output, layer_by_hand(encoder, 0, x, Arithmetic(output_projection=False)))
    mean, var = output.mean(dim=1).abs().max().item(), output.var(dim=1, unbiased=False)
    measured = f"by hand {by_hand:.0e}, or {without:.2f} without W_O; mean {mean:.0e}, variance {var.min():.4f}"
    ok = by_hand < 1e-4 < 0.1 < without and mean < 1e-5 and (var - 1).abs().max().item() < 1e-3
    return holds("by hand to 1e-4; mean 0, variance 1", measured, ok)


@facts("M14b", "B149-151, D750", "dropout: in training, 10 % of the outputs of both halves of a layer are 0, else none")
def dropout() -> Outcome:
    layer, batch = deepcopy(small_encoder().stack[0]), Batch.pack([[1] * 100])
    for last in (layer.attention.out, layer.feed_forward.down):  # the output of both halves is now 1 everywhere
        last.weight.zero_()
        last.bias.fill_(1)
    shares = {}
    for name in ("training", "use"):
        layer.train(name == "training")
        shares[name] = _zero_shares(layer, batch)
    measured = "; ".join(f"in {name} {first:.1%}, {second:.1%}" for name, (first, second) in shares.items())
    ok = all(abs(share - 0.1) < 0.01 for share in shares["training"]) and shares["use"] == [0, 0]
    return holds("10 ± 1 % twice, 0 % twice", measured, ok)


def _zero_shares(layer: torch.nn.Module, batch: Batch) -> list[float]:
    """The shares of zeros in the outputs of attention and feed-forward, from the inputs of the norms."""
    seen: list[torch.Tensor] = []  # input of the first norm, its output, input of the second norm
    first, second = (layer.get_submodule(name) for name in ("attention_norm", "feed_forward_norm"))
    hooks = [
        norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone())) for norm in (first, second)
    ]
    hooks.append(first.register_forward_hook(lambda _, __, output: seen.append(output)))
    x = random_tensor(len(batch.ids), 128)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer(x, batch)
    for hook in hooks:
        hook.remove()
    return [(added.abs() < 0.5).float().mean().item() for added in (seen[0] - x, seen[2] - seen[1])]


@facts("M15", "E319", "the input of each layer is the output of the previous one, of the same shape")
def layers_chain() -> Outcome:
    encoder, ids = small_encoder(depth=5), [5, 6, 7]
    states = encoder.hidden_states(Batch.pack([ids]))
    shapes = {tuple(state.shape) for state in states}
    chained = max(gap(layer_by_hand(encoder, n, state), states[n + 1]) for n, state in enumerate(states[:-1]))
    measured = f"{len(states) - 1} layers, {shapes}, each from the previous one to {chained:.0e}"
    ok = len(states) == 6 and shapes == {(3, 128)} and chained < 1e-4
    return holds("5 layers, {(3, 128)}, to 1e-4", measured, ok)


@facts("M22", "B58-60, D826-828", "the last matrix of the masked-word head is the embedding matrix itself, plus a bias")
def tied_head() -> Outcome:
    model = new_model(family_config("bert", "tiny", vocab_size=50), {"masked_word": None})
    head = model.heads["masked_word"]
    same = head.decoder.weight.data_ptr() == model.encoder.embeddings.word.weight.data_ptr()  # type: ignore[union-attr, operator]
    parameters = sorted(name for name, _ in head.named_parameters())
    expected = ["decoder.bias", "decoder.weight", "dense.bias", "dense.weight", "norm.bias", "norm.weight"]
    return equal((True, expected), (same, parameters))
