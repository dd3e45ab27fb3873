"""Span boundary objective (SpanBERT): predict each word of a masked span from the two tokens around the span.

Joshi et al. 2020: a two-layer network reads the vectors of the tokens before and after the span, and the word's
position in it. A span is a run of neighboring masked tokens. It is trained together with mlm, with masking=span.
"""

from typing import TYPE_CHECKING

import numpy as np

from bertkit.config import BertConfig
from bertkit.errors import RequestError
from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.objectives.objective import Objective
from bertkit.train.loss import PERPLEXITY, Loss

if TYPE_CHECKING:
    from torch import Tensor, nn

    from bertkit.model.model import BertModel
    from bertkit.pretraining.objectives.targets import LossInputs, Sum

MAX_POSITIONS = 64  # later words of a span use the last position vector
POSITION_WIDTH = 200  # as in the paper


class SpanBoundary(Objective):
    """The network of the loss is trained with the model, but not part of the saved model."""

    name = "sbo"
    losses = (Loss("sbo", "words of spans", shown=PERPLEXITY),)
    needs = "mlm"
    needs_reason = "has sbo without mlm; SpanBERT trains both"

    def check(self, masking: str, shares: tuple[float, float]) -> None:
        """Refuse masking of single tokens."""
        if masking == "token":
            raise RequestError("masking=token masks no spans, which objective sbo predicts; set masking=span")

    def remark(self, examples: Examples) -> str | None:
        """The number of spans and their mean length."""
        count = int((np.diff(examples.chosen, prepend=-1) != 1).sum())
        return f"{count:,} spans of {len(examples.chosen) / count:.1f} tokens on average" if count else None

    def word_share(self, rate: float) -> float:
        """The masked positions."""
        return rate

    def head_flops(self, config: BertConfig, rate: float) -> float:
        """The first layer at the masked positions; the second is counted with the vocabulary head."""
        from bertkit.train.speed import TRAINING_FLOPS

        return TRAINING_FLOPS * (2 * config.width + POSITION_WIDTH) * config.width * rate

    def own_parameters(self, model: "BertModel", seed: int) -> "nn.Module":
        """Position vectors, the first layer, and a vocabulary head whose decoder is the embedding table."""
        import torch
        from torch import nn

        from bertkit.model.heads import MaskedWordHead

        config = model.config
        first = nn.Linear(2 * config.width + POSITION_WIDTH, config.width)
        network = nn.ModuleDict(
            {
                "position": nn.Embedding(MAX_POSITIONS, POSITION_WIDTH),
                "first": nn.Sequential(first, nn.GELU(), nn.LayerNorm(config.width, eps=config.norm_epsilon)),
                "words": MaskedWordHead(config, model.encoder.embeddings.word),
            }
        )
        generator = torch.Generator().manual_seed((seed * 1_000_003 + 1) % 2**63)
        for name, parameter in network.named_parameters():
            if parameter.dim() == 2 and parameter is not model.encoder.embeddings.word.weight:
                nn.init.normal_(parameter, std=config.init_std, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        return network

    def loss(self, inputs: "LossInputs") -> "Sum":
        """Cross-entropy of the masked words, predicted from the borders of their spans."""
        import torch

        from bertkit.model.heads import MaskedWordHead
        from bertkit.pretraining.objectives.targets import logit_sums

        network, hidden_TD, targets = inputs.own, inputs.hidden_TD, inputs.targets
        assert isinstance(network, torch.nn.ModuleDict)
        words = network["words"]
        assert isinstance(words, MaskedWordHead)
        first, last = span_bounds(targets.chosen)
        before, after = (first - 1).clamp(min=0), (last + 1).clamp(max=len(hidden_TD) - 1)
        position_MP = network["position"]((targets.chosen - first).clamp(max=MAX_POSITIONS - 1)).to(hidden_TD.dtype)
        input_MX = torch.cat((hidden_TD[before], hidden_TD[after], position_MP), dim=-1)
        return logit_sums(words.aligned(network["first"](input_MX)), targets.words, inputs.model.config.vocab_size)


def span_bounds(positions_M: "Tensor") -> "tuple[Tensor, Tensor]":
    """The first and the last position of the run that each position belongs to; positions are sorted."""
    import torch

    index = torch.arange(len(positions_M), device=positions_M.device)
    apart = positions_M[1:] != positions_M[:-1] + 1
    starts, ends = torch.ones_like(positions_M, dtype=torch.bool), torch.ones_like(positions_M, dtype=torch.bool)
    starts[1:], ends[:-1] = apart, apart
    first = torch.where(starts, index, 0).cummax(0).values
    last = torch.where(ends, index, len(index)).flip(0).cummin(0).values.flip(0)
    return positions_M[first], positions_M[last]
