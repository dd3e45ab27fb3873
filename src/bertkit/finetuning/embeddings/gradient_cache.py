"""GradCache (Gao et al. 2021): a loss that compares all texts of a step, in the memory of one of the step's parts.

The parts are embedded once for the vectors alone; the loss of all of them and its gradient at each vector follow. Then
`take_step` embeds the parts again, with the same dropout masks, against a linear loss that has these gradients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from bertkit.finetuning.embeddings.losses import Loss, VectorTargets
from bertkit.finetuning.learner import TASK
from bertkit.train.loop import MicroBatch, StepContext, Sums, take_step


@dataclass(frozen=True)
class VectorPart(MicroBatch):
    """Some texts of a step whose texts are all compared with each other; without targets of their own."""

    places: Tensor  # of its texts among those of the step
    targets: VectorTargets  # of the whole step


@dataclass(frozen=True)
class NoLoss:
    """In place of the targets, where only the vectors are needed."""

    def sums(self, vectors_TD: Tensor, loss: Loss) -> tuple[Tensor, Tensor, Tensor]:
        """(the vectors, 0, 0)."""
        none = vectors_TD.new_zeros(())
        return vectors_TD, none, none


@dataclass(frozen=True)
class CachedGradients:
    """The gradient of the step's loss at each vector of a part, and the share of the step's sums that it reports."""

    gradients_TD: Tensor
    reported: tuple[Tensor, Tensor, Tensor]  # (loss, rows, correct): the step's for the first part, 0 for others

    def sums(self, vectors_TD: Tensor, loss: Loss) -> tuple[Tensor, Tensor, Tensor]:
        """The reported sums; the loss's gradient at the vectors is the cached one."""
        linear = (vectors_TD * self.gradients_TD).sum()
        reported, rows, correct = self.reported
        return linear - linear.detach() + reported, rows, correct


@dataclass(frozen=True)
class GradientCache:
    """A replacement of `take_step`: a step of several parts has the gradients that it would have as one.

    On several ranks each compares the texts of its own part of the step.
    """

    loss: Loss

    def __call__(
        self, context: StepContext, parts: Sequence[MicroBatch], rate: float
    ) -> tuple[dict[str, Tensor], Tensor, int]:
        """Take one step; one that fits a forward pass is taken as usual."""
        if len(parts) > 1:
            parts = self.with_gradients(context, cast(Sequence[VectorPart], parts))
        return take_step(context, parts, rate)

    def with_gradients(self, context: StepContext, parts: Sequence[VectorPart]) -> list[MicroBatch]:
        """The parts with the gradients of the step's loss as their targets."""
        targets = parts[0].targets
        places = torch.cat([part.places for part in parts])
        embedded_TD = torch.cat([_vectors(context, part) for part in parts])
        vectors_TD = torch.empty_like(embedded_TD).index_copy_(0, places, embedded_TD).requires_grad_()
        with torch.autocast(vectors_TD.device.type, torch.bfloat16, enabled=context.settings.autocast):
            loss, rows, correct = targets.sums(vectors_TD, self.loss)
            [gradients_TD] = torch.autograd.grad(loss, vectors_TD)
        zero = loss.new_zeros(())
        first, none = (loss.detach(), rows, correct), (zero, zero, zero)
        return [
            replace(part, inputs=(part.inputs[0], CachedGradients(gradients_TD[part.places], none if n else first)))
            for n, part in enumerate(parts)
        ]


def _vectors(context: StepContext, part: MicroBatch) -> Tensor:
    """The vectors of a part.

    Gradients stay enabled, though the graph is dropped: without them other kernels may compute, with other dropout.
    """
    module = context.module.module if isinstance(context.module, DistributedDataParallel) else context.module
    context.ranks.seed(part.seed)
    with torch.autocast(context.ranks.device.type, torch.bfloat16, enabled=context.settings.autocast):
        sums: Sums = module(*part.inputs)
    return sums[TASK][0].detach()
