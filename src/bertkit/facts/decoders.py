"""Facts about decoders, the Transformer's and the recurrent one before it, and about ELMo and ULMFiT."""

from functools import cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import family_config
from bertkit.facts.by_hand import gap, scores_by_hand
from bertkit.facts.fact import Facts, Outcome, equal, holds
from bertkit.facts.setup import random_tensor
from bertkit.model.batch import Batch
from bertkit.model.decoder import Decoder
from bertkit.model.heads import ScalarMix
from bertkit.model.model import BertModel, new_model
from bertkit.model.operations import Source
from bertkit.model.recurrent.cell import AttendingCell
from bertkit.predict.bert import Bert
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS
from bertkit.train.schedule import Schedule

facts = Facts()
# The documents' own sentences, and others so that the source decides what is written.
PAIRS = (
    ("tu t ' appelles lebowski lebowski", "your name ' s lebowski lebowski"),
    ("je suis un etudiant", "i am a student"),
    ("je suis lebowski", "i am lebowski"),
    ("tu es un etudiant", "you are a student"),
)
STEPS, VOCABULARY = 120, 10_000  # the documents' example of a vocabulary
SOURCE, TARGET = [5, 6, 7, 8, 9], [2, 11, 12, 13]


@cache
def random_decoder(vocab_size: int = 60) -> BertModel:
    """An encoder-decoder of two and three layers with random weights."""
    config = family_config("encoder-decoder", "tiny", vocab_size=vocab_size, init_std=0.06, decoder_depth=3)
    return new_model(config, {"decoder": None}).eval()


def decoder_of(model: BertModel) -> Decoder:
    """The model's decoder."""
    assert model.decoder is not None
    return model.decoder


def read_source(model: BertModel, ids: list[int]) -> Source:
    """The encoder's output for one source."""
    batch = Batch.pack([ids])
    return Source(model(batch), batch)


@facts("M17", "E624-745", "a decoder's token never attends to a later one: its weight is exactly 0 after the softmax")
def nothing_ahead() -> Outcome:
    model = random_decoder()
    decoder, source = decoder_of(model), read_source(model, SOURCE)
    layers = decoder.stack.trace(Batch.pack([TARGET]), source).layers
    ahead = max(float(layer.weights.triu(1).max()) for layer in layers)
    itself = min(float(layer.weights.diagonal(dim1=1, dim2=2).min()) for layer in layers)
    changed = decoder(Batch.pack([[*TARGET[:3], 40]]), source) - decoder(Batch.pack([TARGET]), source)
    earlier, last = float(changed[:3].abs().max()), float(changed[3].abs().max())
    measured = f"{ahead:g} ahead, {itself:.0e} or more on itself; others move by {earlier:g}, the last by {last:.2f}"
    return holds("0 ahead, over 0 on itself; 0", measured, ahead == 0 < itself and earlier < 1e-5 < 0.1 < last)


@facts("M17b", "B155-163", "a decoder's second attention: queries of its own, keys and values of the encoder")
def keys_of_the_encoder() -> Outcome:
    model = random_decoder()
    decoder, source, worst = decoder_of(model), read_source(model, SOURCE), 0.0
    trace = decoder.stack.trace(Batch.pack([TARGET]), source)
    inputs: dict[int, Tensor] = {}
    hooks = [
        layer.cross_attention.register_forward_pre_hook(lambda _, args, n=n: inputs.update({n: args[0]}))
        for n, layer in enumerate(decoder.stack.stack)
        if layer.cross_attention is not None
    ]
    decoder(Batch.pack([TARGET]), source)
    for hook in hooks:
        hook.remove()
    for number, layer in enumerate(decoder.stack.stack):
        attention, heads = layer.cross_attention, model.config.heads
        assert attention is not None  # every layer of a decoder has it
        queries = attention.query(inputs[number]).view(len(TARGET), heads, -1)
        keys, _ = attention.key_value(source.hidden_SD).view(len(SOURCE), 2, heads, -1).unbind(dim=1)
        weights = trace.layers[number].cross_weights
        assert weights is not None
        worst = max(worst, gap(weights, scores_by_hand(queries, keys).softmax(dim=-1)))
    other = decoder(Batch.pack([TARGET]), read_source(model, [5, 6, 40, 8, 9]))
    moved = gap(other, decoder(Batch.pack([TARGET]), source))
    measured = f"{worst:.0e} by hand in {len(hooks)} layers; another source moves the output by {moved:.1f}"
    return holds("to 1e-5; over 0.1", measured, len(hooks) == 3 and worst < 1e-5 and moved > 0.1)


@facts("M18", "E747-784", "a vector times a matrix of 10,000 words, softmax; the most probable word is written")
def linear_softmax_argmax() -> Outcome:
    model = random_decoder(VOCABULARY)
    decoder = decoder_of(model)
    letters = [f"w{n}" for n in range(VOCABULARY - len(SPECIALS))]
    tokenizer = Tokenizer.from_vocab([*SPECIALS, *letters])
    bert = Bert(Checkpoint(model=model, tokenizer=tokenizer, max_length=64))
    first = decoder.words(decoder(Batch.pack([[tokenizer.cls_id]]), _source_of(bert, "w3 w4"))).softmax(dim=-1)
    written = bert.write("w3 w4", tokens=1).text
    best = tokenizer.decode([int(first.argmax())])
    shape, total = tuple(first.shape), float(first.sum())
    measured = f"{shape}, sum {total:.4f}; argmax {best or 'the end'}, written {written or 'the end'}"
    return holds(
        "(1, 10000), sum 1; the same", measured, shape == (1, VOCABULARY) and abs(total - 1) < 1e-4 and best == written
    )


def _source_of(bert: Bert, text: str) -> Source:
    return read_source(bert.model, list(bert.tokenizer.encode(text).ids))


@cache
def translator() -> Bert:
    """A Transformer of one layer on each side that has learned the pairs by heart in seconds."""
    words = sorted({word for pair in PAIRS for text in pair for word in text.split()})
    tokenizer = Tokenizer.from_vocab([*SPECIALS, *words])
    shape = {"width": 64, "heads": 2, "inner": 128, "depth": 1, "decoder_depth": 1, "max_length": 32}
    config = family_config(
        "encoder-decoder", "tiny", vocab_size=tokenizer.size, dropout=0, attention_dropout=0, **shape
    )
    model = new_model(config, {"decoder": None}, seed=1)
    sources = Batch.pack([tokenizer.encode(source).ids for source, _ in PAIRS])
    targets = [tokenizer.encode(target).ids for _, target in PAIRS]
    inputs, wanted = Batch.pack([ids[:-1] for ids in targets]), torch.tensor([i for ids in targets for i in ids[1:]])
    optimizer, decoder = torch.optim.AdamW(model.parameters(), lr=3e-3), decoder_of(model)
    with torch.enable_grad():
        for _ in range(STEPS):
            loss = F.cross_entropy(decoder.words(decoder(inputs, Source(model(sources), sources))), wanted)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    return Bert(Checkpoint(model=model.eval(), tokenizer=tokenizer, max_length=32))


@facts("M19", "B161-167, E656", "word by word, until the end is written: I am a student")
def until_the_end() -> Outcome:
    bert = translator()
    written = bert.write([source for source, _ in PAIRS], tokens=20)
    correct = sum(each.ended and each.text == target for each, (_, target) in zip(written, PAIRS, strict=True))
    cut = bert.write(PAIRS[1][0], tokens=2)
    measured = f"{correct} of {len(PAIRS)}, {written[1].text!r} in {written[1].tokens} steps; after two: {cut.text!r}"
    ok = correct == len(PAIRS) and written[1].tokens == 5 and (cut.text, cut.ended) == ("i am", False)
    return holds("4 of 4, 'i am a student' and the end in 5 steps; 'i am'", measured, ok)


@facts("M20", "B28-44, E525", "before: an RNN's state scores all states of the source; their weights sum to 1")
def additive_alignment() -> Outcome:
    config = family_config("rnn", "tiny", vocab_size=60, init_std=0.2)
    model = new_model(config, {"decoder": None}).eval()
    decoder, source = decoder_of(model), read_source(model, SOURCE)
    traced = decoder.stack.trace(Batch.pack([TARGET]), source).layers[0]
    cell = decoder.stack.get_submodule("layers.0.cells.0")
    assert isinstance(cell, AttendingCell)
    assert traced.cross_weights is not None
    first = torch.tanh(cell.first(source.hidden_SD[:1]))
    asked = torch.cat((first, traced.output[:-1]))  # the state before each token: a GRU's output is its state
    scores = torch.stack([cell.score(torch.tanh(cell.query(one) + cell.key(source.hidden_SD)))[:, 0] for one in asked])
    weights = scores.exp() / scores.exp().sum(dim=1, keepdim=True)
    off, sums = gap(traced.cross_weights[0], weights), float((traced.cross_weights.sum(dim=-1) - 1).abs().max())
    read = torch.cat((traced_input(model, TARGET), weights @ source.hidden_SD), dim=1)  # a token, and its context
    state, outputs = first, []
    for row in read:
        state = cell.rnn(row[None, None], state[None])[1][0]
        outputs.append(state)
    context = gap(traced.output, torch.cat(outputs))
    measured = f"sums off by {sums:.0e}; weights by hand {off:.0e}; states from the weighted sums {context:.0e}"
    return holds("all to 1e-5", measured, max(off, sums, context) < 1e-5)


def traced_input(model: BertModel, ids: list[int]) -> Tensor:
    """L D: the embeddings of a target."""
    return decoder_of(model).stack.trace(Batch.pack([ids]), read_source(model, SOURCE)).embeddings


@facts("I10c", "E48-71", "ELMo: one half of a vector has read the words before, the other those after it")
def two_directions() -> Outcome:
    encoder = new_model(family_config("elmo", "tiny", vocab_size=60, init_std=0.2)).eval().encoder
    half, place = encoder.config.width // 2, 2
    plain, later, earlier = (
        encoder.hidden_states(Batch.pack([ids]))[-1][place]
        for ids in ([5, 6, 7, 8, 9], [5, 6, 7, 40, 41], [40, 41, 7, 8, 9])
    )
    changes = [gap(plain[:half], later[:half]), gap(plain[half:], later[half:])]
    changes += [gap(plain[:half], earlier[:half]), gap(plain[half:], earlier[half:])]
    mix, states = ScalarMix(3), encoder.hidden_states(Batch.pack([SOURCE]))
    mean = gap(mix(states), torch.stack(states).mean(dim=0))
    measured = "other words after: {:.0e} and {:.2f}; before: {:.2f} and {:.0e}".format(*changes)
    ok = max(changes[0], changes[3], mean) < 1e-6 < 1e-3 < min(changes[1], changes[2])
    return holds("0 and more; more and 0", measured, ok)


@facts("I10d", "E142-144", "ULMFiT's slanted triangle: the rate rises over a tenth of training, then falls")
def slanted_triangle() -> Outcome:
    schedule = Schedule(peak=1.0, warmup=0, decay="slanted")
    rates = [schedule.rate(step, step / 100) for step in range(101)]
    highest, ends = rates.index(max(rates)), (rates[0] * 32, rates[-1] * 32)
    rises = all(a < b for a, b in pairwise(rates[:11])) and all(a > b for a, b in pairwise(rates[10:]))
    return equal((10, (1.0, 1.0), True), (highest, ends, rises))


def gradient_left(weights: Tensor) -> float:
    """How much of a softmax's gradient is left: the mean of 1 - sum of squared weights, 0 if one weight is 1."""
    return float((1 - weights.square().sum(dim=-1)).mean())


def additive_weights(q: Tensor, k: Tensor) -> Tensor:
    """Bahdanau's: softmax of v . tanh(q + k), for queries L K and keys S K; v as large as in a new layer."""
    v = random_tensor(q.shape[-1], seed=2) / q.shape[-1] ** 0.5
    scores: Tensor = torch.tanh(q[:, None] + k[None]) @ v
    return scores.softmax(dim=-1)


mistakes = Facts()


@mistakes("!E525", "E525", "says additive attention is better; that is so only without the scale")
def additive_is_not_better() -> Outcome:
    left: dict[str, list[float]] = {"without scale": [], "scaled": [], "additive": []}
    for width in (16, 1024):
        q, k = random_tensor(64, width), random_tensor(16, width, seed=1)
        products = scores_by_hand(q[:, None], k[:, None])[0]
        left["without scale"].append(gradient_left((products * width**0.5).softmax(dim=-1)))
        left["scaled"].append(gradient_left(products.softmax(dim=-1)))
        left["additive"].append(gradient_left(additive_weights(q, k)))
    measured = ", ".join(f"{name} {narrow:.2f} to {wide:.2f}" for name, (narrow, wide) in left.items())
    ok = left["without scale"][1] < 0.1 < 0.8 < min(left["scaled"][1], left["additive"][1])
    return holds("gradient left at width 16 and 1024: lost only without the scale", measured, ok)
