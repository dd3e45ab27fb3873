"""How a model stands on held-out text: sums over all ranks, and the numbers that people compare."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.pretraining.batches import Examples, ExampleSource
from bertkit.pretraining.objectives import ReplacedTokens
from bertkit.train.distributed import Ranks

BLOCKS = 16
MOST_NATS = 700.0  # the exponential of more is no float
WORDS = ("mlm", "causal", "fill")  # losses in nats a word: these have a perplexity


def evaluate(
    module: nn.Module, heldout: ExampleSource, inputs: Callable[[Examples], tuple[Any, ...]], place: Ranks
) -> dict[str, float]:
    """The numbers of `held_out_numbers` over the first blocks, whose masks never change; every rank gets the same.

    Every rank runs as many forwards as any other, so that spread tensors come together: one that has no block left
    runs the first again, and counts nothing of it.
    """
    module.eval()
    options = {"found": True} if isinstance(module, ReplacedTokens) else {}
    totals: dict[str, Tensor] = {}
    with torch.no_grad(), torch.autocast(place.device.type, torch.bfloat16, enabled=place.device.type == "cuda"):
        for first in range(0, BLOCKS, place.size):
            number = first + place.rank
            counts = number < BLOCKS
            torch.manual_seed(number)  # of the generator's samples
            for name, values in module(*inputs(heldout.block(number if counts else 0)), **options).items():
                sums = torch.stack([value.double() for value in values]) * counts
                totals[name] = totals[name] + sums if name in totals else sums
    module.train()
    return held_out_numbers({name: place.sum(total).tolist() for name, total in totals.items()})


def held_out_numbers(totals: Mapping[str, list[float]]) -> dict[str, float]:
    """Sums as numbers: `mlm_loss`, `mlm_right`, `mlm_perplexity`, ...; and what `detection` makes of `found`."""
    numbers = {}
    for name, (loss, count, right) in totals.items():
        if name == "found":
            continue
        numbers[f"{name}_loss"] = loss / max(count, 1)
        numbers[f"{name}_right"] = right / max(count, 1)
        if name in WORDS:
            numbers[f"{name}_perplexity"] = perplexity(numbers[f"{name}_loss"])
    return numbers | (detection(*totals["found"]) if "found" in totals else {})


def perplexity(loss: float) -> float:
    """Among how many equally likely words the model is as uncertain as it is here."""
    return math.exp(loss) if not loss > MOST_NATS else math.inf


def detection(found: float, called: float, replaced: float) -> dict[str, float]:
    """How well replaced tokens are told from original ones: they are rare, so being right often is no feat."""
    return {
        "rtd_precision": found / max(called, 1),
        "rtd_recall": found / max(replaced, 1),
        "rtd_f1": 2 * found / max(called + replaced, 1),
    }


def in_words(numbers: Mapping[str, float]) -> dict[str, str]:
    """The numbers for one line: the perplexity of words, what is right of pairs, and F1 of replaced tokens."""
    words = {f"{name}_perplexity": "{:,.1f}" for name in WORDS}
    shown = words | {"pair_right": "{:.1%}", "rtd_f1": "{:.3f}"}
    return {
        f"held-out {name.replace('_', ' ')}": form.format(numbers[name])
        for name, form in shown.items()
        if isinstance(numbers.get(name), float)
    }
