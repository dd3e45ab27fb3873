"""Facts about views and attention heads. What vectors represent is in `knowledge`.

In I4 heads are constructed: the head catalogue must recognize a head that was built to attend to the next token, and so
for each kind of head. The heads of the bundled model are in `trained`; page load times are measured in browser tests.
"""

import math
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import family_config, override
from bertkit.facts.fact import Facts, Outcome, at_most, equal, holds
from bertkit.facts.topics import pretrained
from bertkit.finetuning.distill import kl
from bertkit.finetuning.learner import lowest_trainable
from bertkit.finetuning.settings import read_settings
from bertkit.inside.look.data import page_data, unpack
from bertkit.inside.look.heads import catalogue
from bertkit.inside.look.look import page
from bertkit.inside.look.reading import read
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel, copied, new_model
from bertkit.predict.bert import Bert
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

facts = Facts()
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
MAX_POSITIONS = 32  # half of the width is a one-hot position, half a one-hot word
STRENGTH = 2.0  # scale of queries and keys
MAX_PAGE_BYTES = 25e6


def letter_bert(model: BertModel) -> Bert:
    """A model over single letters."""
    tokenizer = Tokenizer.from_vocab([*SPECIALS, *LETTERS])
    return Bert(Checkpoint(model=model.eval(), tokenizer=tokenizer, max_length=model.config.max_length))


def model_with_head(kind: str) -> Bert:
    """A model whose first head is of this kind; the attention of its other heads is uniform."""
    width, positions = 2 * MAX_POSITIONS, MAX_POSITIONS
    shape = {"width": width, "heads": 2, "depth": 2, "inner": 64, "max_length": positions, "segments": 1}
    model = new_model(family_config("bert", "tiny", vocab_size=len(SPECIALS) + len(LETTERS), **shape))
    tensors, unit = model.state_dict(), torch.eye(width)
    tensors["encoder.embeddings.position.weight"].copy_(unit[:positions])
    tensors["encoder.embeddings.word.weight"].copy_(unit[positions : positions + len(SPECIALS) + len(LETTERS)])
    tensors["encoder.embeddings.segment.weight"].zero_()
    for layer in model.encoder.stack:
        layer.attention.qkv.weight.zero_()
        layer.attention.qkv.bias.zero_()
    _set_head(model.encoder.stack[0].attention.qkv, kind, STRENGTH * unit)
    return letter_bert(model)


def _set_head(qkv: torch.nn.Linear, kind: str, unit: Tensor) -> None:
    """Set the weights of the first head: rows 0 to 31 give its queries, rows 64 to 95 its keys."""
    query, key = qkv.weight[:MAX_POSITIONS], qkv.weight[2 * MAX_POSITIONS : 3 * MAX_POSITIONS]
    positions, words = unit[:MAX_POSITIONS], unit[MAX_POSITIONS:]
    if kind == "next":  # the key of token j equals the query of token j - 1
        query.copy_(positions)
        key.copy_(positions.roll(-1, dims=0))
    elif kind == "previous":
        query.copy_(positions)
        key.copy_(positions.roll(1, dims=0))
    elif kind == "same_word":
        query.copy_(words)
        key.copy_(words)
    elif kind == "separator":  # the query is the same for all tokens
        qkv.bias[0] = STRENGTH * 8
        key[0] = words[SPECIALS.index("[SEP]")]


@facts("I1", "A60-70, C142-160, E365-377", "neuron view: q, k and softmax are the model's, for all layers and heads")
def neuron_view() -> Outcome:
    bert = Bert(pretrained())
    reading = read(bert, "t0w1 c2 t0w3 c4 t1w1")
    data = page_data(bert, reading)
    gaps = []
    for shown, layer in zip(data["layers"], reading.trace.layers, strict=True):
        queries, keys = unpack(shown["queriesKeys"])
        scores = np.einsum("hik,hjk->hij", queries, keys) / math.sqrt(queries.shape[-1])
        softmax = np.exp(scores - unpack(shown["normalizers"])[..., None])
        gaps += [float(np.abs(queries - layer.queries.transpose(0, 1).numpy()).max())]
        gaps += [float(np.abs(softmax - layer.weights.numpy()).max())]
    return at_most(1e-5, max(gaps), f"difference over {len(gaps) // 2} layers")


@facts("I2", "B138, E334", "head view and model view: all 144 heads of a text of 512 tokens, in one file")
def all_heads() -> Outcome:
    # Narrow heads: the size of a page depends on the number of heads and tokens.
    shape = {"width": 192, "heads": 12, "depth": 12, "inner": 192, "max_length": 512}
    model = new_model(family_config("bert", "base", vocab_size=len(SPECIALS) + len(LETTERS), **shape))
    bert = letter_bert(model)
    data = page_data(bert, read(bert, " ".join(LETTERS * 20)[: 2 * 510]))
    thumbnails = unpack(data["thumbnails"])
    heads = thumbnails.shape[0] * thumbnails.shape[1]
    size = len(page(data).encode())
    measured = f"{heads} heads, {len(data['tokens'])} tokens, {size / 1e6:.1f} MB"
    ok = heads == 144 and len(data["tokens"]) == 512 and size < MAX_PAGE_BYTES
    return holds(f"144, 512, under {MAX_PAGE_BYTES / 1e6:.0f} MB", measured, ok)


@facts("I4", "E427", "kinds of heads are recognized: next token, previous token, same word, [SEP], broad")
def kinds_of_heads() -> Outcome:
    kinds = ("next", "previous", "same_word", "separator", "broad")
    recognized = [catalogue([read(model_with_head(kind), "a b a b a b a b")])[0].kind for kind in kinds]
    return equal(kinds, tuple(recognized))


@facts("I10", "E48-71", "GPT reads from left to right: later words do not change the vector of a word")
def left_to_right() -> Outcome:
    model = pretrained().model
    causal = copied(model, override(model.config, "causal=true"), model.state_dict())
    one, other = (Batch.pack([[2, 7, 8, last]]) for last in (9, 40))
    changes = [float((net(one) - net(other))[:3].abs().max()) for net in (causal, model)]
    measured = f"{changes[0]:.1e}; bidirectional {changes[1]:.1e}"
    return holds("0; more if bidirectional", measured, changes[0] < 1e-6 < 1e-3 < changes[1])


@facts("I10b", "E142-144", "ULMFiT's gradual unfreezing: layers are unfrozen one by one, from the top down")
def gradual_unfreezing() -> Outcome:
    settings = read_settings("unfreeze=0.5")
    lowest = [lowest_trainable(settings, 12, progress / 100) for progress in range(101)]
    one_by_one = all(before - after in (0, 1) for before, after in pairwise(lowest))
    return equal((13, 0, True), (lowest[0], lowest[50], one_by_one))


@facts("I11", "E889-904", "KL divergence between binomial(2, 0.4) and the uniform distribution, in both directions")
def divergence() -> Outcome:
    binomial = torch.tensor([math.comb(2, k) * 0.4**k * 0.6 ** (2 - k) for k in range(3)], dtype=torch.float64)
    uniform = torch.full_like(binomial, 1 / 3)
    divergences = [round(float(kl(a, b)), 7) for a, b in ((binomial, uniform), (uniform, binomial))]
    return equal([0.0852996, 0.0974550], divergences)


@facts("I11b", "E889-904", "divergence compares heads: 0 between a head and itself, over 0 between different ones")
def heads_compared() -> Outcome:
    weights = read(Bert(pretrained()), "t0w1 c2 t0w3").trace.layers[0].weights
    divergence = kl(weights[:, None], weights[None]).mean(dim=-1)
    itself, between = float(divergence.diagonal().abs().max()), float(divergence[0, 1])
    return holds("0, over 0", f"{itself:.1e}, {between:.2f}", itself < 1e-6 and between > 1e-3)
