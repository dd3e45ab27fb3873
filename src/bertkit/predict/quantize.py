"""Quantize a model's linear layers to int8 (`engine/int8.py`), if its embeddings stay what they were.

Layers that would change the embeddings too much stay in float32.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.engine.int8 import Int8Linear, has_int8
from bertkit.engine.linear import ReplacedLinear
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.model import BertModel
from bertkit.model.pooling import pool
from bertkit.poolings import DEFAULT_POOLING, NO_POOLING
from bertkit.settings import pick
from bertkit.text.tokenizer import Tokenizer

Quantize = Literal["int8"]
QUANTIZERS: dict[str, Quantize] = {"int8": "int8"}
MIN_MEAN_COSINE = 0.999  # with float32 on the samples; a model under it is refused
# SmoothQuant's alpha, the part of an input column's scale that moves to the weights: the best for each layer of MiniLM.
SMOOTHING = {"qkv": 0.8, "out": 0.5, "up": 0.5, "down": 0.6}
# Shares of the layers, from the lowest, whose feed-forward linear layers stay in float32, tried in this order: the
# second one makes two thirds of the error, most of it in the lower layers. CPUs without VNNI need the last step.
FLOAT_SHARES: tuple[dict[str, float], ...] = ({}, {"down": 0.5}, {"down": 1.0}, {"down": 1.0, "up": 1.0})


@dataclass(frozen=True)
class Fidelity:
    """How near the quantized model's embeddings are to those in float32: cosines over the samples."""

    mean: float
    least: float
    texts: int
    spared: float  # share of the linear layers that stayed in float32


def quantize(
    model: BertModel,
    how: str,
    tokenizer: Tokenizer | None = None,
    samples: Sequence[str] = (),
    pooling: str = DEFAULT_POOLING,
) -> Fidelity:
    """Replace the model's linear layers by int8 ones, if its embeddings stay what they were; else refuse.

    They are compared on `samples`; without any, on sentences and random tokens. For float32 models on the CPU.
    """
    pick(QUANTIZERS, how, "way to quantize")
    _refuse_unable(model)
    model.eval()
    batch = sample_batch(model, tokenizer, samples)
    linears, pooling = linear_layers(model), DEFAULT_POOLING if pooling == NO_POOLING else pooling
    with torch.inference_mode():
        with largest_inputs(linears) as largest:
            expected = pool(model(batch), batch, pooling)
        for spared in FLOAT_SHARES:
            chosen = {name: linear for name, linear in linears.items() if not _is_spared(name, spared, model)}
            replace_layers(model, {name: _int8(name, linear, largest[name]) for name, linear in chosen.items()})
            fidelity = compare(pool(model(batch), batch, pooling), expected, 1 - len(chosen) / len(linears))
            if fidelity.mean >= MIN_MEAN_COSINE:
                return fidelity
            replace_layers(model, linears)
    raise RequestError(
        f"int8 would change this model's vectors: their mean cosine with float32 is {fidelity.mean:.5f} on "
        f"{fidelity.texts} samples, under {MIN_MEAN_COSINE}; leave it in float32"
    )


def dequantize(model: BertModel) -> None:
    """Replace int8 layers by torch's own."""
    mapped = {name: layer for name, layer in linear_layers(model).items() if isinstance(layer, ReplacedLinear)}
    replace_layers(model, {name: layer.plain() for name, layer in mapped.items()})


def int8_maps(encoder: Encoder) -> dict[str, Int8Linear]:
    """The int8 maps of an encoder by the names of their layers; not those of weights that have changed since."""
    maps = {name: module.valid_op for name, module in encoder.named_modules() if isinstance(module, ReplacedLinear)}
    return {name: each for name, each in maps.items() if isinstance(each, Int8Linear)}


def _int8(name: str, linear: nn.Linear, largest_I: Tensor) -> ReplacedLinear:
    return ReplacedLinear.of(linear, Int8Linear.of(linear, largest_I, SMOOTHING[name.rpartition(".")[2]]))


def _is_spared(name: str, spared: Mapping[str, float], model: BertModel) -> bool:
    """Whether a linear layer, such as `layers.3.feed_forward.down`, stays in float32."""
    _, layer, *_, kind = name.split(".")
    return int(layer) < spared.get(kind, 0.0) * len(model.encoder.layers)


def linear_layers(model: BertModel) -> dict[str, nn.Linear]:
    """The linear modules of the encoder's layers that read tokens, by their names in the encoder; not distances."""
    named = model.encoder.layers.named_modules(prefix="layers")
    linears = {name: module for name, module in named if isinstance(module, nn.Linear)}
    return {name: linear for name, linear in linears.items() if name.rpartition(".")[2] in SMOOTHING}


def replace_layers(model: BertModel, linears: Mapping[str, nn.Linear]) -> None:
    """Set submodules of the encoder by name."""
    for name, linear in linears.items():
        model.encoder.set_submodule(name, linear)


@contextmanager
def largest_inputs(linears: Mapping[str, nn.Linear]) -> Iterator[dict[str, Tensor]]:
    """The largest absolute value of each input column of each linear layer, collected while this is open."""
    largest: dict[str, Tensor] = {}

    def observer(name: str) -> Any:
        def observe(_: nn.Module, inputs: tuple[Tensor]) -> None:
            maximum = inputs[0].abs().amax(0)
            largest[name] = torch.maximum(largest[name], maximum) if name in largest else maximum

        return observe

    handles = [linear.register_forward_pre_hook(observer(name)) for name, linear in linears.items()]
    try:
        yield largest
    finally:
        for handle in handles:
            handle.remove()


def compare(quantized_ND: Tensor, expected_ND: Tensor, spared: float) -> Fidelity:
    """Cosines between the embeddings of the same texts."""
    cosines = F.cosine_similarity(quantized_ND.double(), expected_ND.double(), dim=-1)
    return Fidelity(float(cosines.mean()), float(cosines.min()), len(cosines), spared)


def sample_batch(model: BertModel, tokenizer: Tokenizer | None, samples: Sequence[str]) -> Batch:
    """The batch to compare on: the samples; without any, sentences and random tokens, which suit any vocabulary."""
    longest = min(model.config.max_length, 128)
    texts = list(samples) or list(SENTENCES)
    if samples and tokenizer is None:
        raise RequestError("texts to measure int8 on need a tokenizer, and this folder holds none; leave them out")
    sequences = [] if tokenizer is None else [ids[:longest] for ids, _ in tokenizer.encode_plain(texts)]
    if not samples:
        generator = torch.Generator().manual_seed(0)
        for length in torch.randint(3, longest + 1, (24,), generator=generator).tolist():
            sequences.append(torch.randint(model.config.vocab_size, (length,), generator=generator).tolist())
    return Batch.pack(sequences)


def _refuse_unable(model: BertModel) -> None:
    if model.device.type != "cpu" or model.encoder.dtype != torch.float32:
        raise RequestError(
            f"int8 is for float32 models on the CPU, and this one is {model.encoder.dtype} on {model.device}"
        )
    if model.config.recurrent:
        raise RequestError("int8 is for linear layers, and this model's layers are recurrent; leave it in float32")
    if any(isinstance(linear, ReplacedLinear) for linear in linear_layers(model).values()):
        raise RequestError("this model is quantized already; load it again to quantize it in another way")
    if not has_int8():
        raise RequestError("int8 needs a torch with oneDNN, and this one has none; leave the model in float32")


SENTENCES = (
    "Where is the nearest station?",
    "The harvest was late that year, for the rain had not stopped since the end of June.",
    "I want to return the shoes I bought last week; they are too small.",
    "Water boils at a lower temperature on a mountain, because the air presses less on it.",
    "How do I change the password of my account?",
    "The committee will meet again on Tuesday at nine to vote on the budget of the school.",
    "She opened the letter, read it twice, and put it into the fire without a word.",
    "Large whales feed on animals that are smaller than a thumb.",
    "This film is far too long, and the end makes no sense at all!",
    "The patient was given 20 mg twice a day; after two weeks the pain was gone.",
    "cheap flights to Lisbon in March",
    "A function that calls itself needs a case in which it does not.",
    "The two companies announced on Friday that they would merge, ending a rivalry of forty years; shares of both rose "
    "by more than five percent before trading was halted for an hour.",
    "Error: the file could not be opened.",
    "In 1869 the canal was opened to ships, and the way from Europe to India became shorter by several thousand miles.",
    "Thank you.",
)
