"""Mistakes of the source documents, and what is correct, measured."""

import torch

from bertkit.config import family_config, override
from bertkit.facts.by_hand import Arithmetic, gap, heads_by_hand, largest_gap, scores_by_hand, states_by_hand
from bertkit.facts.fact import Facts, Outcome, equal, holds
from bertkit.facts.setup import base_encoder, bundled, is_refused, random_tensor, shape_only, small_encoder, text_file
from bertkit.facts.tokenizer import split
from bertkit.inside.look.reading import read
from bertkit.inside.look.table import step_table
from bertkit.model.attention import AttentionWindow, attention_weights
from bertkit.model.batch import Batch
from bertkit.model.model import copied, new_model, parameter_count
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary.build import VocabularySettings, make_vocabulary
from bertkit.text.wordpiece import SPECIALS, wordpieces

facts = Facts()
SENTENCE = "The man walked the dog"
BOOK_SENTENCES, BOOK_WORDS = 74_004_228, 984_846_357  # of BookCorpus, by the document
ERNIE_IN_FULL = "Enhanced Representation through kNowledge IntEgration"


@facts("!D466", "D466", "says [CLS] and [SEP] get segment A; the last [SEP] of a pair gets B")
def last_separator() -> Outcome:
    tokenizer = Tokenizer.from_vocab([*SPECIALS, "x", "y"], lowercase=True)
    return equal(1, tokenizer.encode("x", "y").segments[-1])


@facts("!D242", "D242", "says any word can be represented; unknown characters and long words cannot", "uncased")
def unknown_words(uncased: Tokenizer) -> Outcome:
    first = [split(uncased, text)[0] for text in ("\N{GRINNING FACE}", "a" * 101, "a" * 100)]
    return equal(["[UNK]", "[UNK]", "aaa"], [first[0], first[1], first[2][:3]])


@facts("!D250", "D250", "says only white space is discarded; control characters, NUL and U+FFFD are too")
def discarded() -> Outcome:
    vocab = {piece: i for i, piece in enumerate([*SPECIALS, "a", "##b"])}
    pieces = [piece.text for piece in wordpieces("a\x00b a\x07b a\ufffdb", vocab, lowercase=True)]
    return equal(["a", "##b"] * 3, pieces)


@facts("!E229", "E229", "says playing becomes play ##ing; in the released vocabulary it is one token", "uncased")
def playing(uncased: Tokenizer) -> Outcome:
    return equal(["playing"], split(uncased, "playing"))


@facts("!D435", "D435", "says implementations require one fixed length; any mixture of lengths runs, without padding")
def any_lengths() -> Outcome:
    return equal((16, 128), tuple(small_encoder()(Batch.pack([[1] * 3, [2] * 12, [3]])).shape))


@facts("!D413", "D413", "says the classifier reads the final [CLS]; between them is the pooler with tanh")
def pooler_before_classifier() -> Outcome:
    model = new_model(family_config("bert", "tiny", vocab_size=50, init_std=0.2), {"classify": 2}).eval()
    batch = Batch.pack([[1, 2, 3]])
    assert model.pooler is not None
    first = model(batch)[0]
    by_hand = model.get_submodule("heads.classify.out")(torch.tanh(model.pooler.dense(first)))
    off = gap(model.logits(batch, "classify")[0], by_hand)
    return holds("dense, tanh, classifier", f"{off:.0e}", off < 1e-6)


@facts("!D684", "D684-687", "says attention holds 27 % of a layer; that leaves out W_O, with it 33 %")
def attention_share() -> Outcome:
    layer = base_encoder().stack[0]
    matrices = {name: p.numel() for name, p in layer.named_parameters() if p.dim() == 2}
    attention = sum(count for name, count in matrices.items() if name.startswith("attention"))
    return equal("33.3%", f"{attention / sum(matrices.values()):.1%}")


@facts("!D660", "D660", "says the feed-forward is a 3-layer network; it has two linear layers")
def two_linear_layers() -> Outcome:
    layers = [m for m in base_encoder().stack[0].feed_forward.modules() if isinstance(m, torch.nn.Linear)]
    return equal(2, len(layers))


@facts("!A9", "A9, C30", "says 110 M for 12 (or 24) layers; 24 layers of width 1024 are 335 M")
def large_is_large() -> Outcome:
    return equal("335M", f"{parameter_count(shape_only(family_config('bert', 'large'))) / 1e6:.0f}M")


@facts("!A59", "A59", "says q and k come from the value vectors; all three are projections of the layer's input")
def three_projections() -> Outcome:
    encoder = small_encoder()
    trace = encoder.trace(Batch.pack([[5, 6, 7]]))
    layer, of_input = trace.layers[0], heads_by_hand(encoder, 0, trace.embeddings)
    of_values = heads_by_hand(encoder, 0, of_input.values.flatten(1))
    correct = max(gap(getattr(layer, name), getattr(of_input, name)) for name in ("queries", "keys", "values"))
    wrong = min(gap(getattr(layer, name), getattr(of_values, name)) for name in ("queries", "keys"))
    measured = f"from the input {correct:.0e}, from the values {wrong:.1f}"
    return holds("from the input to 1e-4, from the values not", measured, correct < 1e-4 < 0.1 < wrong)


@facts("!A72", "A72-74", "says one feed-forward follows the last layer; each layer has W_O and a feed-forward")
def every_layer_has_both() -> Outcome:
    encoder, ids = small_encoder(), [5, 6, 7, 8]
    last = encoder.config.depth - 1
    variants = (Arithmetic(), Arithmetic(output_projection=False), Arithmetic(feed_forward_from=last))
    correct, without, last_only = (largest_gap(encoder, ids, variant=variant) for variant in variants)
    measured = f"by hand {correct:.0e}; without W_O {without:.1f}; feed-forward in the last layer only {last_only:.1f}"
    return holds("to 1e-4; the others not", measured, correct < 1e-4 < 0.1 < min(without, last_only))


@facts("!B40", "B40", "weights .2 + .3 + .3 + .3 = 1.1; a word's weights sum to 1")
def weights_sum_to_one() -> Outcome:
    weights = torch.stack([layer.weights for layer in bundled().trace(SENTENCE).layers])
    off = (weights.double().sum(dim=-1) - 1).abs().max().item()
    return holds("every sum 1 to 1e-5", f"{weights[..., 0].numel()} sums, off by {off:.0e}", off < 1e-5)


@facts("!B65", "B65", "says the embedding table has 300 columns; BERT's has 768")
def lookup_width() -> Outcome:
    return equal(768, base_encoder().embeddings.word.weight.shape[1])


@facts("!B83", "B83", "breaks off at 'with a vocabulary of'; of 2: text A is segment 0, text B is segment 1")
def segment_vocabulary() -> Outcome:
    encoder, pair = small_encoder(), Tokenizer.from_vocab([*SPECIALS, "x", "y"]).encode("x", "y")
    length, by_hand = len(pair.ids), largest_gap(encoder, pair.ids, pair.segments)
    states, all_a = (encoder(Batch.pack([pair.ids], [ids])) for ids in (pair.segments, [0] * length))
    third = not is_refused(lambda: encoder(Batch.pack([pair.ids], [[2] * length])), IndexError)
    difference = gap(states, all_a)
    measured = f"{sorted(set(pair.segments))}; by hand {by_hand:.0e}; all as text A {difference:.1f}; a third: {third}"
    ok = set(pair.segments) == {0, 1} and by_hand < 1e-4 < 0.1 < difference and not third
    return holds("0 and 1 by hand to 1e-4; they differ; no third", measured, ok)


@facts(
    "!D798",
    "D798-801",
    "shifts a table's names; 13 is the mean of words per sentence, 11 the median",
)
def words_per_sentence() -> Outcome:
    of_its_own = BOOK_WORDS / BOOK_SENTENCES
    with text_file("a b c\na b\na b c d e f g\n") as path:
        corpus = make_vocabulary([path], VocabularySettings(size=19, min_count=1)).report["corpus"]
    ours = tuple(corpus[name] for name in ("mean_words_per_sentence", "median_words_per_sentence", "unique_words"))
    measured = f"{BOOK_WORDS:,} / {BOOK_SENTENCES:,} = {of_its_own:.1f}; `vocab` says {ours} of a text with (4, 3, 7)"
    return holds("13; the same", measured, round(of_its_own) == 13 and ours == (4, 3, 7))


@facts("!E67", "E67", "writes ENRIE; the capitals of the name that stands beside it are ERNIE")
def ernie() -> Outcome:
    return equal("ERNIE", "".join(letter for letter in ERNIE_IN_FULL if letter.isupper()))


@facts("!E237", "E237", "shows sinusoidal positions in an article on BERT; BERT learns its 512")
def positions_are_learned() -> Outcome:
    position = dict(base_encoder().named_parameters())["embeddings.position.weight"]
    return equal((512, True), (position.shape[0], position.requires_grad))


@facts("!E377", "E377", "says a word clearly attends most to itself; in the bundled model few do")
def word_itself_not_first() -> Outcome:
    weights = torch.stack([layer.weights for layer in bundled().trace(SENTENCE).layers])
    share = (weights.argmax(dim=-1) == torch.arange(weights.shape[-1])).float().mean().item()
    return holds("under half of the rows", f"{share:.0%} of {weights[..., 0].numel()} rows", share < 0.5)


@facts("!E429", "E429", "says a word's similarity to itself is 1/sqrt(d_k); this is so only for vectors of length 1")
def self_similarity() -> Outcome:
    encoder, reading = bundled().model.encoder, read(bundled(), SENTENCE)
    states, shown, worst = states_by_hand(encoder, reading.encoding.ids), [], 0.0
    for number, x in enumerate(states[:-1]):
        hand = heads_by_hand(encoder, number, x)
        scores = scores_by_hand(hand.queries, hand.keys)
        for head in range(encoder.config.heads):
            table = step_table(reading, layer=number + 1, head=head + 1, word="dog")
            shown.append(table.steps[table.place].scaled)
            worst = max(worst, abs(shown[-1] - float(scores[head, table.place, table.place])))
    measured = f"`heads --table` shows {min(shown):.2f} to {max(shown):.2f} for dog; off by {worst:.0e}"
    return holds("by hand to 1e-3; over 1 somewhere, not 0.125", measured, worst < 1e-3 and max(shown) > 1)


@facts("!E472", "E472", "writes q1.k1 in the row of the second word; it is q2.k1")
def second_row() -> Outcome:
    q, k = random_tensor(2, 1, 64), random_tensor(2, 1, 64, seed=1)
    logs = attention_weights(q, k, AttentionWindow())[0, 1].log()
    difference = float(logs[0] - logs[1])
    expected = float((q[1, 0] @ k[0, 0]) - (q[1, 0] @ k[1, 0])) / 8
    measured = f"{difference:.5f}, {expected:.5f}"
    return holds("log w21 - log w22 = (q2.k1 - q2.k2)/8", measured, abs(difference - expected) < 1e-5)


@facts("!E507", "E507, E869", "write softmax(qK^T)V without scale, and 'square(d_k)'; the divisor is the root")
def scale_is_a_root() -> Outcome:
    q, k = random_tensor(5, 1, 16), random_tensor(5, 1, 16, seed=1)
    scores = q[:, 0] @ k[:, 0].T
    weights, divisors = attention_weights(q, k, AttentionWindow())[0], {"root": 4, "none": 1, "square": 256}
    gaps = {name: gap(weights, (scores / divisor).softmax(-1)) for name, divisor in divisors.items()}
    return equal("root", min(gaps, key=gaps.__getitem__))


@facts("!E608", "E608", "says ReLU; BERT's activation is GELU, which passes small negative values")
def gelu_not_relu() -> Outcome:
    activation = base_encoder().stack[0].feed_forward.activation
    return equal("-0.159", f"{activation(torch.tensor(-1.0)):.3f}")


@facts("!E717", "E717", "shows negative numbers after the softmax; scores may be negative, weights never are")
def no_negative_weights() -> Outcome:
    layers = bundled().trace(SENTENCE).layers
    score = min(float(scores_by_hand(layer.queries, layer.keys).min()) for layer in layers)
    weight = min(float(layer.weights.min()) for layer in layers)
    return holds("a score below 0, no weight", f"{score:.2f}, {weight:.0e}", score < 0 <= weight)


@facts("!E739", "E739", "says 'soccer' attends only to 'I' and 'play'; in a causal model a word attends to itself too")
def itself_too() -> Outcome:
    model, ids = bundled().model, bundled().tokenizer.encode("I play soccer").ids[1:-1]
    causal = copied(model, override(model.config, "causal=true"), model.state_dict()).encoder
    weights = torch.stack([layer.weights for layer in causal.trace(Batch.pack([ids])).layers])
    itself, later = weights[..., 2, 2].mean().item(), weights.triu(1).max().item()
    return holds("itself over 0.05, later words 0", f"{itself:.2f}, {later:g}", itself > 0.05 and later == 0)
