"""Evaluation on held-out text: losses, accuracies and perplexities over all ranks."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.examples.batches import ExampleSource
from bertkit.pretraining.objectives.table import LOSSES, OBJECTIVES
from bertkit.pretraining.objectives.targets import PretrainingModule
from bertkit.train.distributed import Ranks

EVALUATION_BLOCKS = 16
MAX_NATS = 700.0  # exp of more overflows a float


def evaluate(
    module: PretrainingModule, heldout: ExampleSource, inputs: Callable[[Examples], tuple[Any, ...]], ranks: Ranks
) -> dict[str, float]:
    """The metrics of `held_out_metrics` over the first blocks, with fixed masks; every rank gets the same.

    All ranks run the same number of forwards, because gathering sharded tensors is collective: a rank without a block
    runs the first one again and ignores the result.
    """
    module.eval()
    totals: dict[str, Tensor] = {}
    with torch.no_grad(), torch.autocast(ranks.device.type, torch.bfloat16, enabled=ranks.device.type == "cuda"):
        for first in range(0, EVALUATION_BLOCKS, ranks.size):
            number = first + ranks.rank
            counts = number < EVALUATION_BLOCKS
            ranks.seed(number)  # for the samples of ELECTRA's generator
            for name, values in module(*inputs(heldout.block(number if counts else 0)), **module.evaluation).items():
                sums = torch.stack([value.double() for value in values]) * counts
                totals[name] = totals[name] + sums if name in totals else sums
    module.train()
    return held_out_metrics({name: ranks.sum(total).tolist() for name, total in totals.items()})


def held_out_metrics(totals: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Sums as metrics: `mlm_loss`, `mlm_right`, `mlm_perplexity`, ...; and further metrics of the objectives."""
    metrics = {}
    for name in filter(LOSSES.__contains__, totals):
        loss, count, correct = totals[name]
        metrics[f"{name}_loss"] = loss / max(count, 1)
        metrics[f"{name}_right"] = correct / max(count, 1)
        if LOSSES[name].has_perplexity:
            metrics[f"{name}_perplexity"] = perplexity(metrics[f"{name}_loss"])
    for row in OBJECTIVES.values():
        metrics |= row.summarize(totals)
    return metrics


def perplexity(loss: float) -> float:
    """exp(loss): the number of equally likely words with the same uncertainty."""
    return math.exp(loss) if not loss > MAX_NATS else math.inf


def format_evaluation(metrics: Mapping[str, float]) -> dict[str, str]:
    """The main metric of each loss as text: perplexity of words, accuracy of pairs, ..."""
    shown = {f"{loss.name}_{loss.shown[0]}": loss.shown[1] for loss in LOSSES.values() if loss.shown}
    return {
        f"held-out {name.replace('_', ' ')}": form.format(metrics[name])
        for name, form in shown.items()
        if isinstance(metrics.get(name), float)
    }
