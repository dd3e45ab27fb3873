"""How a model stands on held-out text: sums over all ranks, and the numbers that people compare."""

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

BLOCKS = 16
MOST_NATS = 700.0  # the exponential of more is no float


def evaluate(
    module: PretrainingModule, heldout: ExampleSource, inputs: Callable[[Examples], tuple[Any, ...]], ranks: Ranks
) -> dict[str, float]:
    """The numbers of `held_out_numbers` over the first blocks, whose masks never change; every rank gets the same.

    Every rank runs as many forwards as any other, so that spread tensors come together: one that has no block left
    runs the first again, and counts nothing of it.
    """
    module.eval()
    totals: dict[str, Tensor] = {}
    with torch.no_grad(), torch.autocast(ranks.device.type, torch.bfloat16, enabled=ranks.device.type == "cuda"):
        for first in range(0, BLOCKS, ranks.size):
            number = first + ranks.rank
            counts = number < BLOCKS
            torch.manual_seed(number)  # of the generator's samples
            for name, values in module(*inputs(heldout.block(number if counts else 0)), **module.evaluation).items():
                sums = torch.stack([value.double() for value in values]) * counts
                totals[name] = totals[name] + sums if name in totals else sums
    module.train()
    return held_out_numbers({name: ranks.sum(total).tolist() for name, total in totals.items()})


def held_out_numbers(totals: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Sums as numbers: `mlm_loss`, `mlm_right`, `mlm_perplexity`, ...; and what the objectives make of other sums."""
    numbers = {}
    for name in filter(LOSSES.__contains__, totals):
        loss, count, correct = totals[name]
        numbers[f"{name}_loss"] = loss / max(count, 1)
        numbers[f"{name}_right"] = correct / max(count, 1)
        if LOSSES[name].has_perplexity:
            numbers[f"{name}_perplexity"] = perplexity(numbers[f"{name}_loss"])
    for row in OBJECTIVES.values():
        numbers |= row.summarize(totals)
    return numbers


def perplexity(loss: float) -> float:
    """Among how many equally likely words the model is as uncertain as it is here."""
    return math.exp(loss) if not loss > MOST_NATS else math.inf


def format_evaluation(numbers: Mapping[str, float]) -> dict[str, str]:
    """The number of each loss that people compare, for one line: perplexity of words, accuracy of pairs, ..."""
    shown = {f"{loss.name}_{loss.shown[0]}": loss.shown[1] for loss in LOSSES.values() if loss.shown}
    return {
        f"held-out {name.replace('_', ' ')}": form.format(numbers[name])
        for name, form in shown.items()
        if isinstance(numbers.get(name), float)
    }
