"""Which engine computes an encoder: the quickest that gives the same where its weights are."""

from dataclasses import dataclass

from torch import Tensor

from bertkit.engine.cpu import cpu_operations
from bertkit.engine.cuda import cuda_operations
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.operations import TORCH, Operations

ENGINES = (cuda_operations, cpu_operations)  # each gives its operations for an encoder, or None; else torch's own


@dataclass(frozen=True)
class Forward:
    """An encoder and the operations that it is computed with."""

    encoder: Encoder
    ops: Operations = TORCH

    def __call__(self, batch: Batch) -> Tensor:
        """T D: the last layer's vectors."""
        whole_TD = self.ops.whole(batch)
        if whole_TD is not None:
            return whole_TD
        vectors_TD: Tensor = self.encoder(batch, None, self.ops)
        return vectors_TD

    def hidden_states(self, batch: Batch, depth: int | None = None) -> list[Tensor]:
        """The embeddings and each layer's output up to `depth`, T D each; the last of all is as in a call."""
        return self.encoder.hidden_states(batch, depth, self.ops)


def quickest(encoder: Encoder) -> Forward:
    """What computes this encoder soonest where it is."""
    for operations in ENGINES:
        if (ops := operations(encoder)) is not None:
            return Forward(encoder, ops)
    return Forward(encoder)
