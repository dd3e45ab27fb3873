"""How well a run uses its device, for its record: share of the matmul rate, padding, memory."""

from dataclasses import dataclass

from bertkit.pretraining.recipe import Recipe
from bertkit.train.distributed import Ranks
from bertkit.train.runs import Progress
from bertkit.train.speed import flops_per_token, matmul_rate, memory_gib, utilization


@dataclass(frozen=True)
class Gauge:
    """What has to be known once to read the device at any step."""

    ranks: Ranks
    flops: float  # useful operations of training on a token
    rate: float  # operations a second that a plain matmul reaches
    slots: int  # positions computed in a step, filled or not; 0 where nothing is filled up
    start: Progress  # where the run was at its last start: `rate` is the rate of the device, measured then

    @classmethod
    def of(cls, recipe: Recipe, ranks: Ranks, start: Progress) -> "Gauge":
        """Measure the device, which takes part of a second, and count the recipe's operations."""
        slots = recipe.train.batch * recipe.data.length if ranks.device.type == "cuda" else 0
        return cls(ranks, recipe_flops(recipe), matmul_rate(ranks.device), slots, start)

    def read(self, progress: Progress) -> dict[str, float]:
        """For a line of metrics.jsonl: mean `share` since the last start and `padding` of the run, `memory_gib`.

        Memory is the most that this process has held; a run that was resumed may have held more before.
        """
        tokens, seconds = progress.tokens - self.start.tokens, progress.seconds - self.start.seconds
        each_second = tokens / max(seconds, 1e-9) / self.ranks.size
        filled = progress.tokens / (self.slots * max(progress.step, 1)) if self.slots else 1.0
        return {
            "share": round(utilization(each_second, self.flops, self.rate), 4),
            "padding": round(max(0.0, 1 - filled), 4),
            "memory_gib": round(memory_gib(self.ranks.device), 2),
        }


def recipe_flops(recipe: Recipe) -> float:
    """Useful operations of training on one token, as if every text filled the length."""
    data, model = recipe.data, recipe.model
    flops = flops_per_token(model, data.length, sum(row.word_share(data.rate) for row in data.rows))
    for row in data.rows:
        flops += row.head_flops(model, data.rate)
        for other in row.companions(model, data.rate, recipe.train):
            flops += flops_per_token(other.config, data.length, other.word_share)
    return flops
