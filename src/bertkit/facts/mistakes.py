"""What the source documents get wrong, and what is right, measured."""

import torch

from bertkit.config import family_config
from bertkit.facts.attention import base_encoder, random_tensor, small_encoder
from bertkit.facts.fact import Facts, Outcome, Vocabularies, equal, holds
from bertkit.facts.model import shape_only
from bertkit.facts.tokenizer import split, uncased
from bertkit.model.batch import Batch
from bertkit.model.kernels import Sight, attention_weights
from bertkit.model.model import parameter_count
from bertkit.model.weights import new_model
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS, wordpieces

facts = Facts()


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
    attention = small_encoder().stack[0].attention
    x, batch = random_tensor(3, 128), Batch.pack([[1, 2, 3]])
    whole = attention.qkv(x).unflatten(-1, (3, 2, 64))
    gap = max((whole[:, i] - part).abs().max().item() for i, part in enumerate(attention.project(x, batch)))
    return holds("three slices of one map of x", f"{gap:.0e}", gap < 1e-6)


@facts(
    "!A72",
    "A72-74",
    "says heads go straight to one feed-forward after the last layer; W_O first, a feed-forward in every layer",
)
def every_layer_has_both(_: Vocabularies) -> Outcome:
    encoder = shape_only(family_config("bert", "base")).encoder
    both = [hasattr(layer.attention, "out") and hasattr(layer.feed_forward, "up") for layer in encoder.stack]
    return equal([True] * 12, both)


@facts("!B65", "B65", "says a lookup of 300 columns; BERT's has 768")
def lookup_width(_: Vocabularies) -> Outcome:
    return equal(768, base_encoder().embeddings.word.weight.shape[1])


@facts("!B83", "B83", "breaks off at 'with a vocabulary of'; of 2, the segments")
def segment_vocabulary(_: Vocabularies) -> Outcome:
    return equal(2, base_encoder().config.segments)


@facts("!E237", "E237", "shows sinusoidal positions in an article on BERT; BERT learns its 512")
def positions_are_learned(_: Vocabularies) -> Outcome:
    position = dict(base_encoder().named_parameters())["embeddings.position.weight"]
    return equal((512, True), (position.shape[0], position.requires_grad))


@facts("!E377", "E377", "says a word clearly attends most to itself; not in general")
def own_word_not_first(_: Vocabularies) -> Outcome:
    weights = small_encoder().trace(Batch.pack([list(range(5, 37))])).layers[0].weights
    share = (weights.argmax(dim=-1) == torch.arange(32)).float().mean().item()
    return holds("under 100 % of rows", f"{share:.0%} of rows", share < 1)


@facts("!E429", "E429", "says the largest similarity is 1/sqrt(d_k); only for vectors of length 1")
def largest_similarity(_: Vocabularies) -> Outcome:
    x = random_tensor(64)
    unit = x / x.norm()
    found = (float(unit @ unit) / 8, float(x @ x) / 8)
    return holds(
        "0.125 for length 1, more for others",
        f"{found[0]:.3f}, {found[1]:.1f}",
        abs(found[0] - 1 / 8) < 1e-6 < found[1] - 1 / 8,
    )


@facts("!E472", "E472", "writes q1.k1 in the row of the second word; it is q2.k1")
def second_row(_: Vocabularies) -> Outcome:
    q, k = random_tensor(2, 1, 64), random_tensor(2, 1, 64, seed=1)
    ratio = attention_weights(q, k, Sight())[0, 1].log()
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
    found = attention_weights(q, k, Sight())[0]
    gaps = {
        name: (found - (scores / by).softmax(-1)).abs().max().item()
        for name, by in {"root": 4, "none": 1, "square": 256}.items()
    }
    return equal("root", min(gaps, key=gaps.__getitem__))


@facts("!E608", "E608", "says ReLU; BERT bends with GELU, which lets small negative values through")
def gelu_not_relu(_: Vocabularies) -> Outcome:
    bend = base_encoder().stack[0].feed_forward.bend
    return equal("-0.159", f"{bend(torch.tensor(-1.0)):.3f}")
