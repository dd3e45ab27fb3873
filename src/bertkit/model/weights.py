"""Initialization: the one place where weights are drawn."""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.model.model import NO_HEADS, BertModel


def new_model(
    config: BertConfig, heads: dict[str, int | None] | None = None, *, seed: int = 0, pooler: bool = False
) -> BertModel:
    """A model with fresh weights, the same ones for the same seed, on the CPU in float32."""
    with torch.device("meta"):
        model = BertModel(config, heads if heads is not None else NO_HEADS, pooler=pooler)
    model.to_empty(device="cpu")
    tie(model)
    initialize(model, seed=seed)
    return model


def copied(model: BertModel, config: BertConfig, tensors: Mapping[str, Tensor]) -> BertModel:
    """Another model with the same heads, of this shape and with these tensors."""
    copy = new_model(config, dict.fromkeys(model.heads), pooler=model.pooler is not None)
    copy.load_state_dict(tensors)
    return copy.train(model.training)


def tie(model: BertModel) -> None:
    """Make the masked-word decoder the embedding table again, after tensors were replaced."""
    if "masked_word" in model.heads:
        model.heads["masked_word"].decoder.weight = model.encoder.embeddings.word.weight  # type: ignore[union-attr]


def initialize(model: BertModel, *, seed: int = 0, only: Iterable[str] | None = None) -> None:
    """Draw every tensor (or those named) from its own seeded stream, whatever else is drawn before it.

    Google's recipe: matrices from a normal of `init_std` cut at two deviations, biases 0, norms 1. With pre-norm
    the maps that write into the residual stream are scaled by 1/sqrt(2 depth), as ModernBERT does.
    """
    wanted = None if only is None else set(only)
    norms = {name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
    for index, (name, tensor) in enumerate(sorted(model.named_parameters())):
        owner, _, kind = name.rpartition(".")
        if wanted is not None and name not in wanted:
            continue
        if owner in norms:
            nn.init.constant_(tensor, 1.0 if kind == "weight" else 0.0)
        elif kind == "bias":
            nn.init.zeros_(tensor)
        else:
            generator = torch.Generator(tensor.device).manual_seed((seed * 1_000_003 + index) % 2**63)
            _truncated_normal(tensor, _std(name, model.config), generator)


@torch.no_grad()
def _truncated_normal(tensor: Tensor, std: float, generator: torch.Generator) -> None:
    """Normal values, drawn again where they fall beyond two deviations (torch's own, by erfinv, is 10x slower)."""
    numbers = tensor.normal_(0.0, std, generator=generator).view(-1)
    beyond = (numbers.abs() > 2 * std).nonzero().squeeze(1)
    while len(beyond):
        again = torch.empty(len(beyond), device=tensor.device).normal_(0.0, std, generator=generator)
        numbers[beyond] = again
        beyond = beyond[again.abs() > 2 * std]


def _std(name: str, config: BertConfig) -> float:
    into_residual = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
    scale = 1 / math.sqrt(2 * config.depth) if config.parts.norm == "pre" and into_residual else 1.0
    return config.init_std * scale
