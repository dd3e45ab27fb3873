"""Facts about looking inside: views and heads. What vectors know is in `knowledge`.

In I4 heads are planted: a model whose first head was made to look at the next token has to be found as such, for each
kind of head that the catalogue knows. What the bundled model's heads do is in `trained`. How fast a page opens is for
a browser to say, and is measured there.
"""

import math
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import family_config, override
from bertkit.facts.fact import Facts, Outcome, Vocabularies, at_most, equal, holds
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
PLACES = 32  # half of the width says where a token stands, half which word it is
STRONG = 2.0
LARGEST_PAGE = 25e6


def letter_bert(model: BertModel) -> Bert:
    """A model over single letters."""
    tokenizer = Tokenizer.from_vocab([*SPECIALS, *LETTERS])
    return Bert(Checkpoint(model=model.eval(), tokenizer=tokenizer, max_length=model.config.max_length))


def planted(kind: str) -> Bert:
    """A model whose first head looks as `kind` says; its other heads look at nothing more than at anything else."""
    shape = {"width": 2 * PLACES, "heads": 2, "depth": 2, "inner": 64, "max_length": PLACES, "segments": 1}
    model = new_model(family_config("bert", "tiny", vocab_size=len(SPECIALS) + len(LETTERS), **shape))
    tensors, unit = model.state_dict(), torch.eye(2 * PLACES)  # the model's own tensors, by name
    tensors["encoder.embeddings.position.weight"].copy_(unit[:PLACES])
    tensors["encoder.embeddings.word.weight"].copy_(unit[PLACES : PLACES + len(SPECIALS) + len(LETTERS)])
    tensors["encoder.embeddings.segment.weight"].zero_()
    for layer in model.encoder.stack:
        layer.attention.qkv.weight.zero_()
        layer.attention.qkv.bias.zero_()
    _plant(model.encoder.stack[0].attention.qkv, kind, STRONG * unit)
    return letter_bert(model)


def _plant(qkv: torch.nn.Linear, kind: str, unit: Tensor) -> None:
    """The first 32 rows make the first head's queries, the 32 from 64 on its keys."""
    query, key = qkv.weight[:PLACES], qkv.weight[2 * PLACES : 3 * PLACES]
    places, words = unit[:PLACES], unit[PLACES:]
    if kind == "next":  # token j offers what token j - 1 asks for
        query.copy_(places)
        key.copy_(places.roll(-1, dims=0))
    elif kind == "previous":
        query.copy_(places)
        key.copy_(places.roll(1, dims=0))
    elif kind == "same_word":
        query.copy_(words)
        key.copy_(words)
    elif kind == "separator":  # all ask for the same, whatever they are
        qkv.bias[0] = STRONG * 8
        key[0] = words[SPECIALS.index("[SEP]")]


@facts(
    "I1", "A60-70, C142-160, E365-377", "neuron view: its q, k and softmax are the model's own, every layer and head"
)
def neuron_view(_: Vocabularies) -> Outcome:
    bert = Bert(pretrained())
    reading = read(bert, "t0w1 c2 t0w3 c4 t1w1")
    data = page_data(bert, reading)
    gaps = []
    for shown, own in zip(data["layers"], reading.trace.layers, strict=True):
        queries, keys = unpack(shown["queriesKeys"])
        scores = np.einsum("hik,hjk->hij", queries, keys) / math.sqrt(queries.shape[-1])
        softmax = np.exp(scores - unpack(shown["normalizers"])[..., None])
        gaps += [float(np.abs(queries - own.queries.transpose(0, 1).numpy()).max())]
        gaps += [float(np.abs(softmax - own.weights.numpy()).max())]
    return at_most(1e-5, max(gaps), f"difference over {len(gaps) // 2} layers")


@facts("I2", "B138, E334", "head view and model view: all 144 heads of a text of 512 tokens, in one file")
def all_heads(_: Vocabularies) -> Outcome:
    # Narrow heads: how many there are and how long the text is decides what a page has to hold.
    shape = {"width": 192, "heads": 12, "depth": 12, "inner": 192, "max_length": 512}
    model = new_model(family_config("bert", "base", vocab_size=len(SPECIALS) + len(LETTERS), **shape))
    bert = letter_bert(model)
    data = page_data(bert, read(bert, " ".join(LETTERS * 20)[: 2 * 510]))
    thumbnails = unpack(data["thumbnails"])
    heads = thumbnails.shape[0] * thumbnails.shape[1]
    size = len(page(data).encode())
    measured = f"{heads} heads, {len(data['tokens'])} tokens, {size / 1e6:.1f} MB"
    right = heads == 144 and len(data["tokens"]) == 512 and size < LARGEST_PAGE
    return holds(f"144, 512, under {LARGEST_PAGE / 1e6:.0f} MB", measured, right)


@facts("I4", "E427", "heads are told apart: next token, token before, same word, [SEP], broad")
def kinds_of_heads(_: Vocabularies) -> Outcome:
    kinds = ("next", "previous", "same_word", "separator", "broad")
    found = [catalogue([read(planted(kind), "a b a b a b a b")])[0].kind for kind in kinds]
    return equal(kinds, tuple(found))


@facts("I10", "E48-71", "GPT reads from left to right: what follows a word does not change its vector")
def left_to_right(_: Vocabularies) -> Outcome:
    model = pretrained().model
    causal = copied(model, override(model.config, "causal=true"), model.state_dict())
    one, other = (Batch.pack([[2, 7, 8, last]]) for last in (9, 40))
    both = [float((each(one) - each(other))[:3].abs().max()) for each in (causal, model)]
    measured = f"{both[0]:.1e}; with sight of all {both[1]:.1e}"
    return holds("0; more with sight of all", measured, both[0] < 1e-6 < 1e-3 < both[1])


@facts("I10b", "E142-144", "ULMFiT's gradual unfreezing: layers are set free one by one, from the top down")
def gradual_unfreezing(_: Vocabularies) -> Outcome:
    settings = read_settings("unfreeze=0.5")
    lowest = [lowest_trainable(settings, 12, progress / 100) for progress in range(101)]
    falls = all(before - after in (0, 1) for before, after in pairwise(lowest))
    return equal((13, 0, True), (lowest[0], lowest[50], falls))


@facts("I11", "E889-904", "KL divergence of binomial(2, 0.4) and the uniform distribution, both ways")
def divergence(_: Vocabularies) -> Outcome:
    binomial = torch.tensor([math.comb(2, k) * 0.4**k * 0.6 ** (2 - k) for k in range(3)], dtype=torch.float64)
    uniform = torch.full_like(binomial, 1 / 3)
    found = [round(float(kl(a, b)), 7) for a, b in ((binomial, uniform), (uniform, binomial))]
    return equal([0.0852996, 0.0974550], found)


@facts("I11b", "E889-904", "divergence compares heads: 0 between a head and itself, over 0 between different ones")
def heads_compared(_: Vocabularies) -> Outcome:
    weights = read(Bert(pretrained()), "t0w1 c2 t0w3").trace.layers[0].weights
    apart = kl(weights[:, None], weights[None]).mean(dim=-1)
    own, between = float(apart.diagonal().abs().max()), float(apart[0, 1])
    return holds("0, over 0", f"{own:.1e}, {between:.2f}", own < 1e-6 and between > 1e-3)
