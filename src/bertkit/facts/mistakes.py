"""What the source documents get wrong, and what is right, measured."""

import torch

from bertkit.config import family_config, override
from bertkit.facts.attention import base_encoder, random_tensor, small_encoder
from bertkit.facts.bundled import bundled
from bertkit.facts.by_hand import Arithmetic, furthest, gap, heads_by_hand, scores_by_hand, states_by_hand
from bertkit.facts.fact import Facts, Outcome, Vocabularies, equal, holds
from bertkit.facts.model import shape_only
from bertkit.facts.tokenizer import split, uncased
from bertkit.inside.look.reading import read
from bertkit.inside.look.table import step_table
from bertkit.model.attention import AttentionWindow, attention_weights
from bertkit.model.batch import Batch
from bertkit.model.model import copied, new_model, parameter_count
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS, wordpieces

facts = Facts()
SENTENCE = "The man walked the dog"


@facts("!D466", "D466", "says [CLS] and [SEP] get segment A; the last [SEP] of a pair gets B")
def last_separator(_: Vocabularies) -> Outcome:
    tokenizer = Tokenizer.from_vocab([*SPECIALS, "x", "y"], lowercase=True)
    return equal(1, tokenizer.encode("x", "y").segments[-1])


@facts(
    "!D242",
    "D242",
    "says any word can be represented; unknown characters and words over 100 characters cannot",
    "uncased",
)
def unknown_words(vocabularies: Vocabularies) -> Outcome:
    tokenizer = uncased(vocabularies)
    found = [split(tokenizer, text)[0] for text in ("\N{GRINNING FACE}", "a" * 101, "a" * 100)]
    return equal(["[UNK]", "[UNK]", "aaa"], [found[0], found[1], found[2][:3]])


@facts("!D250", "D250", "says only white space is discarded; control characters, NUL and U+FFFD are too")
def discarded(_: Vocabularies) -> Outcome:
    vocab = {piece: i for i, piece in enumerate([*SPECIALS, "a", "##b"])}
    found = [piece.text for piece in wordpieces("a\x00b a\x07b a\ufffdb", vocab, lowercase=True)]
    return equal(["a", "##b"] * 3, found)


@facts("!E229", "E229", "says playing becomes play ##ing; in the released vocabulary it is one token", "uncased")
def playing(vocabularies: Vocabularies) -> Outcome:
    return equal(["playing"], split(uncased(vocabularies), "playing"))


@facts("!D435", "D435", "says implementations require one fixed length; any mixture of lengths runs, without padding")
def any_lengths(_: Vocabularies) -> Outcome:
    return equal((16, 128), tuple(small_encoder()(Batch.pack([[1] * 3, [2] * 12, [3]])).shape))


@facts("!D413", "D413", "says the classifier takes the final [CLS] vector; a dense map with tanh stands in between")
def pooler_between(_: Vocabularies) -> Outcome:
    model = new_model(family_config("bert", "tiny", vocab_size=50, init_std=0.2), {"classify": 2}).eval()
    batch = Batch.pack([[1, 2, 3]])
    assert model.pooler is not None
    first = model(batch)[0]
    classes = model.get_submodule("heads.classify.out")
    by_hand = classes(torch.tanh(model.pooler.dense(first)))
    gap = (model.logits(batch, "classify")[0] - by_hand).abs().max().item()
    return holds("dense, tanh, classes", f"{gap:.0e}", gap < 1e-6)


@facts("!D684", "D684-687", "says attention holds 27 % of a layer; that leaves out W_O, with it 33 %")
def attention_share(_: Vocabularies) -> Outcome:
    layer = base_encoder().stack[0]
    matrices = {name: p.numel() for name, p in layer.named_parameters() if p.dim() == 2}
    attention = sum(count for name, count in matrices.items() if name.startswith("attention"))
    return equal("33.3%", f"{attention / sum(matrices.values()):.1%}")


@facts("!D660", "D660", "says the feed-forward is a 3-layer network; it is two linear maps")
def two_maps(_: Vocabularies) -> Outcome:
    maps = [m for m in base_encoder().stack[0].feed_forward.modules() if isinstance(m, torch.nn.Linear)]
    return equal(2, len(maps))


@facts("!A9", "A9, C30", "says 110 M for 12 (or 24) layers; 24 layers of width 1024 are 335 M")
def large_is_large(_: Vocabularies) -> Outcome:
    return equal("335M", f"{parameter_count(shape_only(family_config('bert', 'large'))) / 1e6:.0f}M")


@facts("!A59", "A59", "says q and k come from the value vectors; all three are projections of the layer's input")
def three_projections(_: Vocabularies) -> Outcome:
    encoder = small_encoder()
    trace = encoder.trace(Batch.pack([[5, 6, 7]]))
    found, hand = trace.layers[0], heads_by_hand(encoder, 0, trace.embeddings)
    of_values = heads_by_hand(encoder, 0, hand.values.flatten(1))
    right = max(gap(getattr(found, name), getattr(hand, name)) for name in ("queries", "keys", "values"))
    wrong = min(gap(getattr(found, name), getattr(of_values, name)) for name in ("queries", "keys"))
    measured = f"from the input {right:.0e}, from the values {wrong:.1f}"
    return holds("from the input to 1e-4, from the values not", measured, right < 1e-4 < 0.1 < wrong)


@facts(
    "!A72",
    "A72-74",
    "says heads go straight to one feed-forward after the last layer; each layer has W_O, then a feed-forward",
)
def every_layer_has_both(_: Vocabularies) -> Outcome:
    encoder, ids = small_encoder(), [5, 6, 7, 8]
    ways = (Arithmetic(), Arithmetic(output_projection=False), Arithmetic(feed_forward_from=encoder.config.depth - 1))
    right, without, last_only = (furthest(encoder, ids, how=how) for how in ways)
    measured = f"by hand {right:.0e}; without W_O {without:.1f}; feed-forward in the last layer only {last_only:.1f}"
    return holds("to 1e-4; the others not", measured, right < 1e-4 < 0.1 < min(without, last_only))


@facts("!B40", "B40", "weights .2 + .3 + .3 + .3 = 1.1; a word's weights sum to 1")
def weights_sum_to_one(_: Vocabularies) -> Outcome:
    weights = torch.stack([layer.weights for layer in bundled().trace(SENTENCE).layers])
    off = (weights.double().sum(dim=-1) - 1).abs().max().item()
    return holds("every sum 1 to 1e-5", f"{weights[..., 0].numel()} sums, off by {off:.0e}", off < 1e-5)


@facts("!B65", "B65", "says a lookup of 300 columns; BERT's has 768")
def lookup_width(_: Vocabularies) -> Outcome:
    return equal(768, base_encoder().embeddings.word.weight.shape[1])


@facts("!B83", "B83", "breaks off at 'with a vocabulary of'; of 2: text A is segment 0, text B is segment 1")
def segment_vocabulary(_: Vocabularies) -> Outcome:
    encoder, pair = small_encoder(), Tokenizer.from_vocab([*SPECIALS, "x", "y"]).encode("x", "y")
    by_hand = furthest(encoder, pair.ids, pair.segments)
    given, all_a = (encoder(Batch.pack([pair.ids], [kinds])) for kinds in (pair.segments, [0] * len(pair.ids)))
    try:
        encoder(Batch.pack([pair.ids], [[2] * len(pair.ids)]))
        third = True
    except IndexError:
        third = False
    apart = gap(given, all_a)
    measured = f"{sorted(set(pair.segments))}; by hand {by_hand:.0e}; with all as text A {apart:.1f}; a third: {third}"
    ok = set(pair.segments) == {0, 1} and by_hand < 1e-4 < 0.1 < apart and not third
    return holds("0 and 1 by hand to 1e-4; they differ; no third", measured, ok)


@facts("!E237", "E237", "shows sinusoidal positions in an article on BERT; BERT learns its 512")
def positions_are_learned(_: Vocabularies) -> Outcome:
    position = dict(base_encoder().named_parameters())["embeddings.position.weight"]
    return equal((512, True), (position.shape[0], position.requires_grad))


@facts("!E377", "E377", "says a word clearly attends most to itself; in the bundled model few do")
def own_word_not_first(_: Vocabularies) -> Outcome:
    weights = torch.stack([layer.weights for layer in bundled().trace(SENTENCE).layers])
    share = (weights.argmax(dim=-1) == torch.arange(weights.shape[-1])).float().mean().item()
    return holds("under half of the rows", f"{share:.0%} of {weights[..., 0].numel()} rows", share < 0.5)


@facts("!E429", "E429", "says a word's similarity to itself is 1/sqrt(d_k); so for vectors of length 1, and no other")
def own_similarity(_: Vocabularies) -> Outcome:
    encoder, reading = bundled().model.encoder, read(bundled(), SENTENCE)
    states, own, worst = states_by_hand(encoder, reading.encoding.ids), [], 0.0
    for number, x in enumerate(states[:-1]):
        hand = heads_by_hand(encoder, number, x)
        scores = scores_by_hand(hand.queries, hand.keys)
        for head in range(encoder.config.heads):
            table = step_table(reading, layer=number + 1, head=head + 1, word="dog")
            own.append(table.steps[table.place].scaled)
            worst = max(worst, abs(own[-1] - float(scores[head, table.place, table.place])))
    measured = f"`heads --table` shows {min(own):.2f} to {max(own):.2f} for dog; off by {worst:.0e}"
    return holds("by hand to 1e-3; over 1 somewhere, not 0.125", measured, worst < 1e-3 and max(own) > 1)


@facts("!E472", "E472", "writes q1.k1 in the row of the second word; it is q2.k1")
def second_row(_: Vocabularies) -> Outcome:
    q, k = random_tensor(2, 1, 64), random_tensor(2, 1, 64, seed=1)
    ratio = attention_weights(q, k, AttentionWindow())[0, 1].log()
    right = ((q[1, 0] @ k[0, 0]) - (q[1, 0] @ k[1, 0])) / 8
    return holds(
        "log w21 - log w22 = (q2.k1 - q2.k2)/8",
        f"{ratio[0] - ratio[1]:.5f}, {right:.5f}",
        bool(abs(ratio[0] - ratio[1] - right) < 1e-5),
    )


@facts(
    "!E507", "E507, E869", "write softmax(qK^T)V without the scale, and 'square(d_k)'; it is divided by the square root"
)
def scale_is_a_root(_: Vocabularies) -> Outcome:
    q, k = random_tensor(5, 1, 16), random_tensor(5, 1, 16, seed=1)
    scores = q[:, 0] @ k[:, 0].T
    found = attention_weights(q, k, AttentionWindow())[0]
    gaps = {
        name: (found - (scores / by).softmax(-1)).abs().max().item()
        for name, by in {"root": 4, "none": 1, "square": 256}.items()
    }
    return equal("root", min(gaps, key=gaps.__getitem__))


@facts("!E608", "E608", "says ReLU; BERT's activation is GELU, which lets small negative values through")
def gelu_not_relu(_: Vocabularies) -> Outcome:
    activation = base_encoder().stack[0].feed_forward.activation
    return equal("-0.159", f"{activation(torch.tensor(-1.0)):.3f}")


@facts("!E717", "E717", "shows negative numbers after the softmax; scores may be negative, weights never are")
def no_negative_weights(_: Vocabularies) -> Outcome:
    layers = bundled().trace(SENTENCE).layers
    least = min(float(scores_by_hand(layer.queries, layer.keys).min()) for layer in layers)
    lowest = min(float(layer.weights.min()) for layer in layers)
    return holds("a score below 0, no weight", f"{least:.2f}, {lowest:.0e}", least < 0 <= lowest)


@facts("!E739", "E739", "says 'soccer' attends only to 'I' and 'play'; in a causal model a word attends to itself too")
def itself_too(_: Vocabularies) -> Outcome:
    model, ids = bundled().model, bundled().tokenizer.encode("I play soccer").ids[1:-1]
    causal = copied(model, override(model.config, "causal=true"), model.state_dict()).encoder
    weights = torch.stack([layer.weights for layer in causal.trace(Batch.pack([ids])).layers])
    own, ahead = weights[..., 2, 2].mean().item(), weights.triu(1).max().item()
    return holds("itself over 0.05, words ahead 0", f"{own:.2f}, {ahead:g}", own > 0.05 and ahead == 0)
